"""A machine with containerd and Kata's stand-in beside a node with NVLink slots: pods, and kills in the middle of them.

Real: containerd, its shim for runc, the stand-in's steps, and of the product ledger, gates, CDI specs, keeper of
partitions and verdicts (`tests/slotnode.py`). What stands in: Kata, the Fabric Manager, and here QEMU too, whose double
boots no kernel (`katastandin/emulatordouble.py`), so that a life of a pod takes a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from tests import slotnode
from tests.cluster import cripod, enginehost, katahost
from tests.cluster.proto import cri_pb2 as pb
from tests.fabricstub import library
from tests.katastandin import emulatordouble, guest, stops
from tools.cluster import machine

LIMIT_S: Final = 150.0
_ROOT: Final = Path(__file__).parent.parent.parent


def install(root: Path) -> str:
    """Write the stand-in's files for a node in `root`, and return containerd's part of it."""
    program = root / "emulator"
    words = (sys.executable, "-I", str(Path(emulatordouble.__file__)), str(root))
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    config = root / "configuration.toml"
    own = {"root": str(root), "stops": str(root / "stops")}
    text = guest.configuration(emulator=str(program), kernel="/none", initrd="/none", sock=katahost.SOCKET, own=own)
    config.write_text(text)
    runtime = root / "runtime"
    runtime.write_text(guest.script(sys.executable, str(config), str(_ROOT), str(_ROOT / "src")))
    runtime.chmod(0o755)
    main = enginehost.main_config(3).replace("restrict_oom", f'cdi_spec_dirs = ["{root}/cdi"]\n  restrict_oom', 1)
    return main + katahost.handler(str(runtime))


@dataclass
class World:
    """A node, its engine, and its kubelet, which a test is."""

    host: enginehost.Host
    node: slotnode.SlotNode
    kubelet: enginehost.Kubelet
    held: katahost.Held

    @property
    def state(self) -> Path:
        """The stand-in's folder of its containers, as the test sees it."""
        return self.host.one.disk / katahost.STATE.lstrip("/") / "k8s.io"

    def listed(self) -> list[str]:
        """Return the ids of sandboxes and containers that the engine has."""
        return self.host.one.run("ctr", "-n", "k8s.io", "containers", "ls", "-q").split()

    def left(self) -> list[str]:
        """Return what of any pod is there still: in the engine, in the stand-in, and emulators."""
        listed = self.listed()
        kept = [path.name for path in self.state.iterdir()] if self.state.exists() else []
        return [
            *(f"engine {one}" for one in listed),
            *(f"stand-in {one}" for one in kept),
            *(f"emulator {pid}" for pid in slotnode.emulators(self.node.root)),
        ]

    async def remove_all(self) -> None:
        """Remove every sandbox, as a kubelet's collection of garbage does."""
        for one in self.listed():
            with contextlib.suppress(errors.FairleadError):  # a container's, or one that the next try removes
                await self.kubelet.stub.remove_sandbox(one)


@dataclass
class Life:
    """One pod with a slot."""

    world: World
    name: str
    slot: str
    refused: list[str] = field(default_factory=list)
    """How the engine refused it, each time."""
    pod: cripod.Pod | None = None
    ended: str = ""
    """How its container did, in the engine's words."""

    @property
    def resource(self) -> str:
        return f"nvidia.com/h100-{self.slot.partition('-')[0]}"

    async def admit(self) -> None:
        """Have the kubelet give the slot to the pod."""
        node = self.world.node
        until = time.monotonic() + LIMIT_S
        while (said := node.ask("hold", self.slot)) != "ok":
            assert time.monotonic() < until, said
            await asyncio.sleep(0.05)
        self.list()

    def list(self) -> None:
        self.world.node.report(self.slot, self.name)
        self.world.held.devices[self.name] = {self.resource: [self.slot]}

    async def run(self) -> None:
        """Start it, again and again until the engine has."""
        until = time.monotonic() + LIMIT_S
        while self.pod is None:
            assert time.monotonic() < until, self.refused[-5:]
            try:
                await self.start()
            except errors.FairleadError as error:
                self.refused.append(error.message)
                with contextlib.suppress(errors.FairleadError):  # the engine may be gone, too
                    await self.world.remove_all()
                await asyncio.sleep(0.1)

    async def start(self) -> None:
        """Start it, once. Raises: FairleadError: in the engine's words."""
        host = self.world.host
        made = await cripod.run(
            self.world.kubelet.stub,
            self.name,
            handler=katahost.HANDLER,
            logs=f"/var/log/{self.name}",
            seen_at=host.one.disk / "var-log" / self.name,
            cgroup=f"/{host.one.cgroup}",
        )
        await made.start("main", ["/bin/sleep", "3600"], devices=[f"{self.resource}={self.slot}"])
        self.pod = made

    async def status(self) -> pb.ContainerStatus:
        """Return the container's state as the engine has it."""
        assert self.pod is not None
        return (await self.pod.stub.container_status(self.pod.containers["main"])).status

    async def fate(self, limit_s: float) -> str:
        """Return how its container ended, in the engine's words, within a limit; empty: it runs."""
        until = time.monotonic() + limit_s
        while (found := await self.status()).state != pb.CONTAINER_EXITED:
            if time.monotonic() > until:
                return ""
            await asyncio.sleep(0.05)
        return f"{found.reason} {found.exit_code}"

    async def end(self) -> None:
        """End it: its container first, then its sandbox; repeated until the engine says so."""
        assert self.pod is not None
        until = time.monotonic() + LIMIT_S
        while True:
            assert time.monotonic() < until, (self.ended, self.refused[-5:])
            try:
                if not self.ended:
                    await self.pod.stub.stop_container(self.pod.containers["main"], grace_s=2)
                    self.ended = await self.fate(LIMIT_S / 2)
                elif not self.world.listed():
                    return
                await self.world.remove_all()
            except errors.FairleadError as error:
                self.refused.append(error.message)
                await asyncio.sleep(0.1)

    async def named(self) -> None:
        """Wait until the ledger has its name: a pod that ends before counts as an Allocate whose answer was lost."""
        until = time.monotonic() + LIMIT_S
        while not any(one.get("pod") for row in self.world.node.rows().values() for one in row.get("claims", ())):
            assert time.monotonic() < until
            self.world.node.ask("poke")
            await asyncio.sleep(0.02)

    async def forget(self) -> None:
        """Have the kubelet forget it, once the ledger has its name."""
        await self.named()
        self.world.node.report(self.slot, "")
        self.world.held.devices.pop(self.name, None)


class Halt:
    """A step of the stand-in at which it waits, once."""

    def __init__(self, node: slotnode.SlotNode, step: str) -> None:
        assert step in {*stops.STEPS, *stops.VERIFYING}
        self._asked, self._reached = node.root / "stops" / step, node.root / "stops" / f"{step}.reached"

    def ask(self) -> None:
        self._reached.unlink(missing_ok=True)
        self._asked.touch()

    async def reached(self, work: asyncio.Task[None] | None = None) -> int:
        """Return the pid of the process that came there, as that process knows it. Args: work: that leads there."""
        until = time.monotonic() + LIMIT_S
        while not self._reached.exists():
            if work is not None and work.done():
                work.result()
                raise AssertionError(f"{self._asked.name} was never reached")
            assert time.monotonic() < until, self._asked.name
            await asyncio.sleep(0.01)
        return int(self._reached.read_text())

    def let_go(self) -> None:
        self._asked.unlink(missing_ok=True)
        self._reached.unlink(missing_ok=True)


def outer(world: World, inner: int) -> int:
    """Return what a process of the machine is called here; 0: it is gone."""
    space = str(Path(f"/proc/{world.host.one.init.pid}/ns/pid").readlink())
    for one in machine.processes(world.host.one.number):
        if machine._inner_pid(one.pid) == (space, inner):
            return one.pid
    return 0


def kept(world: World, name: str) -> list[Any]:
    """Return a file of the stand-in of each sandbox that it has."""
    found = []
    for path in world.state.glob(f"*/{name}"):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_text()))
    return found


def shims(world: World) -> list[int]:
    """Return the pids of containerd's shims in the machine, by their names here."""
    return [one.pid for one in machine.processes(world.host.one.number) if _is_shim(one.pid)]


def _is_shim(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"containerd-shim-runc-v2")
    except OSError:
        return False


def kill_shim(world: World, at: int) -> bool:
    """Kill the process that carries the sandbox, or, before there is one, the process at the step."""
    own = [outer(world, one["pid"]) for one in kept(world, "state.json") if _is_sandbox(world, one)]
    return any([_kill(pid) for pid in own]) or _kill(outer(world, at))


def _is_sandbox(world: World, one: dict[str, Any]) -> bool:
    path = world.state / one["sandbox"] / "state.json"
    return path.is_file() and bool(json.loads(path.read_text())["pid"] == one["pid"])


def kill_emulator(world: World, _: int) -> bool:
    """Kill QEMU."""
    return any([_kill(pid) for pid in slotnode.emulators(world.node.root)])


def kill_agent(world: World, _: int) -> bool:
    """Kill the agent; the next one starts when the step is over."""
    world.node.kill_agent()
    return True


def kill_engines_shim(world: World, _: int) -> bool:
    """Kill containerd's shim."""
    return any([_kill(pid) for pid in shims(world)])


def kill_engine(world: World, _: int) -> bool:
    """Kill containerd; another one starts when the step is over."""
    assert world.host.process is not None
    return world.host.process.end(signal.SIGKILL, timeout_s=30)


def kill_manager(world: World, _: int) -> bool:
    """Kill the Fabric Manager; the next one, which knows of no partition, starts when the step is over."""
    world.node.kill_manager()
    return True


def kill_service(world: World, _: int) -> bool:
    """Kill the Service VM, whose switches forget every partition; the next one starts when the step is over."""
    world.node.kill_service()
    return True


async def start_again(world: World, victim: str) -> None:
    """Start what only a test starts again, a moment after it was killed."""
    again: dict[str, Callable[[], None]] = {
        "agent": world.node.start_agent,
        "engine": world.host.start,
        "Manager": world.node.start_manager,
        "Service VM": world.node.start_service,
    }
    if victim in again:
        await asyncio.sleep(0.2)
        await asyncio.to_thread(again[victim])
    if victim == "Service VM":
        await world.node.until_linked()


VICTIMS: Final[dict[str, Callable[[World, int], bool]]] = {
    "shim": kill_shim,
    "emulator": kill_emulator,
    "agent": kill_agent,
    "engine's shim": kill_engines_shim,
    "engine": kill_engine,
    "Manager": kill_manager,
    "Service VM": kill_service,
}


def _kill(pid: int) -> bool:
    if pid <= 0:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


@contextlib.contextmanager
def booted() -> Iterator[tuple[enginehost.Host, slotnode.SlotNode]]:
    """Boot all of that; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="fl-slots-", dir="/var/tmp"))
    root = folder / "node"
    root.mkdir()
    try:
        with enginehost.booted("2") as host:
            host.write(enginehost.MAIN, install(root))
            host.start()
            host.load_images()
            with slotnode.running(root, library.compile_library(folder)) as node:
                yield host, node
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def opened(host: enginehost.Host, node: slotnode.SlotNode) -> AsyncIterator[World]:
    """Be that node's kubelet during a block."""
    async with host.kubelet(limit_s=LIMIT_S) as kubelet, katahost.pod_resources(host, {}) as held:
        yield World(host, node, kubelet, held)

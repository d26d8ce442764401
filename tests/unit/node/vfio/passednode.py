"""A node with passed-through GPUs whose agent is a process that can be killed: what lasts is in files, as in a kernel.

The agent is forked from the test, runs the shipped ledger, gates, scan and resets, and takes orders by a pipe. The test
is the kubelet and the tenants' machines. A group's node is a file that takes one opener by `flock`: the kernel lets go
of it when its opener dies, as it does of a real one. What a machine leaves in a GPU's memory is a file until a bus
reset. A write to sysfs is done at once, in the agent, and a reset that reaches a machine is written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import select
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from fairlead import errors, telemetry
from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import Inventory
from fairlead.model.ids import DeviceID
from fairlead.node.cdi import specfiles
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders, passthroughreset
from fairlead.node.vfio import busevents, gpus, modules, thirdgate
from fairlead.node.vfio.executor import Executor
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.vfio import slot, slotoffer
from tests import nodehold, passedchecker
from tests.unit.silicon.vfio import pcitree, sysfskernel

MODULES = {"0000:0f:00.0": 1, "0000:13:00.0": 2, "0000:17:00.0": 3}
NAMING = slot.Naming()
RESOURCE = "nvidia.com/h100-sxm5-80gb-x1"
_REGION = 0x101000


class Kernel(sysfskernel.Kernel):
    """A kernel of files; a bus reset erases memory, and no reset may reach a machine."""

    def __init__(self, node: PassedNode) -> None:
        super().__init__(node.tree)
        self.node = node

    def _react(self, path: Path, name: str, at: str, text: str) -> None:
        if name == "reset":
            if self.node.opener(at).startswith("machine"):
                self.node.note(f"{at} was reset while {self.node.opener(at)} had it")
            if (path.parent / "reset_method").read_text().split()[0] == "bus":
                self.node.memory(at).write_text("")
        super()._react(path, name, at, text)


class PassedNode:
    """One machine, whose kubelet and tenants a test is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = pcitree.Tree(folder / "root")
        for name in ("vfio-pci", "nvidia"):
            self.tree.register_driver(name)
        for address, module in MODULES.items():
            pcitree.add_gpu(self.tree, address, driver="vfio-pci", files={"driver_override": "vfio-pci\n"})
            words = {**pcitree.module_registers(module), 0x100B20: 1}
            (self.tree.folder(address) / "resource0").write_bytes(pcitree.registers(words, _REGION))
            self.memory(address).parent.mkdir(exist_ok=True)
            self.memory(address).write_text("")
            self.node(address).parent.mkdir(exist_ok=True)
            self.node(address).write_text("")
        (folder / "listed.json").write_text("{}")
        self.machines: dict[str, int] = {}
        """Descriptor of the node by device id, of every machine that runs."""
        self.strangers: dict[str, int] = {}
        """The same of programs that no pod has."""
        self.agent = 0
        self.skew_s = 0.0
        """How far the agent's clock is ahead."""
        self._orders = self._answers = -1

    # what lasts

    def memory(self, address: str) -> Path:
        """Return what is in a GPU's memory: the name of the pod that wrote it."""
        return self.folder / "memory" / address

    def node(self, address: str) -> Path:
        """Return the node of a GPU's group."""
        return self.folder / "nodes" / str(int(address.split(":")[1], 16))

    def opener(self, address: str) -> str:
        """Return who took a GPU's node last."""
        return self.node(address).read_text()

    def note(self, violation: str) -> None:
        """Write down what must never happen."""
        with (self.folder / "violations").open("a") as file:
            file.write(f"{violation}\n")

    @property
    def violations(self) -> list[str]:
        """What must never happen, and did."""
        path = self.folder / "violations"
        return path.read_text().splitlines() if path.exists() else []

    def take(self, address: str, who: str) -> int:
        """Open a GPU's node; returns the descriptor. Raises: OSError (EBUSY): somebody has it."""
        handle = nodehold.open_alone(self.node(address))
        os.ftruncate(handle, 0)
        os.pwrite(handle, who.encode(), 0)
        return handle

    # the kubelet and the tenants

    @property
    def listed(self) -> dict[str, str]:
        """Pod by device id, as the kubelet lists them."""
        found: dict[str, str] = json.loads((self.folder / "listed.json").read_text())
        return found

    def report(self, name: str, pod: str) -> None:
        """Have the kubelet list a device of a pod; forget it where no pod is named."""
        pods = {**self.listed, name: pod}
        fresh = self.folder / "listed.new"
        fresh.write_text(json.dumps({one: pod for one, pod in pods.items() if pod}))
        fresh.replace(self.folder / "listed.json")

    def shown(self) -> set[str]:
        """Return the ids of devices that CDI specs show."""
        return {name.partition("=")[2] for name in passedchecker._specs(self.folder / "cdi")}

    def start(self, name: str, pod: str) -> bool:
        """Start a pod's machine; returns whether it could: its spec shows its device, and the node can be opened."""
        if name not in self.shown():
            return False
        address = address_of(name)
        try:
            self.machines[name] = self.take(address, f"machine of {pod}")
        except OSError:
            return False
        if self.memory(address).read_text() not in {"", pod}:
            self.note(f"{pod} reads what {self.memory(address).read_text()} left in {address}")
        self.memory(address).write_text(pod)
        return True

    def stop(self, name: str) -> None:
        """End a machine."""
        if name in self.machines:
            os.close(self.machines.pop(name))

    # the agent

    def begin(self) -> None:
        """Start the agent."""
        theirs, self._orders = os.pipe()
        self._answers, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for handle in (*self.machines.values(), *self.strangers.values(), self._orders, self._answers):
                    os.close(handle)
                asyncio.run(self._run(theirs, ours))
                status = 0
            except BaseException:  # noqa: BLE001  (nothing of the test's may run in its fork)
                (self.folder / "agent.err").write_text(traceback.format_exc())
            os._exit(status)
        os.close(theirs)
        os.close(ours)
        self.agent = pid

    def ask(self, *order: str, limit_s: float = 30) -> str | None:
        """Give the agent an order; returns its answer, None where it died over it."""
        try:
            os.write(self._orders, (" ".join(order) + "\n").encode())
        except BrokenPipeError:
            return None
        said = b""
        until = time.monotonic() + limit_s
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            assert ready, f"the agent did not answer {order}"
            if not (piece := os.read(self._answers, 4096)):
                return None
            said += piece
        return said.decode().strip()

    def arm(self, point: str) -> None:
        """Have the agent die at a point."""
        assert self.ask("arm", point) == "ok"

    def has_died(self, limit_s: float) -> bool:
        """Return whether the agent dies within a limit."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            ready, _, _ = select.select([self._answers], [], [], 0.01)
            if ready and not os.read(self._answers, 4096):
                return True
        return False

    def end(self) -> int:
        """Kill the agent, if it lives, and return by which signal it ended."""
        if not self.agent:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.agent, signal.SIGKILL)
        _, status = os.waitpid(self.agent, 0)
        self.agent = 0
        for handle in (self._orders, self._answers):
            os.close(handle)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)

    def close(self) -> None:
        """End everything."""
        self.end()
        for found in (self.machines, self.strangers):
            while found:
                os.close(found.popitem()[1])

    async def _run(self, orders: int, answers: int) -> None:
        third = thirdgate.ThirdGate(self._hold)
        kernel = Kernel(self)
        carrying = Executor(self.tree.root, lambda _: (), dev_root=self.tree.root, open_writer=kernel.open_writer)
        found = gpus.PassthroughGPUs(
            self.tree.root,
            modules.ModuleMemory(self.folder / "state"),
            self._hold,
            lambda address: carrying.reset([address], is_ours=True),
            held=lambda: third.held,
            bus=busevents.BusEvents(lambda: None),
        )
        seen = gpuholders.GPUHolders(
            self._list_holdings,
            known=None,
            find_openers=lambda *_: (),
            patience_s=0.0,
            passed=gpuholders.Passed(gate=third, naming=NAMING),
        )
        specs = specfiles.SpecFiles(self.folder / "cdi", boot_id="boot-1", naming=NAMING)
        specs.hide()
        skew_s = self.skew_s
        gate = gates.Gate(self.folder / "lease", seen, specs, boot_id="boot-1", clock=lambda: time.time() + skew_s)
        gate.reset_by(passthroughreset.PassthroughReset(third.find, found.reset, node="n", boot_id="boot-1", limit_s=5))
        drivers = await found.scan()
        await specs.ensure(Inventory(), drivers)
        gate.update(Snapshot(drivers=drivers, is_scanned=True))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gate.run())
            await gate.opened.wait()
            while order := await asyncio.to_thread(_read_line, orders):
                word, *rest = order.split()
                os.write(answers, f"{await self._obey(gate, word, *rest)}\n".encode())
            os._exit(0)

    async def _obey(self, gate: gates.Gate, word: str, *rest: str) -> str:
        if word == "arm":
            telemetry.arm_crash_point(*rest)
        elif word == "poke":
            gate.poke()
        elif word == "hold":
            known = gate._holders.snapshot.passthrough
            (ad,), _ = slotoffer.plan_resources(NAMING.slots(known), {}, ())
            device = next(one for one in ad.devices if one.id == rest[0])
            try:
                await gate.hold(ad.resource, [device])
            except errors.FairleadError as error:
                return error.reason
        return "ok"

    def _hold(self, gpu: PassthroughGPU) -> nodehold.NodeHold:
        try:
            return nodehold.NodeHold(self.take(gpu.address, f"agent {os.getpid()}"))
        except OSError as error:
            raise errors.Conflict(f"{self.node(gpu.address)} is in use", reason="VFIONodeInUse") from error

    async def _list_holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(namespace="team", pod=pod, container="main", resource=RESOURCE, ids=(DeviceID(name),))
            for name, pod in self.listed.items()
        )

    # what is true

    def contradictions(self) -> list[str]:
        """Return what the checker finds now."""
        return passedchecker.find(
            str(self.tree.root),
            str(self.folder / "lease/ledger.db"),
            str(self.folder / "cdi"),
            agent=self.agent,
            pids=[one for one in (self.agent, os.getpid()) if one],
            nodes=str(self.folder / "nodes"),
            board={
                address: {
                    "is_clean": not self.memory(address).read_text(),
                    "is_used": f"x1-{module}" in self.machines,
                }
                for address, module in MODULES.items()
            },
        )

    def is_named(self, name: str) -> bool:
        """Return whether the ledger knows whose a device is: a pod that it never saw is waited for, for two minutes."""
        rows = passedchecker._rows(self.folder / "lease/ledger.db").values()
        return all(claim.get("pod") for row in rows for claim in row.get("claims", ()) if claim["device"] == name)

    def until_named(self, name: str) -> None:
        """Wait until the ledger knows whose a device is."""
        until = time.monotonic() + 20
        while not self.is_named(name):
            assert time.monotonic() < until
            self.ask("poke")
            time.sleep(0.005)

    def states(self) -> dict[str, str]:
        """Return the ledger's states by device id."""
        rows = passedchecker._rows(self.folder / "lease/ledger.db")
        by_serial = {pcitree_serial(address): f"x1-{module}" for address, module in MODULES.items()}
        return {name: row["state"] for key, row in rows.items() for serial, name in by_serial.items() if serial in key}

    def until(self, wanted: dict[str, str], limit_s: float = 20) -> None:
        """Wait until the ledger says so of these devices, and nothing contradicts it."""
        until, found = time.monotonic() + limit_s, ["not looked at"]
        while found:
            assert time.monotonic() < until, (self.states(), found)
            self.ask("poke")
            time.sleep(0.01)
            now = self.states()
            found = [f"{name} is {now.get(name)}" for name in wanted if now.get(name) != wanted[name]]
            found = found or self.contradictions()

    def until_free(self) -> None:
        """Wait until every GPU is free."""
        self.until({f"x1-{module}": "Free" for module in MODULES.values()})


def address_of(name: str) -> str:
    """Return the PCI address of a slot of one GPU."""
    return next(address for address, module in MODULES.items() if name == f"x1-{module}")


def pcitree_serial(address: str) -> str:
    """Return the serial number of a made-up GPU, as digits."""
    return passedchecker._serial(pcitree.config_space((0, 0), 0, serial=0x48B02D0000000000 + int(address[5:7], 16)))


def _read_line(handle: int) -> str:
    said = b""
    while not said.endswith(b"\n"):
        if not (piece := os.read(handle, 1)):
            return ""
        said += piece
    return said.decode()


@functools.cache
def points() -> frozenset[str]:
    """Return every crash point that the source of passthrough and possession names."""
    source = "".join(
        path.read_text()
        for folder in ("node/vfio", "node/lease")
        for path in (Path(errors.__file__).parent / folder).glob("*.py")
    )
    return frozenset(re.findall(r'crash_point\(f?"((?:vfio|lease|ledger)\.[^"]*)"\)', source))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[PassedNode]:
    """Give a node whose agent runs and whose GPUs are free."""
    node = PassedNode(folder)
    try:
        node.begin()
        node.until_free()
        yield node
    finally:
        node.close()

"""Claims that come and go while driver and kubelet are killed at random and the API server is away: none is lost.

Two claims want each device, as after a scheduler's mistake. At most one has it at any moment, each gets it in the end,
and in the end nothing is left: no note, file, MIG device, held GPU, record of the kubelet or object.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from fairlead import errors
from fairlead.node.kubelet.dra import claimrecord
from fairlead.plan.lease.row import State
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.contract import claimchurn
from tests.contract.claimchurn import APIServer
from tests.unit.node.dra.claimnode import ClaimNode, claim, config, result
from tests.unit.node.kubelet.dra.claimworld import NODE

_ROOT: Final = Path(__file__).parents[2]
_SLICES: Final = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
_DEVICES: Final = (*(f"gpu-{at}" for at in range(1, 8)), *(f"gpu-0-mig-1g10gb-19-{start}" for start in (0, 2, 4)))
_WORKERS: Final = 2 * len(_DEVICES)
_PATIENCE_S: Final = 240.0
_ROLL: Final = "roll"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:  # a socket's path has 107 bytes
        yield Path(name)


class Machine:
    """Processes that are killed and started again, and who has what."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.store = APIServer(folder)
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.every: list[subprocess.Popen[bytes]] = []
        self.holders: dict[str, str] = {}
        """By device: the claim whose pod runs."""
        self.kills = Counter[str]()
        self.is_over = asyncio.Event()
        """Set once nothing more is to be broken: a kill or an update that has begun is carried out."""

    def start(self, role: str) -> None:
        argv = [sys.executable, "-m", "tests.contract.claimchurn", role, str(self.folder)]
        log = (self.folder / f"{role}.log").open("ab")
        self.children[role] = subprocess.Popen(argv, cwd=_ROOT, stdout=log, stderr=log)
        self.every.append(self.children[role])
        log.close()

    def mend(self) -> None:
        """Start what a kill has left ended, and have the API server back."""
        (self.folder / claimchurn.AWAY).unlink(missing_ok=True)
        for role, child in self.children.items():
            if child.poll() is not None:
                self.start(role)

    async def roll(self) -> None:
        """Update the driver: the new instance is there before the old one is told to end."""
        old = self.children["drive"]
        self.start("drive")
        await asyncio.sleep(2.0)
        old.terminate()
        await asyncio.to_thread(old.wait, 30)

    async def kill(self, role: str) -> None:
        self.children[role].kill()
        await asyncio.to_thread(self.children[role].wait, 20)

    async def break_things(self, *, every_s: float) -> None:
        """Kill one process, or take the API server away for a moment, again and again."""
        while not self.is_over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.chance.uniform(0.2, 1.0) * every_s):
                    await self.is_over.wait()
                    return
            what = self.chance.choice(("drive", "drive", "prepare", _ROLL, claimchurn.AWAY))
            self.kills[what] += 1
            if what == _ROLL:
                await self.roll()
            elif what == claimchurn.AWAY:
                (self.folder / what).touch()
                await asyncio.sleep(0.3)
                (self.folder / what).unlink()
            else:
                await self.kill(what)
                self.start(what)

    async def patiently(self, act: Callable[[], object]) -> object:
        """Return what a call of the API server comes to, once that is there."""
        while True:
            try:
                return await act()  # type: ignore[misc]
            except (errors.Unavailable, errors.Conflict) as error:
                if error.reason == "AlreadyExists":
                    raise
            await asyncio.sleep(0.05)

    async def live(self, name: str, device: str) -> None:
        """Have a pod with a claim of a device, from its making to its end."""
        slices = [config("GpuConfig", sharing=_SLICES)] if "mig" not in device and self.chance.random() < 0.3 else []
        wanted = claim(name, result(device), configs=slices)
        about = meta.ObjectMeta(namespace="team", name=name)
        made = await self.store.create(msgspec.structs.replace(wanted, metadata=about))
        entry = core.PodResourceClaim(name="gpu", resource_claim_name=name)
        spec = core.PodSpec(resource_claims=(entry,), node_name=NODE, containers=(core.Container(name="main"),))
        pod = await self.store.create(core.Pod(metadata=about, spec=spec))
        user = msgspec.structs.replace(wanted.status.reserved_for[0], name=name, uid=pod.metadata.uid)
        status = msgspec.structs.replace(wanted.status, reserved_for=(user,))
        await self.store.update_status(msgspec.structs.replace(made, status=status))
        await self._until(lambda one: one is not None and one.status.phase == "Running", name)
        assert self.holders.setdefault(device, name) == name, f"{device} is {name}'s and {self.holders[device]}'s"
        assert self._file(made).exists(), f"the CDI file of {name} is gone"
        await asyncio.sleep(self.chance.uniform(0, 0.05))
        assert self._file(made).exists(), f"the CDI file of {name} is gone while its pod runs"
        del self.holders[device]
        is_forced = self.chance.random() < 0.2
        await self.store.delete(core.Pod, name, "team", grace_s=0 if is_forced else 5)
        await self._until(lambda one: one is None, name)
        await self.store.delete(ResourceClaim, name, "team")

    def _file(self, made: ResourceClaim) -> Path:
        return self.folder / "node" / "cdi" / f"k8s.gpu.nvidia.com-claim_{made.metadata.uid}.json"

    async def _until(self, holds: Callable[[core.Pod | None], bool], name: str) -> None:
        while True:
            with contextlib.suppress(errors.Unavailable):
                try:
                    pod = await self.store.get(core.Pod, name, "team")
                except errors.NotFound:
                    pod = None
                if holds(pod):
                    return
            await asyncio.sleep(0.03)


async def _churn(machine: Machine, count: int, *, every_s: float) -> None:
    names = iter(range(count))

    async def work(device: str) -> None:
        for number in names:
            await machine.live(f"c{number}", device)

    async with asyncio.timeout(_PATIENCE_S + count), asyncio.TaskGroup() as tasks:
        breaking = tasks.create_task(machine.break_things(every_s=every_s))
        async with asyncio.TaskGroup() as workers:
            for at in range(_WORKERS):
                workers.create_task(work(_DEVICES[at % len(_DEVICES)]))
        machine.is_over.set()
        await breaking
    machine.mend()


async def _assert_nothing_is_left(machine: Machine) -> None:
    """Wait until the kubelet has given everything back, end both processes, and look at what they leave."""
    path = machine.folder / "state" / claimrecord.NAME
    async with asyncio.timeout(_PATIENCE_S):
        while msgspec.json.decode(path.read_bytes())["claims"]:  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(0.05)
    for role in machine.children:
        await machine.kill(role)
    node = ClaimNode(machine.folder / "node", store=machine.store)  # type: ignore[arg-type]
    try:
        async with node.running():
            async with asyncio.timeout(60):
                while {node.row(at).state for at in range(8)} != {State.FREE}:
                    node.gate.poke()
                    await asyncio.sleep(0.02)
            assert node.journal.uids() == frozenset()
            assert (await node.partition(0)).instances == ()
            assert [one.time_slice for one in node.silicon.machine.gpus] == [0] * 8
    finally:
        await node.close()
    assert list((machine.folder / "node" / "cdi").glob("k8s.gpu.nvidia.com-claim_*")) == []
    assert (await machine.store.list(ResourceClaim)).items == ()
    assert (await machine.store.list(core.Pod)).items == ()


async def _run(folder: Path, count: int, *, every_s: float) -> Counter[str]:
    machine = Machine(folder, seed=count)
    try:
        ClaimNode(folder / "node", store=MemoryStore())  # type: ignore[arg-type]  # whether silicon can be simulated
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))
    try:
        for role in ("drive", "prepare"):
            machine.start(role)
        await _churn(machine, count, every_s=every_s)
        await _assert_nothing_is_left(machine)
    except BaseException as error:
        for role in machine.children:
            error.add_note(f"{role}: {(folder / f'{role}.log').read_text()[-3000:]}")
        raise
    finally:
        for child in machine.every:
            child.kill()
            child.wait()
        machine.store.close()
    return machine.kills


@pytest.mark.timeout(400)
async def test_claims_come_and_go_over_kills_of_driver_and_kubelet(folder: Path) -> None:
    await _run(folder, 40, every_s=3.0)


@pytest.mark.slow  # minutes: each kill begins an interpreter
@pytest.mark.timeout(1800)
async def test_five_hundred_claims_come_and_go_over_kills_of_driver_and_kubelet(folder: Path) -> None:
    kills = await _run(folder, 500, every_s=2.0)
    assert sum(kills.values()) > 2, kills


@pytest.mark.timeout(300)
async def test_an_update_of_the_driver_loses_no_prepare(folder: Path) -> None:
    machine = Machine(folder, seed=1)
    try:
        for role in ("drive", "prepare"):
            machine.start(role)
        async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as tasks:
            updating = tasks.create_task(machine.roll())
            number = 0
            while not updating.done() or number < 8:
                await machine.live(f"c{number}", _DEVICES[number % len(_DEVICES)])
                number += 1
        await _assert_nothing_is_left(machine)
        left = [one.name for one in (folder / "plugins_registry").glob("*-reg.sock")]
        assert len(left) <= 1, f"sockets of an instance that ended are left: {left}"
    finally:
        for child in machine.every:
            child.kill()
            child.wait()
        machine.store.close()

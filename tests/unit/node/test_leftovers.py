"""What is held for a pod, a tenancy or a process that is gone is found, and what is in use never is."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Final

import pytest

from fairlead import errors, settings, telemetry, temporary
from fairlead.engine.fake import engine
from fairlead.engine.port import ContainerSpec, ContainerState
from fairlead.node import leftovers
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.lease import ledgerfile
from fairlead.node.lease.ledger import Ledger
from fairlead.node.lease.ledgerpath import NAME
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event
from fairlead.plan.tenancy import baseline
from fairlead.store.embedded import memory
from fairlead.wire.fairlead.tenancy import Tenancy, TenancySpec
from fairlead.wire.kubernetes import core, meta, names

_NOW: Final = 1e6
_NOBODY: Final = leftovers.Known(pods=frozenset(), names=frozenset(), namespaces=frozenset(), tenancies=frozenset())


class Gauges:
    """A meter that keeps what it was set to last."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, metric: telemetry.Metric, *labels: str) -> None: ...

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        assert metric is telemetry.LEFTOVERS
        self.values[labels[0]] = value

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None: ...

    def heartbeat(self, loop: str, within_s: float | None) -> None: ...


class Machine:
    """A state folder, an engine and a store with one living pod in one tenancy."""

    def __init__(self, folder: Path) -> None:
        plain = settings.Settings()
        state = dataclasses.replace(plain.state, folder=folder / "state", run=folder / "run")
        self.config = dataclasses.replace(plain, state=state)
        self.root = folder / "root"
        (self.root / "proc/self").mkdir(parents=True)
        state.run.mkdir()
        self.home = checkpoint.home_id(state.folder / "kubelet")
        self.engine, self.store = engine.FakeEngine(), memory.MemoryStore()
        self.engine.add_image("demo", command=("sleep", "1"))
        self.mount()

    async def live(self) -> None:
        await self.store.create(core.Namespace(metadata=meta.ObjectMeta(name="red")))
        await self.store.create(core.Pod(metadata=meta.ObjectMeta(name="train", namespace="red")))
        await self.store.create(Tenancy(metadata=meta.ObjectMeta(name="red"), spec=TenancySpec()))

    def mount(self, *places: Path) -> None:
        escaped = [str(one).replace(" ", r"\040") for one in places]
        lines = [f"36 35 0:5 / {one} rw - tmpfs tmpfs rw\n" for one in escaped]
        (self.root / "proc/self/mountinfo").write_text("".join(lines))

    async def find(self) -> list[tuple[str, str]]:
        async def known() -> leftovers.Known:
            return await leftovers.known(self.store)

        found = await leftovers.find(self.config, self.engine, known, now=_NOW, root=self.root, shared=self.root)
        assert all("`" in one.fix for one in found)
        return [(one.kind, one.what) for one in found]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def _fill(folder: Path, *rows: Row) -> None:
    ledger = Ledger(folder)
    await ledger.act(lambda _: tuple(Change(event=Event.ADOPTED, before=one, after=one, facts=Facts()) for one in rows))
    ledger.close()


def _claim(**given: object) -> Claim:
    return Claim(device="d", **given)  # type: ignore[arg-type]  # fields of Claim


async def test_nothing_is_found_on_a_machine_that_is_new(machine: Machine) -> None:
    assert await machine.find() == []


async def test_folders_and_mounts_of_pods_that_are_gone_are_found_and_those_of_living_ones_are_not(
    machine: Machine,
) -> None:
    await machine.live()
    pods, volumes = machine.config.state.folder / "pods", machine.config.claims_folder
    (uid,) = [pod.metadata.uid for pod in (await machine.store.list(core.Pod)).items]
    labels = {names.POD_UID: "running"}
    async with machine.engine:
        await machine.engine.create(ContainerSpec(name="c", image="demo", labels=labels))
        for name in (uid, "running", "gone"):
            (pods / name).mkdir(parents=True)
        inside = [pods / name / "volumes/fast one" for name in (uid, "running", "gone")]
        machine.mount(*inside, volumes / "red", volumes / "blue", Path("/elsewhere"))
        assert await machine.find() == [
            ("mount", str(inside[2])),
            ("mount", str(volumes / "blue")),
            ("folder", str(pods / "gone")),
        ]


async def test_networks_of_ours_without_their_tenancy_are_found(machine: Machine) -> None:
    await machine.live()
    (uid,) = [one.metadata.uid for one in (await machine.store.list(Tenancy)).items]
    made = (("fl-1", machine.home, uid), ("fl-2", machine.home, "gone"), ("fl-3", "another", "gone"))
    for number, (name, home, tenancy) in enumerate(made):
        labels = {names.HOME: home, baseline.UID: tenancy}
        await machine.engine.create_network(name, (f"10.1.{number}.0/24",), labels=labels, resolves_names=True)
    assert await machine.find() == [("network", "fl-2")]


@pytest.mark.parametrize(
    ("row", "is_found"),
    [
        (Row(key="g", state=State.HELD, claims=(_claim(namespace="red", pod="train"),)), False),
        (Row(key="g", state=State.HELD, claims=(_claim(namespace="red", pod="gone"),)), True),
        (Row(key="g", state=State.HELD, claims=(_claim(namespace="red", pod="train", uid="of an older one"),)), True),
        (Row(key="g", state=State.HELD, claims=(_claim(at=_NOW - 100),)), False),
        (Row(key="g", state=State.HELD, claims=(_claim(at=_NOW - 1000),)), True),
        (Row(key="g", state=State.RELEASING, since=_NOW - 5, claims=(_claim(namespace="red", pod="gone"),)), False),
        (Row(key="g", state=State.RELEASING, since=_NOW - 100, claims=(_claim(namespace="red", pod="gone"),)), True),
        (Row(key="g", state=State.FREE), False),
    ],
)
async def test_leases_of_pods_that_are_gone_are_found(machine: Machine, row: Row, *, is_found: bool) -> None:
    await machine.live()
    await _fill(machine.config.lease_folder, row)
    found = await machine.find()
    assert [kind for kind, _ in found] == ["lease"] * is_found


async def test_what_killed_processes_left_is_found_and_a_start_removes_it(machine: Machine) -> None:
    state, run, old = machine.config.state.folder, machine.config.state.run, time.time() - 3600
    left = (state / ".state.db.0123abcd", state / ".state.db.0123abcd-wal", state / "kubelet/.home-id.00000000")
    kept = (state / ".mine", state / "pods/u/volumes/v/.x.01234567", state / "kubelet/.fresh.00000000")
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if path != kept[2]:
            os.utime(path, (old, old))
    folders = (run / f"{temporary.SOCKET}abcdefgh", machine.root / f"{temporary.PODMAN}abcdefgh")
    for folder in folders:
        folder.mkdir(mode=0o700)
        os.utime(folder, (old, old))
    found = [what for kind, what in await machine.find() if kind == "file"]
    assert {*found} == {*map(str, left), *map(str, folders)}
    leftovers.sweep(machine.config, machine.root)
    assert [path.exists() for path in (*left, *folders, *kept)] == [False] * 5 + [True] * 3


async def test_gauges_say_how_many_there_are_and_that_it_is_not_known_where_the_engine_is_silent(
    machine: Machine,
) -> None:
    async def known() -> leftovers.Known:
        return _NOBODY

    class Silent(engine.FakeEngine):
        async def list_containers(self, labels: object) -> tuple[ContainerState, ...]:
            raise errors.Unavailable(f"no answer for {labels}", reason="EngineSilent")

    gauges = Gauges()
    (machine.config.state.folder / "pods/gone").mkdir(parents=True)
    await leftovers.count(machine.config, machine.engine, known, now=_NOW, meter=gauges)
    assert gauges.values.keys() == {*leftovers.KINDS}
    assert gauges.values["folder"] == 1
    assert gauges.values["lease"] == 0
    await leftovers.count(machine.config, Silent(), known, now=_NOW, meter=gauges)
    assert all(math.isnan(value) for value in gauges.values.values())


def test_the_ledgers_rows_are_read_without_its_history(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path, Row(key="g", state=State.FREE)))
    assert ledgerfile.read_rows(tmp_path / NAME) == ledgerfile.read(tmp_path / NAME)[0]

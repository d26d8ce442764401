"""When GPUs are bound by themselves, over an executor that a test answers for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.model.vfio import Snapshot
from fairlead.node import vfioparts
from fairlead.node.inventory import latest
from fairlead.node.vfio import binder, executor
from fairlead.plan.vfio import verdict
from fairlead.settings import NodeSettings
from tests.unit.plan.vfio import vfioworld

ONE, TWO, AMDS = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


class Machine:
    """Three GPUs, one of them AMD's, and what binds them."""

    def __init__(self) -> None:
        self.drivers = {ONE: "nvidia", TWO: "nvidia"}
        self.in_use = set[str]()
        self.asked: list[list[str]] = []
        self.changes = 0

    async def scan(self) -> Snapshot:
        amds = dataclasses.replace(vfioworld.function(AMDS, driver="amdgpu"), vendor=0x1002)
        return vfioworld.snapshot(*(vfioworld.function(at, driver=name) for at, name in self.drivers.items()), amds)

    async def bind(self, addresses: Collection[str]) -> tuple[executor.Outcome, ...]:
        self.asked.append(list(addresses))
        found = []
        for address in addresses:
            functions = (vfioworld.function(address),)
            if address in self.in_use:
                held = verdict.Obstacle(why=verdict.Why.HELD, stage=verdict.Stage.BIND, message=f"{address} is in use")
                found.append(executor.Outcome(functions=functions, refusals=(held,)))
            else:
                self.drivers[address] = "vfio-pci"
                found.append(executor.Outcome(functions=functions))
        return tuple(found)

    def changed(self) -> None:
        self.changes += 1


async def run(machine: Machine, policy: str, labels: binder.Labels | None = None) -> asyncio.Task[None]:
    """Begin, and let it come to rest; returns the task."""
    task = asyncio.get_running_loop().create_task(binder.Binder(machine, policy, machine.changed).run(labels))
    await asyncio.sleep(0.05)
    return task


@pytest.mark.parametrize("policy", ["bound", "off"])
async def test_nothing_is_bound_where_the_settings_do_not_ask(policy: str) -> None:
    machine = Machine()
    await (await run(machine, policy))
    assert machine.asked == []


async def test_nvidias_gpus_are_bound_and_no_others() -> None:
    machine = Machine()
    task = await run(machine, "bind")
    task.cancel()
    assert machine.asked == [[ONE, TWO]]
    assert machine.changes == 1


async def test_what_is_in_use_holds_up_no_other_and_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder, "AGAIN_S", 0.02)
    machine = Machine()
    machine.in_use = {ONE}
    with capture_logs() as logs:
        task = await run(machine, "bind")
        await asyncio.sleep(0.1)
        machine.in_use.clear()
        await asyncio.sleep(0.1)
        task.cancel()
    assert machine.drivers == {ONE: "vfio-pci", TWO: "vfio-pci"}
    assert [one["error"] for one in logs if one["log_level"] == "warning"] == [f"{ONE} is in use"]


async def test_the_label_binds_and_another_label_takes_nothing_back() -> None:
    machine = Machine()
    labels: latest.Latest[Mapping[str, str] | None] = latest.Latest(None)
    task = await run(machine, "label", labels)
    assert machine.asked == []
    labels.set({binder.WORKLOAD: binder.PASSTHROUGH})
    await asyncio.sleep(0.05)
    assert machine.asked == [[ONE, TWO]]
    labels.set({binder.WORKLOAD: "container"})
    await asyncio.sleep(0.05)
    task.cancel()
    assert machine.drivers == {ONE: "vfio-pci", TWO: "vfio-pci"}


def test_a_label_that_nothing_can_read_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="API server"):
        vfioparts.check(NodeSettings(vfio="label"), has_store=False)
    vfioparts.check(NodeSettings(vfio="label"), has_store=True)
    vfioparts.check(NodeSettings(vfio="bind"), has_store=False)


async def test_a_gpu_that_is_put_in_is_bound_once_the_binder_is_poked() -> None:
    machine = Machine()
    made = binder.Binder(machine, binder.BIND, machine.changed)
    task = asyncio.get_running_loop().create_task(made.run(None))
    await asyncio.sleep(0.05)
    machine.drivers["0000:04:00.0"] = ""
    await asyncio.sleep(0.05)
    assert machine.drivers["0000:04:00.0"] == ""
    made.poke()
    await asyncio.sleep(0.05)
    assert machine.drivers["0000:04:00.0"] == "vfio-pci"
    assert machine.changes == 2
    task.cancel()

"""What every Partitioner does, by the real ctypes calls: simulated machines of each kind, and any real NVML to look at.

`FAIRLEAD_TEST_NVML` names a libnvidia-ml.so.1; of a real machine only what changes nothing is asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.model.gpu import EventKind
from fairlead.model.mig import Partition, Slot
from fairlead.node.mig import apply
from fairlead.plan.mig import change, packing, wanted
from fairlead.silicon import composite, hardware, port
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.sim import silicon as simulation

REAL = os.environ.get("FAIRLEAD_TEST_NVML", "")  # noqa: TID251 - chooses what the suite runs on, no setting of ours
PROFILES = {"a100x8": ("1g.5gb", "3g.20gb"), "h100x8": ("1g.10gb", "3g.40gb")}


class Subject:
    """A simulated machine and its partitioner."""

    def __init__(self, folder: Path, name: str) -> None:
        self.small, self.large = PROFILES[name]
        try:
            self.silicon = simulation.SimulatedSilicon(folder, name)
        except errors.Unavailable as error:
            pytest.skip(errors.sentence(error))
        found = composite.CompositeSilicon([hardware.open_amd(folder / "none"), self.silicon]).partitioner()
        assert found is not None
        self.partitioner: port.Partitioner = found

    async def look(self, index: int = 0) -> Partition:
        return (await self.partitioner.list_partitions())[index]

    async def enable(self, index: int = 0) -> Partition:
        gpu = await self.look(index)
        if await self.partitioner.set_mode(gpu.gpu, is_enabled=True):
            await self.partitioner.reset(gpu.gpu)
        return await self.look(index)


@pytest_asyncio.fixture(params=["a100x8", "h100x8"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    found = Subject(tmp_path / "sim", request.param)
    yield found
    await found.silicon.close()


async def test_profiles_and_placements_are_told_with_mig_off(subject: Subject) -> None:
    gpu = await subject.look()
    assert not gpu.is_enabled
    assert gpu.find_profile(subject.large) is not None
    assert packing.remaining(gpu.profiles, ())[subject.small] == 7
    assert gpu.device_filter.endswith("10DE")


async def test_profiles_say_what_an_instance_computes_with(subject: Subject) -> None:
    small, large = [(await subject.look()).find_profile(name) for name in (subject.small, subject.large)]
    assert small is not None
    assert large is not None
    assert small.engines is not None
    assert large.engines is not None
    assert 0 < small.engines.multiprocessors < large.engines.multiprocessors
    assert small.engines.slices == small.slices


async def test_a_mode_counts_at_once_from_hopper_on_and_after_a_reset_before(subject: Subject) -> None:
    gpu = await subject.look()
    needs_reset = await subject.partitioner.set_mode(gpu.gpu, is_enabled=True)
    after = await subject.look()
    assert needs_reset == (subject.small == "1g.5gb")
    assert (after.is_enabled, after.is_pending) == (not needs_reset, True)
    await subject.partitioner.reset(gpu.gpu)
    assert (await subject.look()).is_enabled


async def test_instances_stand_where_they_were_put_and_are_devices_once_divided(subject: Subject) -> None:
    gpu = await subject.enable()
    number = await subject.partitioner.create_instance(gpu.gpu, Slot(profile=subject.large, start=4))
    await subject.partitioner.create_compute(gpu.gpu, number, 1)
    await subject.partitioner.create_compute(gpu.gpu, number, 1)
    found = (await subject.look()).instances
    assert [one.slot for one in found] == [Slot(profile=subject.large, start=4)]
    assert [(one.id, one.slices, one.uuid is not None) for one in found[0].computes] == [(0, 1, True), (1, 1, True)]
    listed = (await subject.silicon.scan()).gpus[0].mig_devices
    assert {one.uuid for one in listed} == {one.uuid for one in found[0].computes}
    await subject.partitioner.destroy_compute(gpu.gpu, number, 1)
    await subject.partitioner.destroy_compute(gpu.gpu, number, 0)
    await subject.partitioner.destroy_instance(gpu.gpu, number)
    assert (await subject.look()).instances == ()


async def test_a_taken_place_is_insufficient_and_a_wrong_one_invalid(subject: Subject) -> None:
    gpu = await subject.enable()
    slot = Slot(profile=subject.large, start=0)
    number = await subject.partitioner.create_instance(gpu.gpu, slot)
    with pytest.raises(errors.Insufficient, match="create GPU instance"):
        await subject.partitioner.create_instance(gpu.gpu, slot)
    with pytest.raises(errors.Invalid):
        await subject.partitioner.create_instance(gpu.gpu, Slot(profile="9g.1gb", start=0))
    with pytest.raises(errors.Invalid):
        await subject.partitioner.create_compute(gpu.gpu, number, 7)
    with pytest.raises(errors.NotFound):
        await subject.partitioner.destroy_instance(gpu.gpu, 13)


async def test_what_is_in_use_is_refused(subject: Subject) -> None:
    gpu = await subject.enable()
    number = await subject.partitioner.create_instance(gpu.gpu, Slot(profile=subject.small, start=0))
    await subject.partitioner.create_compute(gpu.gpu, number, 1)
    subject.silicon.inject("process", gpu=0, value=f"{number}/0")
    assert (await subject.look()).instances[0].computes[0].is_busy
    with pytest.raises(errors.Conflict) as caught:
        await subject.partitioner.destroy_compute(gpu.gpu, number, 0)
    assert caught.value.reason == "MIGInUse"
    with pytest.raises(errors.Conflict):
        await subject.partitioner.destroy_instance(gpu.gpu, number)
    with pytest.raises(errors.Conflict):
        await subject.partitioner.set_mode(gpu.gpu, is_enabled=False)
    with pytest.raises(errors.Conflict):
        await subject.partitioner.reset(gpu.gpu)


async def test_a_mode_under_a_process_stays_pending(subject: Subject) -> None:
    gpu = await subject.look()
    subject.silicon.inject("process", gpu=0, value="gpu")
    assert await subject.partitioner.set_mode(gpu.gpu, is_enabled=True)
    assert (await subject.look()).is_pending
    subject.silicon.inject("process", gpu=0, value="none")
    await subject.partitioner.reset(gpu.gpu)
    assert (await subject.look()).is_enabled


async def test_one_gpu_is_read_as_among_all(subject: Subject) -> None:
    gpu = await subject.look()
    if not await subject.partitioner.set_mode(gpu.gpu, is_enabled=True):  # it counts without a reset
        smallest = gpu.profiles[0]
        slot = Slot(profile=smallest.name, start=smallest.starts[0])
        instance = await subject.partitioner.create_instance(gpu.gpu, slot)
        await subject.partitioner.create_compute(gpu.gpu, instance, smallest.slices)
    for one in (await subject.partitioner.list_partitions())[:2]:
        assert await subject.partitioner.read_partition(one.gpu) == one
    subject.silicon.inject("lost", gpu=2, value=None)
    with pytest.raises(errors.DeviceFault):
        await subject.partitioner.read_partition(subject.silicon.machine.gpus[2].board.uuid)  # type: ignore[arg-type]


async def test_a_lost_gpu_is_told_and_hides_no_other(subject: Subject) -> None:
    subject.silicon.inject("lost", gpu=2, value=None)
    found = await subject.partitioner.list_partitions()
    assert found[2].problem
    assert [one.index for one in found if not one.problem] == [0, 1, 3, 4, 5, 6, 7]
    with pytest.raises(errors.DeviceFault):
        await subject.partitioner.set_mode(subject.silicon.machine.gpus[2].board.uuid, is_enabled=True)  # type: ignore[arg-type]


async def test_a_planned_change_leads_to_what_was_planned(subject: Subject) -> None:
    gpu = await subject.look()
    first = wanted.WantedGPU(is_enabled=True, devices={subject.large: 1, subject.small: 2})
    await apply.apply_changes(subject.partitioner, [change.plan_change(gpu, first)])
    gpu = await subject.look()
    assert wanted.differences([gpu], {gpu.gpu: first}) == []
    kept = {one.uuid for instance in gpu.instances for one in instance.computes if instance.profile == subject.large}
    second = wanted.WantedGPU(is_enabled=True, devices={subject.large: 2})
    await apply.apply_changes(subject.partitioner, [change.plan_change(gpu, second)])
    gpu = await subject.look()
    assert wanted.differences([gpu], {gpu.gpu: second}) == []
    assert kept < {one.uuid for instance in gpu.instances for one in instance.computes}
    off = wanted.WantedGPU(is_enabled=False)
    await apply.apply_changes(subject.partitioner, [change.plan_change(gpu, off)])
    assert not (await subject.look()).is_enabled


async def test_changes_are_seen_by_another_process_of_the_machine(subject: Subject, tmp_path: Path) -> None:
    other = simulation.SimulatedSilicon(tmp_path / "sim", "a100x8" if subject.small == "1g.5gb" else "h100x8")
    try:
        events = other.watch_events()
        async with asyncio.timeout(10):
            assert (await anext(events)).kind is EventKind.CHANGED
            gpu = await subject.enable()
            await subject.partitioner.create_instance(gpu.gpu, Slot(profile=subject.large, start=0))
            while not (await other.scan()).gpus[0].mig_enabled:
                await anext(events)
        assert len((await other.partitioner().list_partitions())[0].instances) == 1
    finally:
        await other.close()


async def test_events_are_heard_again_after_a_reset(subject: Subject) -> None:
    events = subject.silicon.watch_events()
    async with asyncio.timeout(15):
        await anext(events)
        await subject.enable()
        await subject.partitioner.reset((await subject.look()).gpu)
        while True:
            subject.silicon.inject("xid", gpu=1, value="79")
            if (await anext(events)).kind is EventKind.XID:
                return


@pytest.mark.skipif(not REAL, reason="FAIRLEAD_TEST_NVML names no library")
async def test_a_real_driver_tells_its_partitions() -> None:
    real = nvml.NVMLSilicon(Path("/"), Path("/"), call_timeout_s=10, library=Path(REAL))
    try:
        for gpu in await real.partitioner().list_partitions():
            assert gpu.problem or gpu.gpu.startswith("GPU-")
            assert all(one.starts and one.size and one.slices for one in gpu.profiles)
    finally:
        await real.close()

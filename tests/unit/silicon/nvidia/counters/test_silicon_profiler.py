"""Profiling figures come from NVML's GPM, per GPU and GPU instance, and only where the GPU has it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model import sample
from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia import binding
from fairlead.silicon.nvidia.counters import profiler
from fairlead.silicon.sim import machine
from fairlead.silicon.sim import profile as profiles
from fairlead.silicon.sim import silicon as simulation
from fairlead.silicon.sim.nvml import library


class Bench:
    """A simulated driver with a profiler that does not wait."""

    def __init__(self, name: str) -> None:
        self.host = machine.Machine(profiles.load(name))
        self.waits: list[float] = []
        self.profiler = profiler.Profiler(self.waits.append)
        self.nvml = self.open()

    def open(self) -> binding.Binding:
        try:
            return binding.Binding(library.SimulatedNVML(self.host))
        except errors.Unavailable as error:
            pytest.skip(errors.sentence(error))

    def read(self, *instances: int) -> dict[int | None, sample.Activity]:
        gpu = self.host.gpus[0]
        handle = self.nvml.nvml.nvmlDeviceGetHandleByIndex(0)
        return self.profiler.read(self.nvml, handle, GPUUUID(gpu.board.uuid), instances)


def is_whole(found: sample.Activity) -> bool:
    return None not in dataclasses.astuple(found)


def test_a_gpu_of_hopper_has_every_figure_in_its_unit_from_the_first_reading_on() -> None:
    bench = Bench("h100x8")
    bench.host.gpus[0].utilization_percent = 80
    found = bench.read()[None]
    assert is_whole(found)
    assert found.graphics_active == pytest.approx(0.8)
    assert found.tensor_active == pytest.approx(0.48)
    assert found.fp64_active == 0
    assert found.pcie_sent_bytes_s == pytest.approx(80 * 22 * (1 << 20))
    assert bench.waits == [0.1]
    # From then on a figure is about the time since the last reading, and nothing waits.
    bench.host.gpus[0].utilization_percent = 40
    assert bench.read()[None].graphics_active == pytest.approx(0.6)
    assert bench.waits == [0.1]


def test_a_gpu_before_hopper_has_none_and_is_asked_once() -> None:
    bench = Bench("a100x8")
    assert bench.read() == {}
    assert bench.read() == {}
    assert not bench.host.samples


def test_samples_do_not_pile_up_however_often_they_are_taken_and_instances_come_and_go() -> None:
    bench = Bench("h100x8")
    gpu = bench.host.gpus[0]
    gpu.mig_enabled = True
    row = next(row for row in gpu.partition.rows if row.slices == 3)
    one, two = gpu.partition.create(row, 0), gpu.partition.create(row, 4)
    for instance in (one, two):
        instance.create_compute(0, None)
    for _ in range(50):
        assert set(bench.read(one.id, two.id)) == {None, one.id, two.id}
    assert len(bench.host.samples) == 3
    bench.read(one.id)
    assert len(bench.host.samples) == 2
    # an instance that the driver has ended since has no figures, and hides no other
    gpu.partition.instances.pop(one.id)
    found = bench.read(one.id)
    assert found[one.id] == sample.UNKNOWN
    assert is_whole(found[None])


def test_each_instance_has_the_load_of_its_own_holders() -> None:
    bench = Bench("h100x8")
    gpu = bench.host.gpus[0]
    gpu.mig_enabled = True
    row = next(row for row in gpu.partition.rows if row.slices == 3)
    busy, idle = gpu.partition.create(row, 0), gpu.partition.create(row, 4)
    for instance in (busy, idle):
        instance.create_compute(0, None)
    name = profiles.mig_uuid(gpu.board.uuid, busy.id, next(iter(busy.computes)))
    bench.host.holders = {name: tuple(f"default/train-{number}/main" for number in range(4))}
    found = bench.read(busy.id, idle.id)
    assert (found[busy.id].graphics_active or 0) > 0
    assert found[idle.id].graphics_active == 0


def test_a_library_that_was_opened_anew_is_asked_anew() -> None:
    bench = Bench("h100x8")
    bench.read()
    bench.host.samples.clear()  # as a library's end does
    bench.nvml = bench.open()
    assert is_whole(bench.read()[None])


def test_a_lost_gpu_frees_the_sample_that_it_did_not_give() -> None:
    bench = Bench("h100x8")
    bench.read()
    handle = bench.nvml.nvml.nvmlDeviceGetHandleByIndex(0)
    bench.host.gpus[0].is_lost = True
    with pytest.raises(bench.nvml.error):
        bench.profiler.read(bench.nvml, handle, GPUUUID(bench.host.gpus[0].board.uuid))
    assert len(bench.host.samples) == 1
    bench.host.gpus[0].is_lost = False
    assert is_whole(bench.read()[None])
    assert len(bench.host.samples) == 1


async def test_samples_of_silicon_carry_the_figures(tmp_path: Path) -> None:
    try:
        silicon = simulation.SimulatedSilicon(tmp_path, "h100x8")
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))
    try:
        found = await silicon.sample(within_s=5)
    finally:
        await silicon.close()
    assert len(found) == 8
    assert all(is_whole(one.activity) for one in found)

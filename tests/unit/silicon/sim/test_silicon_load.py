"""Simulated GPUs that somebody holds: load, power, temperature, memory and energy follow the workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.silicon.sim import load, machine, profile
from fairlead.silicon.sim.silicon import SimulatedSilicon

H100 = profile.load("h100x8").boards[0].part


def holder_of(workload: load.Workload) -> str:
    return next(name for name in map(str, range(100)) if load.workload_of(name) is workload)


def test_an_idle_gpu_reads_what_an_idle_gpu_reads() -> None:
    readings = load.read(H100, (), 12345.0)
    assert (readings.utilization_percent, readings.power_mw, readings.temperature_c) == (0, H100.idle_power_mw, 34)
    assert readings.sm_clock_mhz < H100.sm_clock_mhz
    assert readings.memory_used_mib == load.IDLE_MEMORY_MIB


@pytest.mark.parametrize("workload", load.WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_is_told_by_its_readings_alone(workload: load.Workload) -> None:
    holder = holder_of(workload)
    seen = [load.read(H100, (holder,), float(second)) for second in range(600)]
    loads = [readings.utilization_percent for readings in seen]
    assert all(0 <= value <= 100 for value in loads)
    assert len(set(loads)) > 2, "a load that never moves is not believable"
    average = sum(loads) / len(loads)
    bounds = {"training": (80, 100), "inference": (35, 70), "notebook": (1, 20)}[workload.name]
    assert bounds[0] < average < bounds[1]
    assert all(H100.idle_power_mw <= readings.power_mw <= H100.full_power_mw for readings in seen)
    assert max(readings.temperature_c for readings in seen) < 80


def test_sharers_add_up_to_no_more_than_the_gpu_has() -> None:
    readings = load.read(H100, [holder_of(load.TRAINING)] * 5, 100.0)
    assert readings.utilization_percent == 100
    assert readings.memory_used_mib < H100.memory_mib


def test_energy_is_power_over_time() -> None:
    now = [1000.0]
    host = machine.Machine(profile.load("h100x8"), clock=lambda: now[0])
    gpu = host.gpus[0]
    gpu.power_mw = 500_000
    host.read(gpu)
    now[0] += 60
    host.read(gpu)
    assert gpu.energy_mj == pytest.approx(500_000 * 60)


async def test_a_held_gpu_works_and_another_idles(tmp_path: Path) -> None:
    silicon = SimulatedSilicon(tmp_path, "h100x8")
    try:
        before = await silicon.sample(within_s=5)
        silicon.hold({before[0].gpu: (holder_of(load.TRAINING),)})
        held, free, *_ = await silicon.sample(within_s=5)
        assert held.memory_used_bytes is not None
        assert free.memory_used_bytes is not None
        assert held.memory_used_bytes > 0.7 * H100.memory_mib * 2**20 > free.memory_used_bytes
        silicon.inject("utilization", gpu=0, value="7")
        assert (await silicon.sample(within_s=5))[0].utilization_percent == 7
        silicon.inject("recover", gpu=0, value=None)
        silicon.hold({})
        assert (await silicon.sample(within_s=5))[0].utilization_percent == 0
    finally:
        await silicon.close()


async def test_mig_devices_have_memory_and_no_load_of_their_own(tmp_path: Path) -> None:
    silicon = SimulatedSilicon(tmp_path, "h100x8")
    try:
        for fault, value in (("mig-mode", "on"), ("mig-create", "3g.40gb"), ("mig-create", "1g.10gb")):
            silicon.inject(fault, gpu=0, value=value)
        gpu, first, second, *_ = await silicon.sample(within_s=5)
        assert (gpu.mig, gpu.utilization_percent) == (None, None)
        assert first.gpu == second.gpu == gpu.gpu
        silicon.hold({str(second.mig): ("somebody",)})
        samples = {sample.mig: sample for sample in await silicon.sample(within_s=5)}
        used = {mig: sample.memory_used_bytes or 0 for mig, sample in samples.items()}
        assert used[second.mig] > used[first.mig]
        assert samples[first.mig].utilization_percent is None
    finally:
        await silicon.close()

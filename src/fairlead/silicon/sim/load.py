"""Gives held simulated GPUs believable readings: load, memory, power, temperature and clocks over time.

Each holder of a GPU (a container) runs one of three workloads, chosen by its name, so that the same container behaves
the same after a restart. Readings are a function of the holders and the clock: nothing runs in between.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.silicon.sim import profile

_IDLE_C, _FULL_LOAD_C = 34, 38
"""Degrees when idle, and how many more at full load."""
IDLE_MEMORY_MIB: Final = 4
_IDLE_CLOCK: Final = 0.18
"""Share of the highest clock at which an idle GPU's multiprocessors run."""
_MOST_MEMORY: Final = 0.97


@frozen
class Workload:
    """How one kind of program uses a GPU: a wave between two loads, and a phase of another load in each period."""

    name: str
    low_percent: float
    high_percent: float
    wave_s: float
    phase_percent: float
    """Load during the phase that each period begins with."""
    phase_s: float
    period_s: float
    memory: float
    """Share of the GPU's memory."""

    def utilization(self, at_s: float) -> float:
        """Return the load in percent at a time."""
        if at_s % self.period_s < self.phase_s:
            return self.phase_percent
        middle, half = (self.high_percent + self.low_percent) / 2, (self.high_percent - self.low_percent) / 2
        return middle + half * math.sin(2 * math.pi * at_s / self.wave_s)


TRAINING: Final = Workload(
    name="training",
    low_percent=91,
    high_percent=99,
    wave_s=23,
    phase_percent=6,  # a checkpoint is written
    phase_s=12,
    period_s=300,
    memory=0.82,
)
INFERENCE: Final = Workload(
    name="inference",
    low_percent=22,
    high_percent=74,
    wave_s=97,
    phase_percent=88,  # a burst of requests
    phase_s=9,
    period_s=140,
    memory=0.55,
)
NOTEBOOK: Final = Workload(
    name="notebook",
    low_percent=0,
    high_percent=2,
    wave_s=11,
    phase_percent=63,  # a user runs a cell
    phase_s=25,
    period_s=180,
    memory=0.12,
)
WORKLOADS: Final = (TRAINING, INFERENCE, NOTEBOOK)


@frozen
class Readings:
    """What one simulated GPU's sensors say."""

    utilization_percent: int
    memory_used_mib: int
    power_mw: int
    temperature_c: int
    sm_clock_mhz: int
    memory_clock_mhz: int


def workload_of(holder: str) -> Workload:
    """Return the workload that a holder runs, by its name."""
    return WORKLOADS[zlib.crc32(holder.encode()) % len(WORKLOADS)]


def read(
    part: profile.Part, holders: Sequence[str], at_s: float, *, utilization_percent: int | None = None
) -> Readings:
    """Return the readings of a GPU that some holders share, at a time in seconds.

    Args:    utilization_percent: in place of what the holders' workloads make of it.
    """
    running = [(workload_of(holder), zlib.crc32(holder.encode()) % 97) for holder in holders]
    made = sum(one.utilization(at_s + offset) for one, offset in running)
    share = min(100.0, made if utilization_percent is None else utilization_percent) / 100
    return Readings(
        utilization_percent=round(share * 100),
        memory_used_mib=memory_used_mib(part.memory_mib, holders),
        power_mw=round(part.idle_power_mw + share * (part.full_power_mw - part.idle_power_mw)),
        temperature_c=round(_IDLE_C + share * _FULL_LOAD_C),
        sm_clock_mhz=round(part.sm_clock_mhz * (1 if running or share else _IDLE_CLOCK)),
        memory_clock_mhz=part.memory_clock_mhz,
    )


def memory_used_mib(total_mib: int, holders: Sequence[str]) -> int:
    """Return how much of a GPU's or MIG device's memory some holders use."""
    taken = min(_MOST_MEMORY, sum(workload_of(holder).memory for holder in holders))
    return IDLE_MEMORY_MIB + round(taken * (total_mib - IDLE_MEMORY_MIB))

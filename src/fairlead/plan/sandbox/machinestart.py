"""Divides the boot of a pod's virtual machine into parts, from what its node saw of it. Pure.

The host sees when the emulator's process was made, when the guest executed its first instruction, and when the guest's
driver took its first interrupt vectors of a GPU. When the guest's kernel and its agent began, the guest says: Kata's
shim passes the agent's metrics on. They are a guest's words, so a time that cannot be is left out.

Source: kata-containers docs/design/kata-2-0-metrics.md (`kata_agent_process_start_time_seconds` and
`kata_guest_cpu_time`); proc_stat(5), whose times are in hundredths of a second (USER_HZ).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

REASON: Final = "MachineStarted"
"""Of the trace's step whose facts are a `MachineTimes`."""
BOOT: Final = ("engine", "QEMU", "firmware", "kernel and init", "driver")
CONTAINER: Final = "container"
NAMES: Final = (*BOOT, CONTAINER)
"""Parts of a machine's start, in order: engine and shim, until the emulator began; the emulator, until the guest ran;
firmware; kernel and init, until the guest's agent listened; of that the driver, from its first use of a GPU on; then
the container, until its process was let go."""
_USER_HZ: Final = 100.0
_LONGEST: Final = 1 << 20
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]{0,99})(?:\{([^{}]{0,500})\})?\s+(\S{1,40})(?:\s+\d{1,20})?")
_LABEL: Final = re.compile(r'([a-z_]{1,40})="([^"\\]{0,100})"')
_AGENT_BEGAN: Final = "kata_agent_process_start_time_seconds"
_PROCESSOR: Final = "kata_guest_cpu_time"
_COUNTED_TWICE: Final = frozenset({"guest", "guest_nice"})
"""Items of /proc/stat that `user` and `nice` contain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimes:
    """When a machine reached the parts of its start, Unix seconds of the host's clock; None: it was not seen."""

    began_at: float
    """The emulator's process was made."""
    runs_at: float | None = None
    """The guest executed its first instruction."""
    kernel_at: float | None = None
    """The guest's kernel began."""
    driver_at: float | None = None
    """The guest first took interrupt vectors of a GPU."""
    agent_at: float | None = None
    """The guest's agent began."""

    def facts(self) -> dict[str, object]:
        """Return the times that were seen, as a trace's step keeps them."""
        return {name: round(at, 3) for name, at in asdict(self).items() if at is not None}


def of_facts(facts: Mapping[str, object]) -> MachineTimes | None:
    """Return the times in a step's facts; None: there is no usable one."""
    found = {name: at for name in MachineTimes.__slots__ if (at := _finite(facts.get(name))) is not None}
    return MachineTimes(**found) if "began_at" in found else None


def parts(times: MachineTimes, begin: float, end: float) -> Iterator[tuple[str, float, float]]:
    """Yield name, begin and end of each part between two moments, each from the end of the one before.

    A part whose end was not seen, or lies outside, is left out; its time is in the one after it.
    """
    has_driver = times.driver_at is not None
    ends = (
        times.began_at,
        times.runs_at,
        times.kernel_at,
        times.driver_at if has_driver else times.agent_at,
        times.agent_at if has_driver else None,
        end,
    )
    reached = begin
    for name, at in zip(NAMES, ends, strict=True):
        if at is not None and reached <= at <= end:
            yield name, reached, at
            reached = at


def parse_guest(text: str, *, asked_at: float, began_at: float) -> tuple[float | None, float | None]:
    """Return when a guest's kernel and its agent began, from the metrics of Kata's shim; None: not said, or impossible.

    An agent that says an impossible time (a guest's clock may be wrong at first) has begun by now: then that counts.

    Args:   asked_at: when the metrics were read.   began_at: when the emulator was made; nothing in the guest is older.
    """
    ran, agent = 0.0, None
    for line in text[:_LONGEST].splitlines():
        found = _SAMPLE.fullmatch(line.strip())
        value = _finite(found[3]) if found is not None else None
        if found is None or value is None:
            continue
        labels = dict(_LABEL.findall(found[2] or ""))
        if found[1] == _AGENT_BEGAN:
            agent = value
        elif found[1] == _PROCESSOR and labels.get("cpu") == "0" and labels.get("item") not in _COUNTED_TWICE:
            ran += max(0.0, value) / _USER_HZ
    kernel = asked_at - ran if ran else None
    if kernel is not None and not began_at <= kernel:
        kernel = None
    if agent is not None and not (kernel or began_at) <= agent <= asked_at:
        agent = asked_at
    return kernel, agent


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None

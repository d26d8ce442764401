"""Divides the start of a container into phases whose times add up to all of it, and judges them by objectives. Pure.

From the request to the process: `admission` (judged and stored), `slot` (waited for its place, and given its devices),
`pull` (its image was fetched), `sandbox` (made and let go: namespaces, gVisor's kernel or a machine's boot), and from
the process on `first output`. A phase of which nothing is recorded is left out; its time is in the one after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.container.step import TraceStep
from fairlead.plan.pod import podstate
from fairlead.wire.kubernetes import core

ADMISSION, SLOT, PULL, SANDBOX, OUTPUT = NAMES = ("admission", "slot", "pull", "sandbox", "first output")
FIRST_OUTPUT: Final = "FirstOutput"
PULLED: Final = "ImagePulled"
SLOW: Final = "StartSlow"
_ENDS: Final = (
    (SLOT, ("Scheduled", "DevicesChosen", "DevicesAllocated")),
    (PULL, (PULLED,)),
    (SANDBOX, ("ContainerStarted",)),
    (OUTPUT, (FIRST_OUTPUT,)),
)
"""The steps with which each phase ends, its last one."""
_OBJECTIVE: Final = re.compile(r"(\d{1,3})=(\d{1,6}(?:\.\d{1,3})?)(s|m|h)?")
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a start. Times are Unix seconds."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.end - self.begin


def phases(steps: Sequence[TraceStep]) -> tuple[Phase, ...]:
    """Return the phases of a container's first start, in order, each from the end of the one before.

    Args: steps: what layers recorded of the pod; without its acceptance there are none.
    """
    accepted = next((step for step in steps if step.layer == "api" and step.reason == "Accepted"), None)
    if accepted is None:
        return ()
    began = accepted.at - (accepted.duration_s or 0.0)
    found, reached = [Phase(name=ADMISSION, begin=began, end=accepted.at)], accepted.at
    started = min((step.at for step in steps if step.reason == "ContainerStarted"), default=None)
    for name, reasons in _ENDS:
        # What a later run did is no part of this start.
        latest = None if name == OUTPUT else started
        times = [step.at for step in steps if step.reason in reasons and (latest is None or step.at <= latest)]
        if not times:
            continue
        # Of a restart each step is there again: the process was let go, and wrote, once first.
        end = max(reached, min(times) if name in {SANDBOX, OUTPUT} else max(times))
        found.append(Phase(name=name, begin=reached, end=end))
        reached = end
    return tuple(found)


def is_whole(found: Iterable[Phase]) -> bool:
    """Return whether the process was let go."""
    return any(one.name == SANDBOX for one in found)


def size(pod: core.Pod) -> int:
    """Return how many devices a pod has, as it counts for objectives and figures: at most eight."""
    return min(_MOST, sum(podstate.asked_devices(pod).values()))


def parse_objectives(text: str) -> dict[int, float]:
    """Return the seconds that a start may take, by number of GPUs: `0=10s,1=60s,8=20m`.

    Raises: Invalid (`ObjectiveInvalid`).
    """
    found: dict[int, float] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        if (one := _OBJECTIVE.fullmatch(word)) is None or int(one[1]) in found:
            message = (
                f'control.start_objectives: "{errors.readable(word[:80])}" is not of the form GPUS=TIME, once each'
            )
            raise errors.Invalid(message, reason="ObjectiveInvalid", hint="for example 0=10s,1=60s,8=20m")
        found[int(one[1])] = float(one[2]) * _UNITS[one[3] or ""]
    return found


def objective(objectives: dict[int, float], gpus: int) -> float | None:
    """Return the seconds for a size: those of the largest size that is not above it; None: there is none."""
    fitting = [one for one in objectives if one <= gpus]
    return objectives[max(fitting)] if fitting else None


def breach(found: Sequence[Phase], limit_s: float) -> tuple[str, Phase] | None:
    """Return what is said of a start that took too long, and the phase that took longest; None: it did not.

    Waiting for a place is no fault of the start: the time is counted from the place on, and without the first output.
    """
    counted = [one for one in found if one.name in {ADMISSION, PULL, SANDBOX}]
    total = sum(one.seconds for one in counted)
    if not counted or total <= limit_s:
        return None
    longest = max(counted, key=lambda one: one.seconds)
    share = f"{longest.name} took {longest.seconds:.1f} s of it"
    return f"the start took {total:.1f} s, its objective is {limit_s:g} s: {share}", longest

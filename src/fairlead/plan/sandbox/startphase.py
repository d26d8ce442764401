"""Divides the start of a container into phases whose times add up to all of it, and judges them by objectives. Pure.

From the request to the process: `admission` (judged and stored), `slot` (waited for its place, and given its devices),
`pull` (its image was fetched), `sandbox` (made and let go: namespaces, gVisor's kernel or a machine's boot), and from
the process on `first output`. A phase of which nothing is recorded is left out; its time is in the one after it. A
machine's boot is divided further, as far as its node saw it (`machinestart`). `activation` is the wait for the NVLink
partition of several GPUs. A kubelet that is not ours makes the sandbox before it pulls: there a pull is a part of
`sandbox`, as long as the kubelet's event says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors, telemetry
from fairlead.model.container.step import TraceStep
from fairlead.plan.pod import podstate
from fairlead.plan.sandbox import machinestart
from fairlead.wire.kubernetes import core

ADMISSION, SLOT, ACTIVATION, PULL, SANDBOX, OUTPUT = NAMES = (
    *("admission", "slot", "activation", "pull", "sandbox", "first output"),
)
POD: Final = "pod"
"""Part of a sandbox's making, until its kubelet began to pull: volumes, network, and what is not a machine's boot."""
FIRST_OUTPUT: Final = "FirstOutput"
LATEST_OUTPUT_S: Final = 3600.0
"""A process that has written nothing for so long is not looked at again."""
PULLED: Final = "ImagePulled"
SLOW: Final = "StartSlow"
_ENDS: Final = (
    (SLOT, ("Scheduled", "DevicesChosen", "DevicesAllocated")),
    (ACTIVATION, ("PartitionActivated",)),
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
    parts: tuple[Phase, ...] = ()
    """What it is made of, each from the end of the one before; none where nothing more is known."""

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
        times = [
            step.at
            for step in steps
            if step.reason in reasons and (latest is None or step.at <= latest) and not _is_foreign_pull(step)
        ]
        if not times:
            continue
        # Of a restart each step is there again: the process was let go, and wrote, once first.
        end = max(reached, min(times) if name in {SANDBOX, OUTPUT} else max(times))
        found.append(Phase(name=name, begin=reached, end=end, parts=_parts(name, steps, reached, end)))
        reached = end
    return tuple(found)


def _is_foreign_pull(step: TraceStep) -> bool:
    return step.reason == PULLED and bool(step.teller)


def _parts(name: str, steps: Sequence[TraceStep], begin: float, end: float) -> tuple[Phase, ...]:
    """Return the parts of a sandbox: of a machine's boot, and pulls within it; none where neither was seen."""
    if name != SANDBOX:
        return ()
    said = next((step for step in steps if step.reason == machinestart.REASON and not step.teller), None)
    times = machinestart.of_facts(said.facts) if said is not None else None
    booted = list(machinestart.parts(times, begin, end)) if times is not None else []
    pulls = sorted((step for step in steps if _is_foreign_pull(step) and step.at <= end), key=lambda step: step.at)
    # The last part of a boot is the container's, which a pull divides.
    since = booted[-1][1] if booted else begin
    # Where all that is known is dated to the second, a pull may not fit: then it is not told.
    if pulls and sum(step.duration_s or 0.0 for step in pulls) <= end - since:
        booted[-1:] = _with_pulls(pulls, since, end)
    return tuple(Phase(name=part, begin=at, end=until) for part, at, until in booted)


def _with_pulls(pulls: Iterable[TraceStep], begin: float, end: float) -> Iterator[tuple[str, float, float]]:
    """Yield the parts from a sandbox's making on: `pod` up to the first pull, each pull, then `container`.

    A kubelet dates a pull's end to the second, so each is put at that second's beginning, or behind what came before.
    """
    reached, name = begin, POD
    for step in pulls:
        took_s = max(0.0, step.duration_s or 0.0)
        until = min(end, max(step.at, reached + took_s))
        since = max(reached, until - took_s)
        if since > reached:
            yield name, reached, since
        yield PULL, since, until
        reached, name = until, machinestart.CONTAINER
    yield machinestart.CONTAINER, reached, end


def first_output(pod: core.Pod, *, started: float, at: float) -> TraceStep:
    """Return the step of a first output. Args: started, at: of the process and of what it wrote, Unix seconds."""
    return TraceStep(
        layer="process",
        reason=FIRST_OUTPUT,
        message="wrote its first line",
        at=max(at, started),
        duration_s=max(0.0, at - started),
        facts={"container": pod.spec.containers[0].name},
    )


def is_whole(found: Iterable[Phase]) -> bool:
    """Return whether the process was let go."""
    return any(one.name == SANDBOX for one in found)


def is_machine(one: Phase) -> bool:
    """Return whether a phase's parts are those of a virtual machine's boot."""
    return any(part.name in machinestart.BOOT for part in one.parts)


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
    counted = [one for one in found if one.name in {ADMISSION, ACTIVATION, PULL, SANDBOX}]
    total = sum(one.seconds for one in counted)
    if not counted or total <= limit_s:
        return None
    longest = max((part for one in counted for part in one.parts or (one,)), key=lambda one: one.seconds)
    share = f"{longest.name} took {longest.seconds:.1f} s of it"
    return f"the start took {total:.1f} s, its objective is {limit_s:g} s: {share}", longest


def judge(found: Sequence[Phase], objectives: dict[int, float], gpus: int, *, at: float) -> TraceStep | None:
    """Return the step that says that a start of so many GPUs broke its objective; None: it did not. Args: at: now."""
    limit_s = objective(objectives, gpus)
    told = None if limit_s is None else breach(found, limit_s)
    if told is None:
        return None
    spent = {one.name: round(one.seconds, 3) for one in found}
    parts: dict[str, float] = {}
    for part in (part for one in found for part in one.parts):
        parts[part.name] = round(parts.get(part.name, 0.0) + part.seconds, 3)
    facts = {"phases": spent, "objective_s": limit_s, "phase": told[1].name, **({"parts": parts} if parts else {})}
    return TraceStep(layer="process", reason=SLOW, message=told[0], at=at, facts=facts, is_warning=True)


def observe(found: Iterable[Phase], gpus: int, meter: telemetry.Meter) -> None:
    """Give a start's phases to the figures; the first output, which is known later, is given by who reads it."""
    for one in found:
        if one.name != OUTPUT:
            meter.observe(telemetry.START_PHASE, one.seconds, one.name, str(gpus))
        if is_machine(one):
            for part in one.parts:
                meter.observe(telemetry.MACHINE_PART, part.seconds, part.name, str(gpus))

"""Orders the steps that a container's layers recorded, and names what is missing as missing.

Pure. The stages of a trace are a table; a recorded step is matched to its stage by layer and reason, a step of no
known stage is kept where its time puts it, and a stage without a step becomes an entry that says so. Nothing is ever
inferred: an entry either carries the step that a layer recorded, or is empty. Reading the steps is left to the caller,
drawing them to `cli.container.trace`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.container import asked
from fairlead.model.container.step import TraceStep
from fairlead.plan.pod import podstate
from fairlead.wire.kubernetes import core, meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One place every trace should pass."""

    key: str
    layer: str
    title: str
    reasons: tuple[str, ...]
    """Reasons of the steps that belong here."""
    is_node: bool = False
    """Recorded about the node, before the pod came."""
    needs_devices: bool = False
    """Skipped by pods that ask for no device."""
    is_optional: bool = False
    """Not every container passes it: where nothing is recorded, nothing is missing."""


STAGES: Final = (
    Stage(
        key="found",
        layer="silicon",
        title="GPUs and driver found",
        reasons=("GPUsFound",),
        is_node=True,
        needs_devices=True,
    ),
    Stage(
        key="advertised",
        layer="deviceplugin",
        title="devices advertised",
        reasons=("DevicesAdvertised",),
        is_node=True,
        needs_devices=True,
    ),
    Stage(key="accepted", layer="api", title="request accepted", reasons=("Accepted",)),
    Stage(key="scheduled", layer="scheduler", title="node chosen", reasons=("Scheduled", "FailedScheduling")),
    Stage(key="chosen", layer="kubelet", title="devices chosen", reasons=("DevicesChosen",), needs_devices=True),
    Stage(
        key="allocated",
        layer="deviceplugin",
        title="Allocate answered",
        reasons=("DevicesAllocated",),
        needs_devices=True,
    ),
    Stage(
        key="activated",
        layer="deviceplugin",
        title="NVLink partition activated",
        reasons=("PartitionActivated",),
        is_optional=True,
    ),
    Stage(key="edits", layer="cdi", title="CDI edits resolved", reasons=("EditsResolved",), needs_devices=True),
    Stage(key="pulled", layer="engine", title="image fetched", reasons=("ImagePulled",), is_optional=True),
    Stage(key="created", layer="engine", title="container created", reasons=("ContainerCreated",)),
    Stage(
        key="machine",
        layer="engine",
        title="virtual machine started",
        reasons=("MachineStarted",),
        is_optional=True,
    ),
    Stage(key="isolated", layer="kernel", title="isolation read back", reasons=("IsolationRead",)),
    Stage(key="started", layer="engine", title="container started", reasons=("ContainerStarted",)),
    Stage(key="wrote", layer="process", title="first output", reasons=("FirstOutput",), is_optional=True),
    Stage(key="ended", layer="process", title="process ended", reasons=("ContainerEnded",)),
)
_RANK: Final = {(stage.layer, reason): rank for rank, stage in enumerate(STAGES) for reason in stage.reasons}
_BEFORE_THE_NODE: Final = frozenset({"api", "scheduler"})


class Record(enum.Enum):
    """Whether a layer left its record."""

    RECORDED = "recorded"
    MISSING = "not recorded"
    """The container went past this stage, or ended, and no layer recorded it."""
    AHEAD = "not yet"
    """The container has not come this far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a trace."""

    stage: str
    """Key of the stage; empty for a step of no known stage."""
    layer: str
    title: str
    record: Record
    step: TraceStep | None = None
    offset_s: float | None = None
    """Seconds from the pod's first step to this one's end; negative for what the node did before."""
    count: int = 1
    """How often the step was recorded in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All entries in order, and when the pod's first step was taken (Unix seconds; None where there is none)."""

    entries: tuple[Entry, ...]
    started_at: float | None
    is_final: bool


def order_trace(
    pod: Sequence[TraceStep], node: Sequence[TraceStep], *, is_final: bool, resources: Collection[str]
) -> Trace:
    """Put a pod's steps and those of its node in order.

    Args:    pod: steps of the pod, any order.   node: steps of the node it runs on; empty while it has none.
             is_final: the pod has ended, so that nothing more is to come.
             resources: of the devices that the pod asks for; without any the stages of devices are left out, and a
             node's step about another resource is not in its trace.
    """
    has_devices = bool(resources)
    causes = [step.at for step in pod if step.layer in _BEFORE_THE_NODE]
    at = {id(step): _taken_at(step, causes) for step in pod}
    begun = min((at[id(step)] for step in pod if step.layer not in _BEFORE_THE_NODE), default=math.inf)

    def turn(step: TraceStep) -> tuple[float, int]:
        # A scheduler says that it chose after the binding is written; a quick node has begun by then.
        taken = at[id(step)]
        return (min(taken, begun) if step.reason == "Scheduled" else taken, _rank(step))

    steps = sorted(pod, key=turn)
    started_at = steps[0].at if steps else None
    front = list(_before(node, started_at, resources)) if has_devices else []
    wanted = [
        rank for rank, stage in enumerate(STAGES) if (has_devices or not stage.needs_devices) and not stage.is_optional
    ]
    entries = [_recorded(step, count, started_at, at.get(id(step), step.at)) for step, count in _runs([*front, *steps])]
    return Trace(
        entries=tuple(_with_gaps(entries, wanted, is_final=is_final)), started_at=started_at, is_final=is_final
    )


def _taken_at(step: TraceStep, causes: Sequence[float]) -> float:
    """Return when a step was taken at the earliest: one that a node reports in whole seconds, after its causes.

    It was taken at any time within its second; at its beginning it would stand before what led to it.
    """
    if step.layer in _BEFORE_THE_NODE or not step.at.is_integer():
        return step.at
    return max((cause for cause in causes if step.at <= cause < step.at + 1), default=step.at)


def accepted(pod: core.Pod, *, at: float, duration_s: float | None = None) -> TraceStep:
    """Return the API server's step: which devices the pod asks for. Args: at: Unix time; duration_s: where known."""
    resources = podstate.asked_devices(pod)
    claims = (one.resource_claim_name or one.name for one in pod.spec.resource_claims)
    devices = pod.spec.machine.devices if pod.spec.machine is not None else ()
    message = f"accepted, asking for {asked.in_words(resources, claims, devices)}"
    facts = {
        "images": [item.image for item in pod.spec.containers],
        "resources": resources,
        "scheduler": pod.spec.scheduler_name,
    }
    return TraceStep(layer="api", reason="Accepted", message=message, at=at, duration_s=duration_s, facts=facts)


def with_acceptance(steps: Sequence[TraceStep], pod: core.Pod) -> tuple[TraceStep, ...]:
    """Return the steps with that of the API server that accepted the pod, where no recorder wrote one.

    A pod that did not come through our API has its acceptance in the object itself, to the second: it is put at that
    second's end, or at the pod's first step within it.
    """
    created = meta.timestamp(pod.metadata.creation_timestamp)
    if created is None or any(step.layer == "api" and step.reason == "Accepted" for step in steps):
        return tuple(steps)
    at = min((created + 1, *(step.at for step in steps if step.at >= created)))
    return (accepted(pod, at=at), *steps)


def with_statuses(steps: Sequence[TraceStep], pod: core.Pod) -> tuple[TraceStep, ...]:
    """Return the steps with what the pod's kubelet says of starts and ends, for containers that no step mentions.

    No component records steps of pods that ask for no device, or on a node without our agent; and events are forgotten
    while the object stays. A kubelet's own word is in the status: the newest run and the end of the one before, each to
    the second.
    """
    told = {(step.reason, step.facts.get("container")) for step in steps}
    found = (step for item in pod.status.container_statuses for step in _runs_of(item))
    return (*steps, *(step for step in found if (step.reason, step.facts["container"]) not in told))


def _runs_of(item: core.ContainerStatus) -> Iterator[TraceStep]:
    for past in (item.last_state.terminated, item.state.terminated):
        if past is not None:
            yield from _stated(item.name, "engine", "ContainerStarted", "started", past.started_at)
            said = f"ended with {past.exit_code}" + (f" ({past.reason})" if past.reason else "")
            yield from _stated(item.name, "process", "ContainerEnded", said, past.finished_at, exit_code=past.exit_code)
    if item.state.running is not None:
        yield from _stated(item.name, "engine", "ContainerStarted", "started", item.state.running.started_at)


def _stated(container: str, layer: str, reason: str, said: str, at: str | None, **facts: object) -> Iterator[TraceStep]:
    when = meta.timestamp(at)
    if when is not None:
        message = f"{container} {said}, its kubelet says"
        yield TraceStep(layer=layer, reason=reason, message=message, at=when, facts={"container": container, **facts})


def find_why(steps: Iterable[TraceStep]) -> TraceStep | None:
    """Return the step that explains where a pod stands: its latest warning or scheduler's step, None without one."""
    telling = [step for step in steps if step.is_warning or step.layer == "scheduler"]
    return max(telling, key=lambda step: step.at, default=None)


def _rank(step: TraceStep) -> int:
    return _RANK.get((step.layer, step.reason), len(STAGES))


def _before(node: Sequence[TraceStep], started_at: float | None, resources: Collection[str]) -> Iterator[TraceStep]:
    """Yield the latest step before the pod's first of each stage of the node: of each resource, where it names one."""
    for rank, stage in enumerate(STAGES):
        latest: dict[object, TraceStep] = {}
        for step in sorted(node, key=lambda one: one.at):
            about = step.facts.get("resource")
            is_past = started_at is None or step.at <= started_at
            if stage.is_node and _rank(step) == rank and is_past and (about is None or about in resources):
                latest[about] = step
        yield from latest.values()


def _runs(steps: Sequence[TraceStep]) -> Iterator[tuple[TraceStep, int]]:
    """Fold neighbours that say the same into the last of them and their number."""
    count = 0
    for index, step in enumerate(steps):
        count += 1
        following = steps[index + 1] if index + 1 < len(steps) else None
        if following is None or _saying(following) != _saying(step):
            yield step, count
            count = 0


def _saying(step: TraceStep) -> tuple[str, str, str, object]:
    return (step.layer, step.reason, step.message, step.facts.get("container"))


def _recorded(step: TraceStep, count: int, started_at: float | None, at: float) -> Entry:
    rank = _rank(step)
    known = STAGES[rank] if rank < len(STAGES) else None
    return Entry(
        stage=known.key if known else "",
        layer=step.layer,
        title=known.title if known else step.reason,
        record=Record.RECORDED,
        step=step,
        offset_s=None if started_at is None else at - started_at,
        count=count,
    )


def _with_gaps(entries: Sequence[Entry], wanted: Sequence[int], *, is_final: bool) -> list[Entry]:
    """Insert an empty entry for each wanted stage without a step, where the table's order puts it."""
    ranks = {stage.key: rank for rank, stage in enumerate(STAGES)}
    known = {entry.stage for entry in entries}
    furthest = max((ranks[key] for key in known if key), default=-1)
    result = list(entries)
    for rank in wanted:
        stage = STAGES[rank]
        if stage.key in known:
            continue
        later = (index for index, entry in enumerate(result) if entry.stage and ranks[entry.stage] > rank)
        record = Record.MISSING if is_final or rank < furthest else Record.AHEAD
        gap = Entry(stage=stage.key, layer=stage.layer, title=stage.title, record=record)
        result.insert(next(later, len(result)), gap)
    return result

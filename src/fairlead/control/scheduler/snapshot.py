"""Saves what the scheduler decides from to a file, and replays the decisions from such a file, offline.

A snapshot has the objects of `KINDS` (nodes, namespaces, GPUs, queues, groups, disruption budgets, claims, selectors,
pods) as the API server listed them, less what no decision reads: commands, environment and volume mounts of containers,
and most annotations of pods.
`replay` runs the live `Scheduler` over the file: it is fed as by its watches, and its bindings and events are collected
instead of written. Two replays of one file give the same result.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.control.scheduler import defragment
from fairlead.control.scheduler.controller import Scheduler
from fairlead.model.container.step import TraceStep
from fairlead.plan.schedule import constraints
from fairlead.plan.schedule.fairshare import ledger
from fairlead.plan.schedule.group import domain, membership
from fairlead.plan.schedule.preempt import movable
from fairlead.plan.schedule.rankings import Rankings
from fairlead.settings import ControlSettings
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.wire.kubernetes import api, core, meta, names
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.scheduling import podgroup, policy, queue, selecting
from fairlead.wire.text import typedjson

KIND: Final = "SchedulerSnapshot"
API_VERSION: Final = "fairlead.dev/v1alpha1"
KINDS: Final[tuple[type[Any], ...]] = (
    core.Node,
    core.Namespace,
    GPUDevice,
    queue.Queue,
    *podgroup.KINDS,
    policy.PodDisruptionBudget,
    *constraints.KINDS,
    *selecting.KINDS,
    core.Pod,
)
"""Pods last: their groups and queues are known by then."""
LARGEST_BYTES: Final = 1 << 30
"""Of a file that is read; 10,000 nodes and 100,000 pods are some 150 MB."""
_ANNOTATIONS: Final = frozenset(
    {*membership.ANNOTATIONS, *movable.ANNOTATIONS, *domain.ANNOTATIONS, *ledger.QUEUE_KEYS, names.MIRROR}
)
"""Annotations of a pod that a decision reads."""
_OPTIONAL: Final = frozenset(KINDS) - {core.Node, core.Pod}
_BY_NAME: Final[dict[tuple[str, str], Any]] = {(kind.API_VERSION, kind.KIND): kind for kind in KINDS}


class Snapshot(meta.Wire, frozen=True, kw_only=True):
    """The file."""

    api_version: str = API_VERSION
    kind: str = KIND
    at: str = ""
    """When it was taken."""
    policy: str = ""
    """The policy that was in force."""
    pod_policies: str = ""
    """The setting `control.pod_policies` that was in force."""
    scheduler_name: str = "fairlead"
    """Whose pods are decided on."""
    items: tuple[dict[str, Any], ...] = ()
    """Objects, each with its apiVersion and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on one pod that waited."""

    namespace: str
    name: str
    node: str
    """Empty: none."""
    step: TraceStep | None
    """The step that was recorded; None: it was not judged, as a pod with scheduling gates."""


async def take(store: Store, control: ControlSettings, at: str) -> Snapshot:
    """Return what a store has now; kinds that it does not serve or show are left out. Raises: as `Store.list`."""
    found = list[dict[str, Any]]()
    for kind in KINDS:
        try:
            listed = (await store.list(kind)).items
        except (errors.NotFound, errors.Denied, errors.Invalid):
            if kind not in _OPTIONAL:
                raise
            continue
        found += [_document(item) for item in listed]
    return Snapshot(
        at=at,
        policy=control.policy,
        pod_policies=control.pod_policies,
        scheduler_name=control.scheduler_name,
        items=tuple(found),
    )


def _document(item: Any) -> dict[str, Any]:
    kept = _bare_pod(item) if isinstance(item, core.Pod) else item
    body: dict[str, Any] = msgspec.json.decode(meta.encode(kept))
    return {**body, "apiVersion": item.API_VERSION, "kind": item.KIND}


def _bare_pod(pod: core.Pod) -> core.Pod:
    """Return a pod without what no decision reads, which may be secret."""
    about, spec = pod.metadata, pod.spec
    annotations = {key: value for key, value in about.annotations.items() if key in _ANNOTATIONS}
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(about, annotations=annotations),
        spec=msgspec.structs.replace(
            spec,
            containers=tuple(_bare(one) for one in spec.containers),
            init_containers=tuple(_bare(one) for one in spec.init_containers),
        ),
    )


def _bare(container: core.Container) -> core.Container:
    return core.Container(
        name=container.name,
        image=container.image,
        resources=container.resources,
        ports=container.ports,
        restart_policy=container.restart_policy,
    )


def emit(snapshot: Snapshot) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=1) + b"\n"


def parse(body: bytes) -> Snapshot:
    """Return a snapshot. Raises: Invalid: it is none, or one of its objects cannot be read."""
    hint = "make one with: fairlead scheduler --snapshot FILE"
    try:
        found = typedjson.decode(body, type=Snapshot)
    except msgspec.MsgspecError as error:
        raise errors.Invalid(f"not a snapshot: {error}", reason="SnapshotInvalid", hint=hint) from error
    if (found.api_version, found.kind) != (API_VERSION, KIND):
        message = f"not a snapshot: {found.api_version!r} {found.kind!r} instead of {API_VERSION} {KIND}"
        raise errors.Invalid(message, reason="SnapshotInvalid", hint=hint)
    return found


def _objects(snapshot: Snapshot) -> dict[type[Any], list[Any]]:
    """Return the objects by kind. Raises: Invalid."""
    found: dict[type[Any], list[Any]] = {kind: [] for kind in KINDS}
    for number, item in enumerate(snapshot.items):
        kind = _BY_NAME.get((str(item.get("apiVersion")), str(item.get("kind"))))
        if kind is None:
            message = f"item {number} of the snapshot is a {item.get('kind')!r} of {item.get('apiVersion')!r}"
            hint = f"known are {', '.join(sorted({one.KIND for one in KINDS}))}"
            raise errors.Invalid(message, reason="SnapshotInvalid", hint=hint)
        try:
            one = api.object_decoder(kind).decode(msgspec.json.encode(item))
        except msgspec.MsgspecError as error:
            message = f"item {number} of the snapshot, a {kind.KIND}, cannot be read: {error}"
            raise errors.Invalid(message, reason="SnapshotInvalid") from error
        found[kind].append(_unsaid(one) if isinstance(one, core.Pod) else one)
    return found


class _Sink(MemoryStore):
    """Collects the events that the scheduler writes; nothing is stored, since no watch would report it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, TraceStep] = {}
        """By uid: the last step of a pod."""

    async def update_status(self, item: Any) -> Any:
        return item

    async def create(self, item: Any) -> Any:
        if isinstance(item, core.Event) and (step := tracerecorder.parse_step(item)) is not None:
            self.steps[item.involved_object.uid] = step
        return item


class _BindingSink:
    """Catches bindings; nothing is evicted."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}

    async def bind(self, pod: core.Pod, node: str) -> None:
        self.nodes[pod.metadata.uid] = node

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        """Evict nothing: the message of the preempting pod names the victims."""


async def replay(
    snapshot: Snapshot, control: ControlSettings, rankings: Rankings | None = None
) -> tuple[Decision, ...]:
    """Return what the scheduler decides on each of its waiting pods, in the order of namespace and name.

    Args:    rankings: what judges nodes; None: node by node.
    Raises:  Invalid: an object cannot be read.
    """
    objects, sink, catch = _objects(snapshot), _Sink(), _BindingSink()
    await _decided(objects, Scheduler(sink, catch, control, rankings=rankings, date=_date(snapshot)))
    waiting = [pod for pod in objects[core.Pod] if _is_waiting(pod, control.scheduler_name)]
    return tuple(
        Decision(
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=catch.nodes.get(pod.metadata.uid, ""),
            step=sink.steps.get(pod.metadata.uid),
        )
        for pod in sorted(waiting, key=lambda one: (one.metadata.namespace, one.metadata.name))
    )


async def plan_moves(snapshot: Snapshot, control: ControlSettings, rankings: Rankings | None = None) -> movable.Plan:
    """Return which pods would move so that larger ones fit, after every pod that waits was decided on.

    Raises:  Invalid: an object cannot be read.
    """
    still = dataclasses.replace(control, defragment=defragment.OFF)
    scheduler = Scheduler(_Sink(), _BindingSink(), still, rankings=rankings, date=_date(snapshot))
    await _decided(_objects(snapshot), scheduler)
    return scheduler.plan_moves()


async def _decided(objects: Mapping[type[Any], Iterable[Any]], scheduler: Scheduler) -> None:
    """Feed a scheduler as its watches would, and have it decide on every pod."""
    watches = {watch.kind: watch for watch in scheduler.watches()}
    keys = dict[str, None]()
    for kind, items in objects.items():
        for item in items:
            # Kinds that these settings have no use for are in the snapshot all the same.
            if (watch := watches.get(kind)) is not None:
                keys |= dict.fromkeys(watch.keys(Change(kind=ChangeKind.ADDED, object=item)))
    for key in keys:
        await scheduler.reconcile(key)


def _date(snapshot: Snapshot) -> Callable[[], float] | None:
    """Return a clock that stands at when a snapshot was taken, None where that cannot be read."""
    try:
        at = dt.datetime.fromisoformat(snapshot.at)
    except ValueError:
        return None
    return at.timestamp


def _is_waiting(pod: core.Pod, ours: str) -> bool:
    is_over = pod.status.phase in core.ENDED_PHASES or pod.metadata.deletion_timestamp is not None
    return pod.spec.scheduler_name == ours and not pod.spec.node_name and not is_over


def _unsaid(pod: core.Pod) -> core.Pod:
    """Return a pod without the condition that says why it waits, so that the replay writes it again."""
    left = tuple(one for one in pod.status.conditions if one.type != "PodScheduled" or one.status == "True")
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=left))

"""Objects as a tenant sees them: flat, in plain words, one state instead of phases, conditions and annotations.

Pure functions from stored objects to the values the API answers with. Times of objects are RFC 3339 text as Kubernetes
writes them; times of steps are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core, meta, names, quantity

ENDED: Final = frozenset({"succeeded", "failed", "stopped", "gone"})
STARTED: Final = frozenset({"running", "crashed"}) | ENDED
"""States of a container whose process has run, or never will."""
_CRASH: Final = "CrashLoopBackOff"


class ContainerPart(msgspec.Struct, frozen=True, kw_only=True):
    """One of the containers that live together under one name."""

    name: str
    image: str
    state: Annotated[str, msgspec.Meta(description="waiting, running or terminated")]
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    last_exit_code: Annotated[int | None, msgspec.Meta(description="of the run before this one")] = None
    restarts: int = 0
    started_at: str | None = None
    finished_at: str | None = None
    is_init: bool = False


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    """One container, or one group of containers started from a manifest."""

    name: str
    namespace: str
    uid: str
    image: Annotated[str, msgspec.Meta(description="image of the first container")]
    state: Annotated[
        str,
        msgspec.Meta(
            description="pending, creating, running, crashed, stopping, succeeded, failed, stopped; gone once deleted"
        ),
    ]
    reason: Annotated[str, msgspec.Meta(description="stable token saying why it is in this state; may be empty")]
    message: str
    exit_code: Annotated[int | None, msgspec.Meta(description="first exit code that is not 0, once all ended")]
    gpus: Annotated[int, msgspec.Meta(description="devices asked for, of all resources")]
    resources: Annotated[dict[str, int], msgspec.Meta(description="devices asked for, by resource")]
    devices: Annotated[dict[str, tuple[str, ...]], msgspec.Meta(description="ids granted, by resource")]
    node: str
    restarts: int
    labels: Mapping[str, str]
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    containers: tuple[ContainerPart, ...]


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object."""

    at: str | None
    object: Annotated[str, msgspec.Meta(description="kind/name in lower case, `pod/train-x7k2p`")]
    namespace: str
    type: Annotated[str, msgspec.Meta(description="Normal or Warning")]
    reason: str
    message: str
    source: str
    count: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    name: str
    state: Annotated[str, msgspec.Meta(description="ready, notready or unknown")]
    reason: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    used: Annotated[dict[str, str], msgspec.Meta(description="requests of the pods bound to it")]
    taints: tuple[str, ...]
    kernel: str
    engine: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a container is where it is."""

    name: str
    state: str
    summary: Annotated[str, msgspec.Meta(description="one line for a person")]
    reason: str
    facts: Annotated[dict[str, Any], msgspec.Meta(description="what the deciding layer read, such as nodes and whys")]
    at: Annotated[float | None, msgspec.Meta(description="Unix time of the deciding step")]


class ContainerList(msgspec.Struct, frozen=True, kw_only=True):
    """Containers."""

    items: tuple[ContainerView, ...]


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """Events, oldest first."""

    items: tuple[EventView, ...]


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes."""

    items: tuple[NodeView, ...]


def is_final(pod: core.Pod) -> bool:
    """Tell whether the pod has ended for good."""
    return pod.status.phase in core.ENDED_PHASES


def state_of(pod: core.Pod) -> str:
    """Return the one word for where a pod is."""
    status = pod.status
    if status.phase in core.ENDED_PHASES:
        return "stopped" if status.reason == "Stopped" else status.phase.lower()
    if pod.metadata.deletion_timestamp is not None or names.STOP in pod.metadata.annotations:
        return "stopping"
    if any(item.state.waiting and item.state.waiting.reason == _CRASH for item in _statuses(pod)):
        return "crashed"
    if status.phase == "Running":
        return "running"
    return "creating" if pod.spec.node_name else "pending"


def container_view(pod: core.Pod) -> ContainerView:
    """Describe a pod."""
    reason, message = _why(pod)
    parts = tuple(_parts(pod))
    main = [part for part in parts if not part.is_init]
    resources = asked_devices(pod)
    return ContainerView(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        uid=pod.metadata.uid,
        image=pod.spec.containers[0].image if pod.spec.containers else "",
        state=state_of(pod),
        reason=reason,
        message=message,
        exit_code=_exit_code(parts) if is_final(pod) else None,
        gpus=sum(resources.values()),
        resources=resources,
        devices=granted_devices(pod),
        node=pod.spec.node_name,
        restarts=sum(part.restarts for part in parts),
        labels=pod.metadata.labels,
        created_at=pod.metadata.creation_timestamp,
        started_at=min((part.started_at for part in main if part.started_at), default=None),
        finished_at=max((part.finished_at for part in main if part.finished_at), default=None)
        if is_final(pod)
        else None,
        containers=parts,
    )


def asked_devices(pod: core.Pod, container: str = "") -> dict[str, int]:
    """Return how many devices of each extended resource the pod asks for, or (by name) one of its containers."""
    spec = pod.spec
    if container:
        chosen = tuple(item for item in (*spec.containers, *spec.init_containers) if item.name == container)
        spec = core.PodSpec(containers=chosen)
    wanted = admission.effective_requests(spec)
    return {name: int(count) for name, count in wanted.items() if admission.is_extended(name) and count}


def granted_devices(pod: core.Pod) -> dict[str, tuple[str, ...]]:
    """Return the device ids the node granted; empty before that, and for an annotation nobody of us wrote."""
    text = pod.metadata.annotations.get(names.DEVICES)
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[str, ...]])
    except msgspec.MsgspecError:
        return {}


def event_view(event: core.Event) -> EventView:
    """Describe an event."""
    about = event.involved_object
    return EventView(
        at=event.last_timestamp or event.metadata.creation_timestamp,
        object=f"{about.kind.lower()}/{about.name}",
        namespace=about.namespace,
        type=event.type,
        reason=event.reason,
        message=event.message,
        source=event.source.component,
        count=event.count,
    )


def matches_object(event: core.Event, wanted: str) -> bool:
    """Tell whether an event is about `wanted`: `kind/name`, a name of any kind, or empty for all."""
    kind, slash, name = wanted.rpartition("/")
    about = event.involved_object
    if slash and kind.removesuffix("s").replace("container", "pod").lower() != about.kind.lower():
        return False
    return not wanted or name == about.name


def node_view(node: core.Node, pods: Iterable[core.Pod]) -> NodeView:
    """Describe a node and what the living pods bound to it have taken."""
    ready = meta.find_condition(node.status.conditions, "Ready")
    states = {"True": "ready", "False": "notready"}
    used: dict[str, Fraction] = {}
    for pod in pods:
        if pod.spec.node_name == node.metadata.name and not is_final(pod):
            for name, value in admission.effective_requests(pod.spec).items():
                used[name] = used.get(name, Fraction(0)) + value
    info = node.status.node_info
    return NodeView(
        name=node.metadata.name,
        state=states.get(ready.status, "unknown") if ready else "unknown",
        reason=ready.reason if ready else "",
        capacity=node.status.capacity,
        allocatable=node.status.allocatable,
        used={name: _amount(name, value) for name, value in used.items()},
        taints=tuple(f"{taint.key}={taint.value}:{taint.effect}" for taint in node.spec.taints),
        kernel=info.kernel_version if info else "",
        engine=info.container_runtime_version if info else "",
    )


def _amount(resource: str, value: Fraction) -> str:
    is_bytes = resource in {"memory", "ephemeral-storage"}
    return quantity.emit_quantity(value, quantity.Form.BINARY if is_bytes else quantity.Form.DECIMAL)


def _statuses(pod: core.Pod) -> Iterator[core.ContainerStatus]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _why(pod: core.Pod) -> tuple[str, str]:
    """Return reason and message: the pod's own, else a waiting or ended container's, else the scheduler's."""
    if pod.status.reason or pod.status.message:
        return pod.status.reason, pod.status.message
    for item in _statuses(pod):
        state = item.state
        if state.waiting and state.waiting.reason:
            return state.waiting.reason, state.waiting.message
    for item in _statuses(pod):
        ended = item.state.terminated
        if ended and (ended.exit_code or is_final(pod)):
            return ended.reason, ended.message
    if not pod.spec.node_name:
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return condition.reason, condition.message
    return "", ""


def _parts(pod: core.Pod) -> Iterator[ContainerPart]:
    statuses = {item.name: item for item in _statuses(pod)}
    for specs, is_init in ((pod.spec.init_containers, True), (pod.spec.containers, False)):
        for spec in specs:
            yield _part(spec, statuses.get(spec.name) or core.ContainerStatus(name=spec.name), is_init=is_init)


def _part(spec: core.Container, status: core.ContainerStatus, *, is_init: bool) -> ContainerPart:
    last = status.last_state.terminated
    common: dict[str, Any] = {
        "name": spec.name,
        "last_exit_code": None if last is None else last.exit_code,
        "image": spec.image,
        "restarts": status.restart_count,
        "is_init": is_init,
    }
    if (ended := status.state.terminated) is not None:
        return ContainerPart(
            state="terminated",
            reason=ended.reason,
            message=ended.message,
            exit_code=ended.exit_code,
            started_at=ended.started_at,
            finished_at=ended.finished_at,
            **common,
        )
    if (running := status.state.running) is not None:
        return ContainerPart(state="running", started_at=running.started_at, **common)
    waiting = status.state.waiting or core.ContainerStateWaiting()
    return ContainerPart(state="waiting", reason=waiting.reason, message=waiting.message, **common)


def _exit_code(parts: Iterable[ContainerPart]) -> int | None:
    codes = [part.exit_code for part in parts if part.exit_code is not None]
    return next((code for code in codes if code), 0) if codes else None


def gone(view: ContainerView) -> ContainerView:
    """Return the view of a container whose object has been removed."""
    return msgspec.structs.replace(view, state="gone")


def not_found(name: str, namespace: str) -> errors.NotFound:
    """Say that no such container exists."""
    message = f'container "{name}" not found in namespace "{namespace}"'
    return errors.NotFound(message, reason="ContainerNotFound", hint="`fairlead ps --all` lists them")

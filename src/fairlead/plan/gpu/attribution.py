"""Joins the kubelet's list, the plugin's memory and pods' statuses into who holds which device. Pure.

On a real node the device plugin API does not say which pod Allocate is for. The kubelet's PodResources says which
container holds which ids; the plugin remembers what it was asked and what it answered; together they give each
container its grant and the answer it got. Ordinary init containers are not in the kubelet's list: theirs is the call
made right before that of the container after them, as kubelets allocate a pod's containers in order, one pod at a time.
What does not match is left out, never guessed.

Attempts are read from container statuses: which runtime container was which start of which container.
Source: kubelet cm/devicemanager manager.go (Allocate), apis/podresources/server_v1.go; core/v1 ContainerStatus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fairlead.model.ids import DeviceID
from fairlead.wire.kubernetes import core, meta, quantity
from fairlead.wire.proto import deviceplugin_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """What a kubelet asked right before an Allocate."""

    available: tuple[str, ...]
    preferred: tuple[str, ...]
    at: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One container's part of an Allocate, as the plugin saw it; `at`: Unix time of the answer."""

    resource: str
    ids: tuple[DeviceID, ...]
    answer: pb.ContainerAllocateResponse
    at: float
    duration_s: float
    preference: Preference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Devices of one resource, or of one DRA driver, that a container holds, as its kubelet says."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[DeviceID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Devices of one resource that a container of a known pod was given."""

    container: str
    resource: str
    asked: int
    ids: tuple[DeviceID, ...]
    call: Call | None
    """None: the plugin's memory does not reach that far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of one container."""

    container: str
    number: int
    """0 for the first."""
    id: str
    """As the runtime knows it, without the runtime's name before it."""
    started_at: float | None
    """As the kubelet reports it, in whole seconds."""
    ended: core.ContainerStateTerminated | None
    image: str

    @property
    def key(self) -> str:
        """Distinguishes it from the pod's other attempts."""
        return f"{self.container}/{self.number}"


def requests(pod: core.Pod, resources: Iterable[str]) -> Iterator[tuple[core.Container, str, int, bool]]:
    """Yield (container, resource, count, is ordinary init container) in the order in which kubelets allocate."""
    wanted = sorted(resources)
    for is_init, items in ((True, pod.spec.init_containers), (False, pod.spec.containers)):
        for item in items:
            for resource in wanted:
                if resource in item.resources.limits and (count := _count(item, resource)):
                    yield item, resource, count, is_init and item.restart_policy != "Always"


def asks_devices(pod: core.Pod) -> bool:
    """Return whether a pod asks any device plugin for something: ours, or another that may offer the same GPUs."""
    items = (*pod.spec.init_containers, *pod.spec.containers)
    return any("/" in resource for item in items for resource in item.resources.limits)


def _count(item: core.Container, resource: str) -> int:
    return quantity.parse_whole(item.resources.limits[resource])


def match_grants(
    pod: core.Pod, holdings: Sequence[Holding], calls: Sequence[Call], *, resources: Iterable[str]
) -> tuple[Grant, ...]:
    """Say what each container of a pod was given, in the order of allocation.

    Args:    holdings: the kubelet's list, of any pods.   calls: what the plugins remember, oldest first.
    Returns: nothing for containers that neither the list nor the calls mention.
    """
    about = pod.metadata
    listed = {
        (item.container, item.resource): item.ids
        for item in holdings
        if (item.namespace, item.pod) == (about.namespace, about.name)
    }
    found: list[Grant] = []
    following: dict[str, int] = {}
    # Backwards, because an init container is known by the call before that of its successor.
    for item, resource, count, is_init in reversed(list(requests(pod, resources))):
        own = [index for index, call in enumerate(calls) if call.resource == resource]
        ids = listed.get((item.name, resource))
        if is_init:
            index = next((i for i in reversed(own) if i < following.get(resource, 0)), None)
            if index is None or len(calls[index].ids) != count:
                continue
            ids = calls[index].ids
        elif ids is None:
            continue
        else:
            last = following.get(resource, len(calls))
            index = next((i for i in reversed(own) if i < last and set(calls[i].ids) == set(ids)), None)
        following[resource] = 0 if index is None else index
        call = None if index is None else calls[index]
        found.append(
            Grant(container=item.name, resource=resource, asked=count, ids=call.ids if call else ids, call=call)
        )
    return tuple(reversed(found))


def attempts(pod: core.Pod) -> tuple[Attempt, ...]:
    """Return the starts in a pod's status, those of one container oldest first."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return tuple(attempt for status in statuses for attempt in _of_status(status))


def _of_status(status: core.ContainerStatus) -> Iterator[Attempt]:
    current = _bare(status.container_id)
    last, now = status.last_state.terminated, status.state.terminated
    # While a container waits to be started again, its last run is still the one that the status is about.
    for ended in (last, now):
        if ended is not None and ended.container_id:
            name = _bare(ended.container_id)
            number = status.restart_count if name == current else status.restart_count - 1
            if number >= 0:
                yield _ended(status, number, name, ended)
    if status.state.running is not None and current:
        yield Attempt(
            container=status.name,
            number=status.restart_count,
            id=current,
            started_at=meta.timestamp(status.state.running.started_at),
            ended=None,
            image=status.image,
        )


def _ended(status: core.ContainerStatus, number: int, name: str, ended: core.ContainerStateTerminated) -> Attempt:
    return Attempt(
        container=status.name,
        number=number,
        id=name,
        started_at=meta.timestamp(ended.started_at),
        ended=ended,
        image=status.image,
    )


def _bare(container_id: str) -> str:
    """Return a container's id without its runtime: `containerd://abc` is `abc`."""
    return container_id.rpartition("://")[2]


def ran_s(ended: core.ContainerStateTerminated) -> float | None:
    """Return how long a container ran; None where whole seconds, which is what kubelets report, show no length."""
    begun, done = meta.timestamp(ended.started_at), meta.timestamp(ended.finished_at)
    length = round(done - begun) if begun and done else 0
    return length if length > 0 else None

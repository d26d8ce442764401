"""Describes pods as a tenant sees them: flat, in plain words, one state instead of phases and conditions.

Values and pure functions, without the web framework: the command line's client reads them too. Times are RFC 3339
text, as Kubernetes writes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from fairlead.model.container import isolation
from fairlead.plan.pod import podstate
from fairlead.plan.pod.running import resize
from fairlead.plan.reservation import use
from fairlead.serve.v1.claims.view import ClaimView
from fairlead.serve.v1.containers.definition import Definition
from fairlead.serve.v1.containers.life.view import CostView, PhaseView, ProofView, StartPhaseView
from fairlead.serve.v1.containers.life.waiting import Waiting
from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import Probe
from fairlead.wire.text import timestamp

ENDED: Final = frozenset({"succeeded", "failed", "stopped", "gone"})
STARTED: Final = frozenset({"running", "crashed"}) | ENDED
"""States of a container whose process has run, or never will."""


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
    tty: Annotated[bool, msgspec.Meta(description="its first process has a terminal")] = False
    stdin: Annotated[bool, msgspec.Meta(description="its first process has an input")] = False
    is_ephemeral: Annotated[bool, msgspec.Meta(description="it joined the container while that ran")] = False
    ready: Annotated[bool, msgspec.Meta(description="it runs, and its readiness probe says so where it has one")] = (
        False
    )
    health: Annotated[
        str, msgspec.Meta(description="starting, healthy or unhealthy, by its readiness probe; empty: it has none")
    ] = ""


class ContainerClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim whose devices a container sees."""

    name: Annotated[str, msgspec.Meta(description="by which the container has it")]
    claim: Annotated[str, msgspec.Meta(description="its ResourceClaim; empty: it is not made yet")]
    template: Annotated[str, msgspec.Meta(description="what it is made from; empty: it was there")]
    devices: Annotated[tuple[str, ...], msgspec.Meta(description="names of those that it was given here")] = ()
    resources: Annotated[
        tuple[str, ...], msgspec.Meta(description="extended resources that it meets, made for them; empty: none")
    ] = ()


IDLE_UNKNOWN: Final = core.IDLE_UNKNOWN


class IdleView(msgspec.Struct, frozen=True, kw_only=True):
    """A warning that a container's GPUs are idle, or that this is not known."""

    since: str
    action: Annotated[str, msgspec.Meta(description="warn, stop or requeue; unknown: nothing, for lack of figures")]
    acts_at: Annotated[str | None, msgspec.Meta(description="when it is ended at the earliest; null: it is not")]
    message: str


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
    gpus: Annotated[
        int,
        msgspec.Meta(description="sum of `resources` and of devices by claims: GPUs where those are of one kind"),
    ]
    resources: Annotated[dict[str, int], msgspec.Meta(description="devices asked for, by resource")]
    devices: Annotated[dict[str, tuple[str, ...]], msgspec.Meta(description="ids granted, by resource")]
    ports: Annotated[tuple[str, ...], msgspec.Meta(description="`ADDRESS:HOST->CONTAINER/tcp`, all of the group")]
    priority: Annotated[int, msgspec.Meta(description="higher goes first in the queue")]
    priority_class: Annotated[str, msgspec.Meta(description="name of that priority; empty: it has none")]
    grace_s: Annotated[int, msgspec.Meta(description="seconds between SIGTERM and SIGKILL at a stop")]
    node: str
    restarts: int
    labels: Mapping[str, str]
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    containers: tuple[ContainerPart, ...]
    waiting: Annotated[
        Waiting | None, msgspec.Meta(description="why it has no node yet; null: it has, or was not looked at")
    ] = None
    claims: Annotated[tuple[ContainerClaim, ...], msgspec.Meta(description="claims whose devices it sees")] = ()
    time_limit_s: Annotated[int | None, msgspec.Meta(description="stopped so long after its start; null: never")] = None
    resize: Annotated[
        str,
        msgspec.Meta(description="what of a change of its CPU and memory is not carried out, and why; empty: nothing"),
    ] = ""
    reservation: Annotated[
        str, msgspec.Meta(description="in whose windows it starts, of its namespace; empty: it names none")
    ] = ""
    addresses: Annotated[tuple[str, ...], msgspec.Meta(description="IP addresses; none while it does not run")] = ()
    isolation: Annotated[str, msgspec.Meta(description="none, gvisor or vm; of another RuntimeClass its name")] = (
        isolation.NONE
    )
    user: Annotated[str, msgspec.Meta(description="account whose namespace it is; empty: no user's, or not known")] = ""
    tty: Annotated[bool, msgspec.Meta(description="its first process has a terminal")] = False
    stdin: Annotated[bool, msgspec.Meta(description="its first process has an input, which attach writes to")] = False
    phases: Annotated[tuple[PhaseView, ...], msgspec.Meta(description="in order; left out of lists")] = ()
    start: Annotated[
        tuple[StartPhaseView, ...], msgspec.Meta(description="phases of its first start; left out of lists")
    ] = ()
    cost: Annotated[
        CostView | None, msgspec.Meta(description="null: in a list, or no possession of GPUs is written down here")
    ] = None
    gpu_leases: Annotated[
        tuple[ProofView, ...], msgspec.Meta(description="its GPUs and what they were verified by; lists leave them out")
    ] = ()
    idle: Annotated[
        IdleView | None, msgspec.Meta(description="its owner was warned that its GPUs are idle; null: they are not")
    ] = None
    definition: Annotated[Definition | None, msgspec.Meta(description="what it was asked to be; left out of lists")] = (
        None
    )


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a container is where it is."""

    name: str
    state: str
    summary: Annotated[str, msgspec.Meta(description="one line for a person")]
    reason: str
    facts: Annotated[dict[str, Any], msgspec.Meta(description="what the deciding layer read, such as nodes and whys")]
    at: Annotated[str | None, msgspec.Meta(description="time of the deciding step")]
    diagnosis: Annotated[
        str, msgspec.Meta(description="why it waits, judged now from the nodes and pods; empty where it does not wait")
    ] = ""
    waiting: Annotated[Waiting | None, msgspec.Meta(description="the same in numbers; null: it does not wait")] = None
    priority: Annotated[int, msgspec.Meta(description="higher goes first in the queue")] = 0
    priority_class: Annotated[str, msgspec.Meta(description="name of that priority; empty: it has none")] = ""
    time_limit_s: Annotated[int | None, msgspec.Meta(description="stopped so long after its start; null: never")] = None
    resize: Annotated[
        str,
        msgspec.Meta(description="what of a change of its CPU and memory is not carried out, and why; empty: nothing"),
    ] = ""
    started_at: str | None = None
    isolation: Annotated[str, msgspec.Meta(description="none, gvisor or vm; of another RuntimeClass its name")] = (
        isolation.NONE
    )
    phases: Annotated[tuple[PhaseView, ...], msgspec.Meta(description="in order")] = ()
    start: Annotated[tuple[StartPhaseView, ...], msgspec.Meta(description="phases of its first start")] = ()
    cost: Annotated[CostView | None, msgspec.Meta(description="null: no possession of GPUs is written down here")] = (
        None
    )
    gpu_leases: Annotated[
        tuple[ProofView, ...], msgspec.Meta(description="its GPUs, and what they were verified by")
    ] = ()
    idle: Annotated[IdleView | None, msgspec.Meta(description="its GPUs are idle; null: they are not")] = None
    claims: Annotated[
        tuple[ClaimView, ...], msgspec.Meta(description="its claims, and how far their devices are prepared")
    ] = ()


class ContainerList(msgspec.Struct, frozen=True, kw_only=True):
    """Containers."""

    items: tuple[ContainerView, ...]
    next: listing.Next = ""
    warnings: Annotated[tuple[str, ...], msgspec.Meta(description="parts of the request that are ignored")] = ()


def container_view(pod: core.Pod) -> ContainerView:
    """Describe a pod."""
    reason, message = podstate.why(pod)
    parts = tuple(_parts(pod))
    main = [part for part in parts if not part.is_init and not part.is_ephemeral]
    resources, claims = podstate.asked_devices(pod), tuple(_claims(pod))
    return ContainerView(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        uid=pod.metadata.uid,
        image=pod.spec.containers[0].image if pod.spec.containers else "",
        state=podstate.state_of(pod),
        reason=reason,
        message=message,
        exit_code=_exit_code(part for part in parts if not part.is_ephemeral) if podstate.is_final(pod) else None,
        gpus=sum(resources.values()) + _claimed(claims, resources),
        resources=resources,
        devices=podstate.granted_devices(pod),
        ports=tuple(_port(one) for item in pod.spec.containers for one in item.ports if one.host_port),
        priority=pod.spec.priority or 0,
        priority_class=pod.spec.priority_class_name,
        grace_s=pod.spec.termination_grace_period_seconds,
        tty=bool(pod.spec.containers and pod.spec.containers[0].tty),
        stdin=bool(pod.spec.containers and pod.spec.containers[0].stdin),
        time_limit_s=pod.spec.active_deadline_seconds,
        reservation=use.named(pod),
        resize="" if podstate.is_final(pod) else resize.words(pod),
        node=pod.spec.node_name,
        restarts=sum(part.restarts for part in parts),
        labels=pod.metadata.labels,
        created_at=pod.metadata.creation_timestamp,
        started_at=min((part.started_at for part in main if part.started_at), default=None),
        finished_at=max((part.finished_at for part in main if part.finished_at), default=None)
        if podstate.is_final(pod)
        else None,
        containers=parts,
        isolation=isolation.of_class(pod.spec.runtime_class_name),
        addresses=tuple(one.ip for one in pod.status.pod_ips),
        claims=claims,
        idle=idle_view(pod),
    )


def idle_view(pod: core.Pod) -> IdleView | None:
    """Return the warning that a pod's GPUs are idle; None: there is none, or it has ended."""
    one = pod.status.idle_notice
    if one is None or podstate.is_final(pod):
        return None
    return IdleView(since=one.since, action=one.action, acts_at=one.acts_at, message=one.message)


def _claimed(claims: Iterable[ContainerClaim], resources: Mapping[str, int]) -> int:
    """Return how many devices claims give beside those that meet resources, which count as asked for."""
    plain = {device for one in claims if not one.resources for device in one.devices}
    more = (len(one.devices) - sum(resources.get(name, 0) for name in one.resources) for one in claims if one.resources)
    return len(plain) + sum(max(0, count) for count in more)


def _claims(pod: core.Pod) -> Iterator[ContainerClaim]:
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    given = podstate.claimed_devices(pod)
    for one in pod.spec.resource_claims:
        claim, template = one.resource_claim_name or made.get(one.name), one.resource_claim_template_name
        yield ContainerClaim(name=one.name, claim=claim or "", template=template or "", devices=given.get(one.name, ()))
    if (met := pod.status.extended_resource_claim_status) is not None:
        claim = met.resource_claim_name
        resources = tuple(sorted({one.resource_name for one in met.request_mappings or ()}))
        yield ContainerClaim(
            name=", ".join(resources), claim=claim, template="", devices=given.get(claim, ()), resources=resources
        )


def _port(one: core.ContainerPort) -> str:
    address = f"[{one.host_ip}]:" if ":" in one.host_ip else f"{one.host_ip}:" if one.host_ip else ""
    return f"{address}{one.host_port}->{one.container_port}/{one.protocol.lower()}"


def _parts(pod: core.Pod) -> Iterator[ContainerPart]:
    statuses = {item.name: item for item in podstate.every_status(pod)}
    initial = pod.spec.init_containers
    for spec in (*initial, *pod.spec.containers, *pod.spec.ephemeral_containers):
        yield _part(spec, statuses.get(spec.name) or core.ContainerStatus(name=spec.name), is_init=spec in initial)


def _part(spec: core.Container, status: core.ContainerStatus, *, is_init: bool) -> ContainerPart:
    last = status.last_state.terminated
    common: dict[str, Any] = {
        "name": spec.name,
        "last_exit_code": None if last is None else last.exit_code,
        "image": spec.image,
        "restarts": status.restart_count,
        "is_init": is_init,
        "tty": spec.tty,
        "stdin": spec.stdin,
        "is_ephemeral": isinstance(spec, core.EphemeralContainer),
        "ready": status.ready,
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
        health = _health(spec.readiness_probe, running.started_at, is_ready=status.ready)
        return ContainerPart(state="running", started_at=running.started_at, health=health, **common)
    waiting = status.state.waiting or core.ContainerStateWaiting()
    return ContainerPart(state="waiting", reason=waiting.reason, message=waiting.message, **common)


def _health(probe: Probe | None, started_at: str | None, *, is_ready: bool) -> str:
    """Return docker's word for what a readiness probe says; it is `starting` until it could have failed for good."""
    if probe is None:
        return ""
    if is_ready:
        return "healthy"
    allowed_s = probe.initial_delay_seconds + (probe.failure_threshold or 3) * (probe.period_seconds or 10)
    began = timestamp.parse(started_at) if started_at else None
    return "starting" if began is None or time.time() - began < allowed_s else "unhealthy"


def _exit_code(parts: Iterable[ContainerPart]) -> int | None:
    codes = [part.exit_code for part in parts if part.exit_code is not None]
    return next((code for code in codes if code), 0) if codes else None


def gone(view: ContainerView) -> ContainerView:
    """Return the view of a container whose object has been removed."""
    return msgspec.structs.replace(view, state="gone")

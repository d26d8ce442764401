"""Judges changes of a running pod's CPU and memory, and says which amounts count while they are carried out. Pure.

A pod's spec says what is desired, `status.containerStatuses[].resources` what its containers have. All of a change is
taken up at once, or none of it: one that its node can never give is Infeasible, one that it cannot give now is
Deferred and tried again. GPUs and everything else but CPU and memory stay as they are.
Source: Kubernetes KEP-1287; pkg/apis/core/validation (ValidatePodResize); kubelet allocation manager (behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.container import isolation
from fairlead.plan.pod import admission, podstate
from fairlead.plan.pod.life import resizepolicy
from fairlead.plan.pod.network import sandboxed
from fairlead.wire.kubernetes import core, meta, quantity

RESIZED: Final = resizepolicy.RESIZED
PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
INFEASIBLE, DEFERRED, ERROR = "Infeasible", "Deferred", "Error"
MOST_CPUS: Final = 1e6
"""More than any machine has: the kernel refuses limits of many more.  Source: kernel/sched/core.c, MAX_BW."""
Amounts = Mapping[str, core.ResourceRequirements]
"""By container: its requests and limits of CPU and memory."""
Wanted = Callable[[core.Pod], Amounts]
"""Returns what a pod is to ask for; called again with a newer pod where others changed it meanwhile."""


def items(spec: core.PodSpec) -> tuple[core.Container, ...]:
    """Return the containers that can be resized: the pod's own, and its sidecars."""
    return (*spec.containers, *(one for one in spec.init_containers if one.restart_policy == "Always"))


def resizable(found: core.ResourceRequirements) -> core.ResourceRequirements:
    """Return the CPU and memory of a container's resources."""
    return core.ResourceRequirements(limits=_picked(found.limits), requests=_picked(found.requests))


def _picked(amounts: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return {name: amounts[name] for name in RESIZED if name in amounts}


# what is asked


def limited(item: core.Container, limits: Mapping[str, str | int | float]) -> core.ResourceRequirements:
    """Return a container's resources with other limits, as docker's `update` has them.

    A request that was as large as its limit follows it, another one stays below it. A limit that is new reserves
    nothing: else a pod that was Burstable would be Guaranteed.
    """
    requests, before = dict(item.resources.requests), item.resources.limits
    for name, text in limits.items():
        asked, old = requests.get(name), before.get(name)
        if old is None:
            requests.setdefault(name, "0")
        elif asked is None or _amount(asked) == _amount(old) or _amount(asked) > _amount(text):
            requests[name] = text
    return msgspec.structs.replace(item.resources, limits={**before, **limits}, requests=requests)


def resized(pod: core.Pod, wanted: Amounts) -> core.Pod | None:
    """Return a pod that asks for other amounts of CPU and memory; None: they are what it asks for.

    Args:   wanted: all resources of containers, by name; those that are not named stay.
    Raises: Conflict (`ContainerNotRunning`, `ResizeNotReady`): it has ended, or its node has not said what it has;
            Invalid (`PodInvalid`): in the API server's words.
    """
    about = pod.metadata
    known = {item.name: item for item in items(pod.spec)}
    if missing := [name for name in wanted if name not in known]:
        shown = errors.readable(missing[0][:80])
        message = f'"{about.name}" has no container "{shown}" that can be resized (it has {", ".join(known)})'
        raise errors.Invalid(message, reason="ContainerUnknown", hint="name one of these with -c")
    changed = {name: one for name, one in wanted.items() if not is_same(one, known[name].resources)}
    if not changed:
        return None
    if podstate.is_final(pod) or podstate.state_of(pod) == "stopping":
        message = f'container "{about.name}" is {podstate.state_of(pod)}: its size does not change'
        raise errors.Conflict(message, reason="ContainerNotRunning", hint="run it again with other amounts")
    broken = [text for name, one in changed.items() for text in _problems(known[name], one)]
    after = with_amounts(pod, changed)
    admission.admit(msgspec.structs.replace(after, metadata=_plain(about), spec=_alone(after.spec)))
    if not broken and qos(pod.spec) != qos(after.spec):
        broken.append(
            f"spec: Invalid value: {qos(after.spec)}: Pod QOS Class may not change as a result of resizing"
            f" (it is {qos(pod.spec)})"
        )
    if broken:
        hint = "a container that was started without limits, or with all of them as its requests, keeps that form"
        text = "; ".join(broken)
        raise errors.Invalid(f'Pod "{about.name}" is invalid: {text}', reason="PodInvalid", hint=hint)
    if pod.spec.node_name and (unsaid := [name for name in changed if _is_unsaid(pod, name)]):
        message = f'its node has not said yet what "{unsaid[0]}" of "{about.name}" has'
        raise errors.Conflict(message, reason="ResizeNotReady", hint="try again in a moment")
    return after


def _plain(about: meta.ObjectMeta) -> meta.ObjectMeta:
    return meta.ObjectMeta(name=about.name, namespace=about.namespace)


def _alone(spec: core.PodSpec) -> core.PodSpec:
    return msgspec.structs.replace(spec, ephemeral_containers=())


def _is_unsaid(pod: core.Pod, name: str) -> bool:
    """Return whether a container runs whose status does not say yet what it has."""
    status = _status(pod, name)
    return status is not None and status.state.running is not None and status.resources is None


def _problems(item: core.Container, wanted: core.ResourceRequirements) -> Iterator[str]:
    path, now = f"spec.containers[{item.name}].resources", item.resources
    for part, before, after in (("limits", now.limits, wanted.limits), ("requests", now.requests, wanted.requests)):
        for name in sorted({*before, *after} - set(RESIZED)):
            if name not in after or name not in before or _amount(before[name]) != _amount(after[name]):
                yield f"{path}.{part}[{name}]: Forbidden: only cpu and memory resources are mutable"
        for name in RESIZED:
            if name in before and name not in after:
                yield f"{path}.{part}[{name}]: Forbidden: resource {part} cannot be removed"
    if wanted.claims != now.claims:
        yield f"{path}.claims: Forbidden: only cpu and memory resources are mutable"


def with_amounts(pod: core.Pod, amounts: Amounts) -> core.Pod:
    """Return a pod whose containers have these resources, by name; those that are not named stay."""
    if not amounts:
        return pod

    def changed(item: core.Container) -> core.Container:
        found = amounts.get(item.name)
        return item if found is None else msgspec.structs.replace(item, resources=found)

    spec = msgspec.structs.replace(
        pod.spec,
        containers=tuple(map(changed, pod.spec.containers)),
        init_containers=tuple(map(changed, pod.spec.init_containers)),
    )
    return msgspec.structs.replace(pod, spec=spec)


def qos(spec: core.PodSpec) -> str:
    """Return a pod's class: BestEffort, Burstable or Guaranteed.

    Source: kubernetes pkg/apis/core/v1/helper/qos (ComputePodQOS).
    """
    every = [resizable(item.resources) for item in (*spec.containers, *spec.init_containers)]
    given = [[_above_zero(one.requests), _above_zero(one.limits)] for one in every]
    if not any(requests or limits for requests, limits in given):
        return "BestEffort"
    if all(set(limits) == set(RESIZED) and requests == limits for requests, limits in given):
        return "Guaranteed"
    return "Burstable"


def _above_zero(amounts: Mapping[str, str | int | float]) -> dict[str, Fraction]:
    return {name: found for name, text in amounts.items() if (found := _amount(text)) > 0}


def _amount(text: str | int | float) -> Fraction:
    return Fraction(quantity.parse_quantity(text))


def is_same(one: core.ResourceRequirements, other: core.ResourceRequirements) -> bool:
    """Return whether two containers' resources are equal, however they are written. Raises: Invalid: a quantity."""
    pairs = ((one.limits, other.limits), (one.requests, other.requests))
    return one.claims == other.claims and all(
        first.keys() == second.keys() and all(_amount(first[name]) == _amount(second[name]) for name in first)
        for first, second in pairs
    )


# what counts


def _status(pod: core.Pod, name: str) -> core.ContainerStatus | None:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return next((one for one in every if one.name == name), None)


def held(pod: core.Pod) -> Amounts:
    """Return the resources of containers that have, or get at their next start, others than the spec says; by name."""
    found = dict[str, core.ResourceRequirements]()
    for item in items(pod.spec):
        status = _status(pod, item.name)
        if status is None or status.resources is None:
            continue  # it is seen for the first time: it starts with what the spec says
        if not is_same(status.resources, resizable(item.resources)):
            rest = item.resources
            found[item.name] = msgspec.structs.replace(
                rest,
                limits={**_rest(rest.limits), **status.resources.limits},
                requests={**_rest(rest.requests), **status.resources.requests},
            )
    return found


def _rest(amounts: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return {name: text for name, text in amounts.items() if name not in RESIZED}


def counted(pod: core.Pod) -> core.Pod:
    """Return a pod as a scheduler counts it: by the larger of what it has and what it is to have.

    A change that its node can never give is not counted.
    Source: kubernetes component-helpers/resource (determineContainerReqs).
    """
    found = {one.type: one for one in pod.status.conditions if one.type in {PENDING, IN_PROGRESS}}
    if not found:
        return pod
    kept = held(pod)
    if PENDING in found and found[PENDING].reason == INFEASIBLE:
        return with_amounts(pod, kept)
    asked = {item.name: item.resources for item in items(pod.spec) if item.name in kept}
    return with_amounts(pod, {name: _larger(kept[name], one) for name, one in asked.items()})


def _larger(one: core.ResourceRequirements, other: core.ResourceRequirements) -> core.ResourceRequirements:
    """Return resources with the larger request of each resource."""
    requests = {
        name: max((each.requests[name] for each in (one, other) if name in each.requests), key=_amount)
        for name in {**one.requests, **other.requests}
    }
    return msgspec.structs.replace(other, requests=requests)


@frozen
class Decision:
    """What becomes of a change."""

    pod: core.Pod
    """With the amounts that count from now on."""
    reason: str = ""
    """`Infeasible` or `Deferred`: nothing of it is taken up; empty: all of it is, or nothing is asked."""
    message: str = ""


def decide(pod: core.Pod, others: Iterable[core.Pod], allocatable: Mapping[str, str]) -> Decision:
    """Return whether a node takes up the amounts that a pod asks for.

    Args: others: pods of the node, with the amounts that count.   allocatable: what the node has.
    """
    kept = held(pod)
    if not kept:
        return Decision(pod=pod)
    before = with_amounts(pod, kept)
    if isolation.of_class(pod.spec.runtime_class_name) == isolation.GVISOR and sandboxed.has_sandbox(pod.spec):
        message = "containers of a pod on gVisor are in one sandbox, which keeps the limits of its start"
        return Decision(pod=before, reason=INFEASIBLE, message=message)
    wanted, now = admission.effective_requests(pod.spec), admission.effective_requests(before.spec)
    more = [name for name in RESIZED if wanted.get(name, Fraction(0)) > now.get(name, Fraction(0))]
    for name in more:
        capacity = _amount(allocatable.get(name, "0"))
        if wanted[name] > capacity:
            shown = f"{name}, requested: {_shown(name, wanted[name])}, capacity: {_shown(name, capacity)}"
            message = f"Node didn't have enough capacity: {shown}"
            return Decision(pod=before, reason=INFEASIBLE, message=message)
    if not more:
        return Decision(pod=pod)
    living = [one for one in others if one.status.phase not in core.ENDED_PHASES]
    amounts = [admission.effective_requests(one.spec) for one in living]
    for name in more:
        capacity = _amount(allocatable.get(name, "0"))
        used = sum((one.get(name, Fraction(0)) for one in amounts), Fraction(0))
        if used + wanted[name] > capacity:
            requested, taken = _shown(name, wanted[name]), _shown(name, used)
            shown = f"{name}, requested: {requested}, used: {taken}, capacity: {_shown(name, capacity)}"
            return Decision(pod=before, reason=DEFERRED, message=f"Node didn't have enough resource: {shown}")
    return Decision(pod=pod)


def _shown(name: str, amount: Fraction) -> str:
    return f"{float(amount):g}" if name == "cpu" else f"{float(amount / (1 << 20)):g}Mi"


def restarts(item: core.Container, before: core.ResourceRequirements) -> bool:
    """Return whether a container is restarted to get its amounts. Args: before: what it has."""
    now = resizable(item.resources)
    return any(
        one.restart_policy == resizepolicy.RESTART
        and (
            _of(now.limits, one.resource_name) != _of(before.limits, one.resource_name)
            or _of(now.requests, one.resource_name) != _of(before.requests, one.resource_name)
        )
        for one in item.resize_policy
    )


def _of(amounts: Mapping[str, str | int | float], name: str) -> Fraction | None:
    return _amount(amounts[name]) if name in amounts else None


def cpu_limit(found: core.ResourceRequirements) -> float | None:
    """Return the CPUs that a container may use, `MOST_CPUS` at most; None: no limit."""
    return min(float(_amount(found.limits["cpu"])), MOST_CPUS) if "cpu" in found.limits else None


def memory_limit(found: core.ResourceRequirements) -> int | None:
    """Return the bytes that a container may use; None: no limit."""
    return quantity.parse_whole(found.limits["memory"]) if "memory" in found.limits else None


# what is said


@frozen
class Progress:
    """What a node says of a pod's sizes."""

    has: Amounts
    """By container that runs: what it has."""
    is_under_way: bool = False
    """Whether some container does not have yet what counts."""
    error: str = ""
    """Why the last try failed."""


def words(pod: core.Pod) -> str:
    """Return what of a change is not carried out yet: `Deferred: …`; empty: nothing is asked, or all of it is done."""
    for kind in (PENDING, IN_PROGRESS):
        found = meta.find_condition(pod.status.conditions, kind)
        if found is not None and found.status == "True" and _is_of(pod, found):
            return f"{found.reason}: {found.message}" if found.reason else "it is being carried out"
    return "its node has not taken it up yet" if pod.spec.node_name and held(pod) else ""


def _is_of(pod: core.Pod, condition: meta.Condition) -> bool:
    """Return whether a condition is about what a pod asks for now, as far as it says so."""
    return condition.observed_generation in {None, pod.metadata.generation}


def told(pod: core.Pod, status: core.PodStatus, decision: Decision, progress: Progress, *, at: str) -> core.PodStatus:
    """Return a status with what containers have, and the conditions of a change.

    Args: pod: as its node's decision has it.   status: as it is to be reported.
    """
    of = {item.name: resizable(item.resources) for item in items(decision.pod.spec)}

    def sized(one: core.ContainerStatus) -> core.ContainerStatus:
        if one.name not in of:
            return one
        found = progress.has.get(one.name, of[one.name]) if one.state.running is not None else of[one.name]
        allocated = of[one.name].requests
        return msgspec.structs.replace(one, resources=found, allocated_resources=allocated)

    conditions = [one for one in status.conditions if one.type not in {PENDING, IN_PROGRESS}]
    before = {one.type: one for one in pod.status.conditions}
    for kind, is_so, reason, message in (
        (PENDING, bool(decision.reason), decision.reason, decision.message),
        (IN_PROGRESS, progress.is_under_way, ERROR if progress.error else "", progress.error),
    ):
        if is_so:
            old = before.get(kind)
            since = old.last_transition_time if old is not None and old.status == "True" else at
            conditions.append(
                meta.Condition(
                    type=kind,
                    status="True",
                    reason=reason,
                    message=message,
                    last_transition_time=since,
                    observed_generation=pod.metadata.generation,
                )
            )
    return msgspec.structs.replace(
        status,
        conditions=tuple(conditions),
        container_statuses=tuple(map(sized, status.container_statuses)),
        init_container_statuses=tuple(map(sized, status.init_container_statuses)),
    )

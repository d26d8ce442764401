"""Decides whether a namespace's quotas let one more pod in, and counts what its pods have taken. Pure.

On a cluster the API server and the quota controller do this; on one machine what submits pods asks here, so
that the same manifest is refused with the same words. A quota counts the pods its scopes take: all that have not ended.
One that counts cpu or memory obliges every container to state them, one that counts devices does not, as in Kubernetes.

Source: kubernetes pkg/quota/v1/evaluator/core/pods.go; apiserver admission/plugin/resourcequota/controller.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from fractions import Fraction
from typing import Final

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core, names, quantity

_ONE: Final = Fraction(1)
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"
_UNKNOWN: Final = "must be a standard resource type or fully qualified"
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_OBJECTS: Final = frozenset(
    {
        *("pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "persistentvolumeclaims"),
        *("configmaps", "services.nodeports", "services.loadbalancers", "requests.storage"),
    }
)
"""Names of a quota that are neither amounts of a pod nor qualified.  Source: pkg/apis/core/helper, helpers.go."""
_COUNT: Final = "count/pods"
COUNTS: Final = frozenset({"pods", _COUNT})
"""Names that count pods themselves."""
CLAIMS: Final = frozenset({"persistentvolumeclaims", "count/persistentvolumeclaims"})
"""Names that count named volumes."""
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
_STATED: Final = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})
"""Counting one of these obliges every container to state it."""


def usage(pod: core.Pod, *, counts_alone: bool = False) -> dict[str, Fraction]:
    """Return what a pod takes, by the names that quotas use; one that ended only counts as an object.

    Args: counts_alone: nothing else is asked for, which is a tenth of the work.
    """
    if pod.status.phase in core.ENDED_PHASES:
        return {_COUNT: _ONE}
    if counts_alone:
        return {_COUNT: _ONE, "pods": _ONE}
    requests, limits = admission.effective_requests(pod.spec), admission.effective_limits(pod.spec)
    return {_COUNT: _ONE, "pods": _ONE, **_named(requests, limits)}


def used(quota: core.ResourceQuota, pods: Iterable[core.Pod]) -> dict[str, Fraction]:
    """Return what the namespace's pods have taken of each resource that the quota limits."""
    total = dict.fromkeys(_counted(quota), Fraction(0))
    counts_alone = total.keys() <= COUNTS
    for pod in pods:
        if _takes(quota, pod):
            for name, value in usage(pod, counts_alone=counts_alone).items():
                if name in total:
                    total[name] += value
    return total


def check_limits(quota: core.ResourceQuota) -> None:
    """Refuse a quota of what no quota counts, or whose limits are not quantities, or below zero. Raises: Invalid."""
    name = quota.metadata.name
    if not name:
        raise errors.Invalid('ResourceQuota "" is invalid: metadata.name: Required value', reason="QuotaInvalid")
    for resource, text in quota.spec.hard.items():
        if not _is_resource(resource):
            shown = errors.readable(resource[:80])
            message = f'ResourceQuota "{name}" is invalid: spec.hard[{shown}]: Invalid value: "{shown}": {_UNKNOWN}'
            hint = "such as pods, limits.memory, requests.cpu or requests.nvidia.com/gpu"
            raise errors.Invalid(message, reason="QuotaInvalid", hint=hint)
        try:
            problem = _NOT_NEGATIVE if quantity.parse_quantity(text) < 0 else ""
        except errors.Invalid as error:
            problem = error.message
        if problem:
            message = f'ResourceQuota "{name}" is invalid: spec.hard[{resource}]: Invalid value: "{text}": {problem}'
            raise errors.Invalid(message, reason="QuotaInvalid")


def check(pod: core.Pod, quotas: Iterable[core.ResourceQuota], pods: Iterable[core.Pod]) -> None:
    """Let a pod pass, or refuse it as an API server would.

    Args:    quotas: those of the pod's namespace.   pods: all of that namespace, without this one.
    Raises:  Denied (`Forbidden`): a quota would be exceeded, or a resource it counts is not stated.
    """
    others = tuple(pods)
    for quota in sorted(quotas, key=lambda item: item.metadata.name):
        if _counted(quota) and _takes(quota, pod):
            _refuse(pod, quota, _unstated(quota, pod) or _excess(quota, pod, used(quota, others)))


def _refuse(pod: core.Pod, quota: core.ResourceQuota, problem: str) -> None:
    if problem:
        name = pod.metadata.name or pod.metadata.generate_name
        message = f'pods "{name}" is forbidden: {problem}'
        hint = "ask for less, wait for pods to end, or have the quota raised"
        raise errors.Denied(message, reason="Forbidden", hint=hint, quota=quota.metadata.name)


def check_growth(
    before: core.Pod, after: core.Pod, quotas: Iterable[core.ResourceQuota], pods: Iterable[core.Pod]
) -> None:
    """Let a pod that is there ask for other amounts, or refuse it as an API server would.

    What it asks less of, or as much as before, is not judged: a namespace that is beyond its quota may shrink.
    Args:    quotas: those of the pod's namespace.   pods: all of that namespace, without this one.
    Raises:  Denied (`Forbidden`): a quota would be exceeded.
    """
    had, others = usage(before), tuple(pods)
    more = {name for name, value in usage(after).items() if value > had.get(name, Fraction(0))}
    for quota in sorted(quotas, key=lambda item: item.metadata.name):
        if more & _counted(quota).keys() and _takes(quota, after):
            _refuse(after, quota, _excess(quota, after, used(quota, others), more))


def check_claims(name: str, quotas: Iterable[core.ResourceQuota], present: int) -> None:
    """Let one more claim pass, or refuse it as an API server would.

    Args:    quotas: those of its namespace; one with scopes counts pods alone.   present: claims of that namespace.
    Raises:  Denied (`Forbidden`).
    """
    for quota in sorted(quotas, key=lambda item: item.metadata.name):
        for resource, limit in limits_of_claims(quota).items():
            if present + 1 > limit.value:
                message = (
                    f'persistentvolumeclaims "{name}" is forbidden: exceeded quota: {quota.metadata.name}, '
                    f"requested: {resource}=1, used: {resource}={present}, limited: {resource}={limit}"
                )
                hint = "remove volumes that are not needed (`fairlead volume prune`), or have the quota raised"
                raise errors.Denied(message, reason="Forbidden", hint=hint, quota=quota.metadata.name)


def limits_of_claims(quota: core.ResourceQuota) -> dict[str, quantity.Quantity]:
    """Return how many claims a quota lets in, by the names that it uses."""
    if quota.spec.scopes or quota.spec.scope_selector:
        return {}
    return {name: quantity.parse(text) for name, text in quota.spec.hard.items() if name in CLAIMS}


def _excess(
    quota: core.ResourceQuota, pod: core.Pod, taken: Mapping[str, Fraction], among: Container[str] | None = None
) -> str:
    """Return what a pod is too much of, empty: nothing. Args: among: names that are judged; None: all."""
    hard = {name: text for name, text in _counted(quota).items() if among is None or name in among}
    asked = {name: value for name, value in usage(pod).items() if name in hard and value}
    limits = {name: quantity.parse(text) for name, text in hard.items()}
    over = sorted(name for name, value in asked.items() if taken[name] + value > limits[name].value)
    if not over:
        return ""
    shown = [
        ",".join(f"{name}={quantity.emit_quantity(amounts[name], limits[name].form)}" for name in over)
        for amounts in (asked, taken, {name: limit.value for name, limit in limits.items()})
    ]
    return f"exceeded quota: {quota.metadata.name}, requested: {shown[0]}, used: {shown[1]}, limited: {shown[2]}"


def _unstated(quota: core.ResourceQuota, pod: core.Pod) -> str:
    missing: dict[str, set[str]] = {}
    for item in (*pod.spec.containers, *pod.spec.init_containers):
        stated = _named(_exact(item.resources.requests), _exact(item.resources.limits))
        for name in _STATED & _counted(quota).keys() - stated.keys():
            missing.setdefault(name, set()).add(item.name)
    if not missing:
        return ""
    listed = "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))
    return f"failed quota: {quota.metadata.name}: must specify {listed}"


def _named(requests: Mapping[str, Fraction], limits: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return requests and limits by the names that quotas use."""
    plain = {name: value for name, value in requests.items() if name in _NATIVE or name.startswith("hugepages-")}
    asked = {name: value for name, value in requests.items() if name in plain or admission.is_extended(name)}
    return {
        **plain,
        **{f"requests.{name}": value for name, value in asked.items()},
        **{f"limits.{name}": value for name, value in limits.items() if name in _NATIVE},
    }


def _exact(amounts: Mapping[str, str | int | float]) -> dict[str, Fraction]:
    return {name: quantity.parse_quantity(text) for name, text in amounts.items()}


def _counted(quota: core.ResourceQuota) -> dict[str, str | int | float]:
    """Return the quota's limits on pods; those on other kinds of objects are not ours."""
    plain = {"pods", _COUNT, *_NATIVE, *(f"{side}.{name}" for side in ("requests", "limits") for name in _NATIVE)}
    return {name: value for name, value in quota.spec.hard.items() if name in plain or _is_prefixed(name)}


def _is_resource(name: str) -> bool:
    """Return whether a name is one that a quota may have: what is misspelt would limit nothing."""
    domain, slash, rest = name.rpartition("/")
    if slash:
        return len(domain) <= 253 and names.is_dns_subdomain(domain) and _QUALIFIED.fullmatch(rest) is not None
    bare = name.removeprefix("requests.").removeprefix("limits.")
    is_pages = bare.startswith("hugepages-") and _QUALIFIED.fullmatch(bare) is not None
    return name in _OBJECTS or bare in _NATIVE or is_pages


def _is_prefixed(name: str) -> bool:
    bare = name.removeprefix("requests.")
    return bare.startswith("hugepages-") or (bare != name and admission.is_extended(bare))


# scopes


def _is_best_effort(pod: core.Pod) -> bool:
    items = (*pod.spec.containers, *pod.spec.init_containers)
    return not any(
        name in {"cpu", "memory"} for item in items for name in (*item.resources.requests, *item.resources.limits)
    )


def _is_terminating(pod: core.Pod) -> bool:
    return pod.spec.active_deadline_seconds is not None


def _has_class(pod: core.Pod) -> bool:
    return bool(pod.spec.priority_class_name)


_SCOPES: Final[Mapping[str, Callable[[core.Pod], bool]]] = {
    "Terminating": _is_terminating,
    "NotTerminating": lambda pod: not _is_terminating(pod),
    "BestEffort": _is_best_effort,
    "NotBestEffort": lambda pod: not _is_best_effort(pod),
    "PriorityClass": _has_class,
    "CrossNamespacePodAffinity": lambda _: False,
}

_CLASSES: Final[Mapping[str, Callable[[str, tuple[str, ...]], bool]]] = {
    "In": lambda name, values: name in values,
    "NotIn": lambda name, values: name not in values,
    "Exists": lambda name, _: bool(name),
    "DoesNotExist": lambda name, _: not name,
}


def _takes(quota: core.ResourceQuota, pod: core.Pod) -> bool:
    chosen = quota.spec.scope_selector.match_expressions if quota.spec.scope_selector else ()
    plain = (*quota.spec.scopes, *(item.scope_name for item in chosen if item.scope_name != "PriorityClass"))
    if not all(name in _SCOPES and _SCOPES[name](pod) for name in plain):
        return False
    classes = [item for item in chosen if item.scope_name == "PriorityClass"]
    return all(
        item.operator in _CLASSES and _CLASSES[item.operator](pod.spec.priority_class_name, item.values)
        for item in classes
    )

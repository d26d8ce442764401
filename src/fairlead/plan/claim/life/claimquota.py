"""Decides whether a namespace's quotas let one more claim in, by the names that Kubernetes has for them. Pure.

A claim counts with what it asks for, allocated or not: the most of its alternatives, and for `All` as many devices as
one claim can have. Where a class stands for a resource its devices count against `requests.RESOURCE` too, beside what
pods request; a claim that was made for a pod's own requests of it counts with the rest alone.
Source: kubernetes 1.37 pkg/quota/v1/evaluator/core/resource_claims.go (behaviour).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.claim.search.request import MOST
from fairlead.plan.pod import podstate
from fairlead.wire.kubernetes import core, quantity
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.request import DeviceSubRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, ResourceClaim

COUNT: Final = "count/resourceclaims.resource.k8s.io"
_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
_REQUESTS: Final = "requests."
_STANDING: Final = "api.user_gpus"
T = TypeVar("T", bound=Object)


class Seen(Protocol):
    """The objects of one moment, as `store.port.Reader`."""

    def list(self, kind: type[T], namespace: str) -> tuple[T, ...]:
        """Return the objects of a kind in one namespace."""
        ...


@frozen
class Together:
    """What claims and pods take of the resources that classes stand for."""

    resources: Mapping[str, str]
    """By class: the resource."""
    asked: Mapping[str, Mapping[str, int]]
    """By uid of a pod that has not ended: how many devices of each resource it requests."""

    def by_claim(self, claim: ResourceClaim) -> dict[str, int]:
        """Return what a claim takes beyond what the pod requests that it was made for, by the names of quotas."""
        found = Counter[str]()
        for name, count in usage(claim).items():
            if resource := self.resources.get(name.removesuffix(_DEVICES)):
                found[resource] += count
        owner = lifecycle.owning_pod(claim) if EXTENDED_RESOURCE_CLAIM in claim.metadata.annotations else None
        own = self.asked.get(owner.uid, {}) if owner is not None else {}
        return {f"{_REQUESTS}{name}": max(0, count - own.get(name, 0)) for name, count in found.items()}

    def by_pods(self) -> Counter[str]:
        """Return what pods request, by the names of quotas."""
        found = Counter[str]()
        for one in self.asked.values():
            found.update({f"{_REQUESTS}{name}": count for name, count in one.items()})
        return found


def check_seen(claim: ResourceClaim, seen: Seen, *, most_devices: int = 0) -> None:
    """Let a claim pass that its namespace has room for.

    Args:    most_devices: see `check`.
    Raises:  Denied (`Forbidden`).
    """
    namespace = claim.metadata.namespace
    quotas, together = seen.list(core.ResourceQuota, namespace), None
    if any(name.startswith(_REQUESTS) for one in quotas for name in one.spec.hard):
        classes = seen.list(DeviceClass, "")
        resources = {one.metadata.name: one.spec.extended_resource_name or "" for one in classes}
        pods = seen.list(core.Pod, namespace)
        asked = {one.metadata.uid: podstate.asked_devices(one) for one in pods if not podstate.is_final(one)}
        together = Together(resources=resources, asked=asked)
    check(claim, quotas, seen.list(ResourceClaim, namespace), most_devices=most_devices, together=together)


def usage(claim: ResourceClaim) -> dict[str, int]:
    """Return what a claim takes, by the names that quotas use."""
    found = Counter[str]({COUNT: 1})
    for one in claim.spec.devices.requests or ():
        most = Counter[str]()
        for way in (one.exactly,) if one.exactly is not None else one.first_available:
            most |= Counter({f"{way.device_class_name}{_DEVICES}": _devices(way)})
        found += most
    return dict(found)


def check(
    claim: ResourceClaim,
    quotas: Iterable[core.ResourceQuota],
    present: Iterable[ResourceClaim],
    *,
    most_devices: int = 0,
    together: Together | None = None,
) -> None:
    """Let a claim pass, or refuse it as an API server would.

    Args:    quotas, present: of its namespace.   most_devices: of each class at once, where no quota counts it; 0: any.
             together: what claims and pods take of one resource; None: no quota counts that.
    Raises:  Denied (`Forbidden`).
    """
    asked, used = Counter(usage(claim)), Counter[str]()
    for one in present:
        used.update(usage(one))
    if together is not None:
        asked.update(together.by_claim(claim))
        used.update(together.by_pods())
        for one in present:
            used.update(together.by_claim(one))
    for name, hard in _limits(tuple(quotas), asked, most_devices):
        if over := sorted(each for each, limit in hard.items() if used[each] + asked[each] > limit):
            shown = (",".join(f"{each}={amounts[each]}" for each in over) for amounts in (asked, used, hard))
            said = dict(zip(("requested", "used", "limited"), shown, strict=True))
            text = ", ".join(f"{word}: {amounts}" for word, amounts in said.items())
            about = claim.metadata.name or claim.metadata.generate_name
            message = f'resourceclaims "{about}" is forbidden: exceeded quota: {name}, {text}'
            hint = "ask for less, remove claims that are not needed, or have the quota raised"
            raise errors.Denied(message, reason="Forbidden", hint=hint, quota=name)


def _limits(
    quotas: tuple[core.ResourceQuota, ...], asked: Mapping[str, int], most_devices: int
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the limits on what is asked, quota by quota; the machine's own for classes that no quota counts."""
    stated = set[str]()
    for one in sorted(quotas, key=lambda each: each.metadata.name):
        if one.spec.scopes or one.spec.scope_selector:
            continue  # it counts pods alone
        hard = {name: int(quantity.parse_quantity(text)) for name, text in one.spec.hard.items() if name in asked}
        stated |= hard.keys()
        yield one.metadata.name, hard
    if most_devices:
        yield _STANDING, {name: most_devices for name in asked if name.endswith(_DEVICES) and name not in stated}


def _devices(way: ExactDeviceRequest | DeviceSubRequest) -> int:
    if isinstance(way, ExactDeviceRequest) and way.admin_access:
        return 0
    return MOST if way.allocation_mode == "All" else max(1, way.count)

"""Decides whether a namespace's quotas let one more claim in, by the names that Kubernetes has for them. Pure.

A claim counts with what it asks for, allocated or not: the most of its alternatives, and for `All` as many devices as
one claim can have. What claims and pods together take of a resource (`requests.nvidia.com/gpu`) is not added up here.
Source: kubernetes 1.37 pkg/quota/v1/evaluator/core/resource_claims.go (behaviour).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fairlead import errors
from fairlead.plan.claim.search.request import MOST
from fairlead.wire.kubernetes import core, quantity
from fairlead.wire.kubernetes.resource.request import DeviceSubRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

COUNT: Final = "count/resourceclaims.resource.k8s.io"
_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
_STANDING: Final = "api.user_gpus"


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
) -> None:
    """Let a claim pass, or refuse it as an API server would.

    Args:    quotas, present: of its namespace.   most_devices: of each class at once, where no quota counts it; 0: any.
    Raises:  Denied (`Forbidden`).
    """
    asked, used = usage(claim), Counter[str]()
    for one in present:
        used.update(usage(one))
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

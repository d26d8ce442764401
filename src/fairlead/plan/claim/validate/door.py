"""Admits objects of resource.k8s.io as an API server does: defaults, feature gates, rules, in this order.

Each function takes an object as it was read and returns what to store, with the paths of the fields that were dropped
because their feature is off: the caller says them to the client.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from fairlead import errors
from fairlead.plan.claim import default, gate
from fairlead.plan.claim.validate import deviceclass, devicetaintrule, poolstatusrequest, request, resourceclaim
from fairlead.plan.claim.validate import resourceslice as slices
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest
from fairlead.wire.kubernetes.resource.resourceclaim import (
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

T = TypeVar("T", bound=meta.Object)

_MOST_PROBLEMS: Final = 100
"""A document of 1.5 MB may break 100,000 rules; to say each would take ten times its size."""
_NO_STATUS: Final = ResourceClaimStatus()


@dataclass(frozen=True, slots=True)
class Admitted(Generic[T]):
    """An object to store."""

    item: T
    dropped: tuple[str, ...] = ()
    """Paths of the fields that were left out since their feature is off."""


def admit_claim(
    claim: ResourceClaim, rules: request.Rules, *, namespace_labels: Mapping[str, str], old: ResourceClaim | None = None
) -> Admitted[ResourceClaim]:
    """Admit the metadata and spec of a claim; its status is what it was before.

    Args:    namespace_labels: of the claim's namespace, which allow admin access.   old: the stored claim, None: new.
    Raises:  Invalid.
    """
    item = default.claim(msgspec.structs.replace(claim, status=old.status if old else _NO_STATUS))
    spec, dropped = gate.claim_spec(item.spec, rules.gates, old=old.spec if old else None)
    item = msgspec.structs.replace(item, spec=spec)
    if old is None:
        admin = resourceclaim.admin_problems(item.spec.devices, namespace_labels)
        _refuse(item, itertools.chain(admin, resourceclaim.problems(item, rules)))
    else:
        _refuse(item, resourceclaim.update_problems(item, default.claim(old)))
    return Admitted(item, dropped)


def admit_claim_status(
    claim: ResourceClaim, rules: request.Rules, *, namespace_labels: Mapping[str, str], old: ResourceClaim
) -> Admitted[ResourceClaim]:
    """Admit the status of a claim; its spec is what it was before. Raises: Invalid."""
    stored = default.claim(old)
    item, dropped = gate.claim_status(
        default.claim(msgspec.structs.replace(claim, spec=stored.spec)), rules.gates, old=stored
    )
    item = resourceclaim.without_deallocated(item, stored)
    admin = resourceclaim.admin_status_problems(item.status, stored.status, namespace_labels)
    _refuse(item, itertools.chain(admin, resourceclaim.status_problems(item, stored)))
    return Admitted(item, dropped)


def admit_template(
    template: ResourceClaimTemplate,
    rules: request.Rules,
    *,
    namespace_labels: Mapping[str, str],
    old: ResourceClaimTemplate | None = None,
) -> Admitted[ResourceClaimTemplate]:
    """Admit a template of claims. Raises: Invalid."""
    item = default.claim_template(template)
    before: ResourceClaimSpec | None = old.spec.spec if old else None
    spec, dropped = gate.claim_spec(item.spec.spec, rules.gates, "spec.spec", old=before)
    item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, spec=spec))
    if old is None:
        admin = resourceclaim.admin_problems(spec.devices, namespace_labels)
        _refuse(item, itertools.chain(admin, resourceclaim.template_problems(item, rules)))
    else:
        _refuse(item, resourceclaim.template_update_problems(item, default.claim_template(old)))
    return Admitted(item, dropped)


def admit_class(item: DeviceClass, rules: request.Rules, *, old: DeviceClass | None = None) -> Admitted[DeviceClass]:
    """Admit a class of devices. Raises: Invalid."""
    found = deviceclass.update_problems(item, old, rules) if old else deviceclass.problems(item, rules)
    _refuse(item, found)
    return Admitted(item)


def admit_slice(
    item: ResourceSlice, gates: gate.Gates, now: str, *, old: ResourceSlice | None = None
) -> Admitted[ResourceSlice]:
    """Admit a slice of a driver.

    Args:    now: RFC 3339 in whole seconds, for taints that do not say since when they are.
    Raises:  Invalid.
    """
    kept, dropped = gate.resource_slice(default.resource_slice(item, now), gates, old=old)
    _refuse(kept, slices.update_problems(kept, old, gates) if old else slices.problems(kept, gates))
    return Admitted(kept, dropped)


def admit_taint_rule(item: DeviceTaintRule, now: str, *, old: DeviceTaintRule | None = None) -> DeviceTaintRule:
    """Admit the metadata and spec of a rule that taints devices, as `admit_slice`. Raises: Invalid."""
    kept = default.taint_rule(item, now)
    _refuse(kept, devicetaintrule.update_problems(kept, old) if old else devicetaintrule.problems(kept))
    return kept


def admit_taint_rule_status(item: DeviceTaintRule, *, old: DeviceTaintRule) -> DeviceTaintRule:
    """Admit the status of a rule that taints devices; its spec is what it was before. Raises: Invalid."""
    kept = msgspec.structs.replace(item, spec=old.spec)
    _refuse(kept, devicetaintrule.status_problems(kept, old))
    return kept


def admit_pool_status_request(
    item: ResourcePoolStatusRequest, gates: gate.Gates, *, old: ResourcePoolStatusRequest | None = None
) -> Admitted[ResourcePoolStatusRequest]:
    """Admit a question about pools; its answer is what it was before. Raises: Invalid."""
    asked = default.pool_status_request(msgspec.structs.replace(item, status=old.status if old else None))
    kept, dropped = gate.pool_status_request(asked, gates, old=old)
    _refuse(kept, poolstatusrequest.update_problems(kept, old) if old else poolstatusrequest.problems(kept))
    return Admitted(kept, dropped)


def _refuse(item: meta.Object, found: Iterator[str]) -> None:
    """Raise the problems of an object, the first ones where there are very many."""
    found = _once(found)
    problems = list(itertools.islice(found, _MOST_PROBLEMS))
    if not problems:
        return
    name = item.metadata.name or item.metadata.generate_name
    text = "; ".join(problems) + ("; and more" if next(found, None) is not None else "")
    message = f'{item.KIND} "{name}" is invalid: {text}'
    raise errors.Invalid(message, reason=f"{item.KIND}Invalid", problems=problems)


def _once(found: Iterator[str]) -> Iterator[str]:
    """Yield each problem once, as a server says it: `/` is two empty names."""
    said: set[str] = set()
    for problem in found:
        if problem not in said:
            said.add(problem)
            yield problem

"""Reads what claims want: one row a request or alternative, checked before anything is searched.

What the reference makes an error of the pod is one here too (`Fatal`), in its words: a class that is not there, a
feature that is off, more devices than a claim can record. Two errors are ours: a class whose selector is no CEL, which
ends the reference itself, and a negative count.
Source: k8s.io/dynamic-resource-allocation v0.37.2 structured/internal/incubating/allocator_incubating.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool import held
from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.wire.kubernetes.resource.device import DeviceToleration, Quantity
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.request import DeviceSelector, DeviceSubRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

MOST: Final = 32
"""Devices that the status of one claim can record."""
EXACT, ALL = "ExactCount", "All"
_NO_AMOUNTS: Final[Mapping[str, Quantity]] = {}


class Fatal(Exception):
    """What ends the allocation of the pod on every node."""

    def __init__(self, message: str, reason: str, *, brief: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.brief = brief or message
        """Without the device's name, so that nodes that fail alike say the same."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One expression, and who says it."""

    owner: str
    """`class NAME` or `claim NAME`."""
    number: int
    expression: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on devices of a claim together."""

    at: tuple[int, int]
    claim: int
    attribute: str
    is_match: bool
    """All have one value; otherwise no two have."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Wanted:
    """One request, or one alternative of a request."""

    at: int
    claim: int
    request: int
    sub: int
    owner: str
    """The claim, in words."""
    name: str
    label: str
    """`request`, or `request/alternative`."""
    is_sub: bool
    device_class: DeviceClass
    selectors: tuple[Selector, ...]
    count: int
    is_all: bool
    admin: bool | None
    tolerations: tuple[DeviceToleration, ...]
    amounts: Mapping[str, Quantity]
    derived: Mapping[str, str]
    """Attributes that are computed for each device, with their expressions: what constraints see under these names."""
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All that the claims of a pod want."""

    claims: tuple[ResourceClaim, ...]
    rows: tuple[Wanted, ...]
    requests: tuple[tuple[tuple[Wanted, ...], ...], ...]
    """By claim and request, the alternatives; a request without alternatives has one row."""
    every: Mapping[int, tuple[Candidate, ...]]
    """By row, the devices that `All` means."""


ListAll = Callable[[Wanted], tuple[Candidate, ...]]
"""Returns all devices that a row matches. Raises: Fatal."""


def read(claims: Sequence[ResourceClaim], classes: Mapping[str, DeviceClass], gates: Gates, list_all: ListAll) -> Table:
    """Return what claims want. Raises: Fatal."""
    rows: list[Wanted] = []
    requests: list[tuple[tuple[Wanted, ...], ...]] = []
    every: dict[int, tuple[Candidate, ...]] = {}
    for number, claim in enumerate(claims):
        constraints, least = _constraints(claim, number), 0
        of_claim: list[tuple[Wanted, ...]] = []
        for at, request in enumerate(claim.spec.devices.requests or ()):
            _check_features(claim, at, gates)
            alternatives = []
            for sub, one in enumerate(request.first_available or [request.exactly]):
                row = _row(claim, (number, at, sub), one, classes, gates, constraints, len(rows))
                rows.append(row)
                if row.is_all:
                    every[row.at] = list_all(row)
                alternatives.append(row)
            fewest = min(len(every[row.at]) if row.is_all else row.count for row in alternatives)
            if fewest > MOST - least:
                message = (
                    f"claim {held.holder(claim)}, request {request.name}: adding {fewest} devices exceeds the claim"
                    f" limit of {MOST}, with {least} already accounted for"
                )
                raise Fatal(message, "TooMany")
            least += fewest
            of_claim.append(tuple(alternatives))
        _check_constraints(claim)
        requests.append(tuple(of_claim))
    return Table(claims=tuple(claims), rows=tuple(rows), requests=tuple(requests), every=every)


def _check_features(claim: ResourceClaim, at: int, gates: Gates) -> None:
    request = (claim.spec.devices.requests or ())[at]
    owner = held.holder(claim)
    if request.first_available and not gates.prioritized_list:
        message = (
            f"claim {owner}, request {request.name}: has subrequests, but the DRAPrioritizedList feature is disabled"
        )
        raise Fatal(message, "FeatureOff")
    if gates.consumable_capacity:
        return
    said = [
        ("request", request.name, request.exactly),
        *(("subrequest", one.name, one) for one in request.first_available),
    ]
    for kind, name, one in said:
        if one is not None and one.capacity is not None:
            text = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
            raise Fatal(f"claim {owner}, {kind} {name}: {text}", "FeatureOff")


def _row(
    claim: ResourceClaim,
    place: tuple[int, int, int],
    one: ExactDeviceRequest | DeviceSubRequest | None,
    classes: Mapping[str, DeviceClass],
    gates: Gates,
    constraints: Sequence[tuple[Constraint, tuple[str, ...]]],
    at: int,
) -> Wanted:
    request = (claim.spec.devices.requests or ())[place[1]]
    is_sub = isinstance(one, DeviceSubRequest)
    name = one.name if isinstance(one, DeviceSubRequest) else request.name
    owner = held.holder(claim)
    where = f"claim {owner}, request {name}"
    if one is None or not one.device_class_name:
        raise Fatal(f"{where}: missing device class name (unsupported request type?)", "RequestUnknown")
    admin = one.admin_access if isinstance(one, ExactDeviceRequest) else None
    if one.derived_attributes and not gates.derived_attributes:
        raise Fatal(f"{where}: cannot handle request with derived attributes, the feature is disabled", "FeatureOff")
    selectors = tuple(_selectors(where, f"claim {owner}", one.selectors))
    if admin is not None and not gates.admin_access:
        raise Fatal(f"{where}: admin access is requested, but the feature is disabled", "FeatureOff")
    device_class = classes.get(one.device_class_name)
    if device_class is None:
        message = f"{where}: could not retrieve device class {one.device_class_name}: not found"
        raise Fatal(message, "ClassNotFound")
    mode, count = one.allocation_mode or EXACT, one.count
    if mode not in {EXACT, ALL}:
        raise Fatal(f"{where}: unsupported count mode {mode}", "RequestUnknown")
    if count < 0:
        raise Fatal(f"{where}: a count of {count} is less than nothing", "RequestUnknown")
    of_class = _selectors(
        f"class {one.device_class_name}", f"class {one.device_class_name}", device_class.spec.selectors
    )
    names = {request.name, f"{request.name}/{name}"} if is_sub else {request.name}
    return Wanted(
        at=at,
        claim=place[0],
        request=place[1],
        sub=place[2],
        owner=owner,
        name=name,
        label=f"{request.name}/{name}" if is_sub else name,
        is_sub=is_sub,
        device_class=device_class,
        selectors=(*of_class, *selectors),
        count=count or 1,
        is_all=mode == ALL,
        admin=admin,
        tolerations=one.tolerations,
        amounts=one.capacity.requests if one.capacity is not None else _NO_AMOUNTS,
        derived={each.name: each.expression for each in one.derived_attributes},
        constraints=tuple(each for each, of in constraints if not of or not names.isdisjoint(of)),
    )


def _selectors(where: str, owner: str, items: Sequence[DeviceSelector]) -> Iterator[Selector]:
    for number, item in enumerate(items):
        if item.cel is None:
            message = f"{where}, selector #{number}: CEL expression empty (unsupported selector type?)"
            raise Fatal(message, "SelectorUnknown")
        yield Selector(owner, number, item.cel.expression)


def _constraints(claim: ResourceClaim, number: int) -> tuple[tuple[Constraint, tuple[str, ...]], ...]:
    found = []
    for at, item in enumerate(claim.spec.devices.constraints):
        attribute = item.match_attribute if item.match_attribute is not None else item.distinct_attribute
        is_match = item.match_attribute is not None
        found.append((Constraint((number, at), number, attribute or "", is_match), item.requests))
    return tuple(found)


def _check_constraints(claim: ResourceClaim) -> None:
    for at, item in enumerate(claim.spec.devices.constraints):
        if item.match_attribute is None and item.distinct_attribute is None:
            message = f"claim {held.holder(claim)}, constraint #{at}: empty constraint (unsupported constraint type?)"
            raise Fatal(message, "ConstraintUnknown")

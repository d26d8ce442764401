"""Holds the capacity that a claim's status says it consumes of a shared device against what it can be. Pure.

A scheduler writes the amount that the claim's request takes by the device's policy, and limits of MPS are made of it.
But a status is an object of its own in an API server, and whoever may write it could raise a claim's limit to the whole
GPU. So an amount counts that the request takes of the device as this node offers it; and what the node's prepared
claims have of a device never comes to more than it has.
Source: KEP-5075 (consumable capacity), the scheduler's rounding and sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final, Protocol

from fairlead import errors
from fairlead.plan.claim.search import capacity
from fairlead.plan.dra import attribute
from fairlead.plan.dra.offered import OfferedDevice
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import Quantity
from fairlead.wire.kubernetes.resource.request import DeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim

WRONG: Final = "ShareNotAsked"
EXCEEDED: Final = "SharesExceeded"
_HINT: Final = (
    "something else than a scheduler wrote its status, or node.claim_shares was changed after it was allocated: delete "
    "the claim, or the pod that it was made for"
)

Amounts = tuple[tuple[str, str], ...]
"""Name of a capacity as the device has it, and how much of it; in the order of the names."""


class Holder(Protocol):
    """A prepared device, or one that is to be."""

    @property
    def device(self) -> str:
        """Its name."""
        ...

    @property
    def consumed(self) -> Amounts:
        """What its claim has of it."""
        ...


def amounts_of(result: DeviceRequestAllocationResult) -> Amounts:
    """Return what a status says is consumed of a device; our own names are the same with and without our domain."""
    own = f"{attribute.DRIVER}/"
    return tuple(sorted((name.removeprefix(own), str(text)) for name, text in result.consumed_capacity.items()))


def check(claim: ResourceClaim, result: DeviceRequestAllocationResult, offered: OfferedDevice, words: str) -> None:
    """Refuse an amount that the claim's request does not take of the device, as this node offers it.

    A device whose shares nothing holds anybody to may have no amounts in the status at all: they limit nothing.
    Raises: Invalid (`ShareNotAsked`): with both figures.
    """
    given, asked = dict(amounts_of(result)), _asked(claim, result.request)
    if not given and offered.shares is None:
        return
    due = _due(given if asked is None else asked, offered, words)
    for name in sorted(given.keys() | due.keys()):
        has, takes = given.get(name), due.get(name)
        if (has is None and offered.shares is None) or _is_same(has, takes):
            continue
        of = "the policy of the device" if asked is None else "its request"
        message = (
            f"claim {words} has {_shown(has)} of {_shown(name)} of {offered.name} by its status, and {of} takes "
            f"{_shown(takes)}"
        )
        raise errors.Invalid(message, reason=WRONG, hint=_HINT)


def find_excess(
    wanted: Iterable[Holder], others: Iterable[tuple[str, Holder]], devices: Mapping[str, OfferedDevice], words: str
) -> errors.Conflict | None:
    """Return why a claim's shares do not fit beside those that are prepared; None: they do.

    Args:    others: words for a claim, and a device of it.   devices: that the node offers, by name.
    """
    own = [one for one in wanted if one.consumed]
    beside = [(name, one) for name, one in others if one.consumed]
    for device in sorted({one.device for one in own} & devices.keys()):
        mine = _sums(one for one in own if one.device == device)
        theirs = _sums(one for _, one in beside if one.device == device)
        for name, amount in sorted(mine.items()):
            there = devices[device].device.capacity.get(name)
            taken = theirs.get(name, Fraction(0))
            if there is None or amount + taken <= (whole := quantity.parse(there.value)).value:
                continue
            holders = ", ".join(dict.fromkeys(who for who, one in beside if one.device == device))
            with_them = f", and {holders} {quantity.emit_quantity(taken, whole.form)}" if holders else ""
            message = (
                f"claim {words} has {quantity.emit_quantity(amount, whole.form)} of {name} of {device}{with_them}: "
                f"the device has {there.value}"
            )
            hint = "their statuses say more than a scheduler gives: `fairlead dra check` names them; delete one of them"
            return errors.Conflict(message, reason=EXCEEDED, hint=hint)
    return None


def _asked(claim: ResourceClaim, reference: str) -> Mapping[str, str] | None:
    """Return the amounts that a request names; None: the spec is not known, of a claim that is adopted."""
    requests = claim.spec.devices.requests
    if not requests:
        return None
    name, _, alternative = reference.partition("/")
    found = (_capacity(one, alternative) for one in requests if one.name == name)
    own = f"{attribute.DRIVER}/"
    return {key.removeprefix(own): str(text) for amounts in found for key, text in amounts.items()}


def _capacity(request: DeviceRequest, alternative: str) -> Mapping[str, Quantity]:
    among = [one for one in request.first_available or () if one.name == alternative] if alternative else []
    chosen = among[0] if among else request.exactly
    return chosen.capacity.requests if chosen is not None and chosen.capacity is not None else {}


def _due(asked: Mapping[str, str], offered: OfferedDevice, words: str) -> Mapping[str, str]:
    """Return what a request takes of a device. Raises: Invalid: nothing, since it does not fit."""
    try:
        found = capacity.consumption(asked, offered.device.capacity, fractions=False)
    except capacity.CapacityError as error:
        found = str(error)
    if isinstance(found, str):
        said = ", ".join(f"{_shown(text)} of {_shown(name)}" for name, text in sorted(asked.items())) or "all"
        message = f"claim {words} has {said} of {offered.name}, which does not offer that: {errors.readable(found)}"
        raise errors.Invalid(message, reason=WRONG, hint=_HINT)
    return found.texts


def _is_same(one: str | None, other: str | None) -> bool:
    """Return whether two amounts are the same; one that is not there is none."""
    try:
        return quantity.parse_quantity(one or "0") == quantity.parse_quantity(other or "0")
    except errors.Invalid:
        return False


def _shown(text: str | None) -> str:
    return "nothing" if text is None else text[:80] if text.isprintable() else repr(text[:80])


def _sums(devices: Iterable[Holder]) -> Mapping[str, Fraction]:
    found: dict[str, Fraction] = {}
    for name, text in _each(devices):
        found[name] = found.get(name, Fraction(0)) + quantity.parse_quantity(text)
    return found


def _each(devices: Iterable[Holder]) -> Iterator[tuple[str, str]]:
    return (amount for one in devices for amount in one.consumed)

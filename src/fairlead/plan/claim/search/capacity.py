"""Says how much of a device's capacity a request consumes, by the request and the policy of each capacity.

Amounts are rounded up to what the policy allows; what it does not allow, or what the device does not have, makes the
device unfit for the request. An amount that cannot be said in the arithmetic of the policy is an error of the claim.
Source: k8s.io/dynamic-resource-allocation v0.37.2 structured/internal/incubating/consumable_capacity.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from fairlead import errors
from fairlead.plan.claim.pool.candidate import ONE
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.quantity import Quantity
from fairlead.wire.kubernetes.resource.device import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity

_LARGEST: Final = quantity.LARGEST
_MILLI: Final = Fraction(1, 1000)
_NOT_SAID: Final = "capacity request cannot be represented in the device's range arithmetic"


@dataclass(frozen=True, slots=True)
class Consumption:
    """What one allocation of a device consumes."""

    amounts: tuple[tuple[str, int, int], ...]
    """Name, what is consumed and what there is, in billionths."""
    texts: Mapping[str, str]
    """What is consumed, as it is written into the claim."""


class CapacityError(Exception):
    """An amount that ends the allocation of the pod."""


def consumption(
    requests: Mapping[str, str | int | float], capacity: Mapping[str, DeviceCapacity], *, fractions: bool
) -> Consumption | str:
    """Return what a request consumes of a device, or why the device does not fit it.

    Args:    fractions: the gate DRAFractionalCapacityRange is on.
    Raises:  CapacityError: the amount cannot be represented, or is negative.
    """
    asked = {name: _asked(name, text) for name, text in requests.items()}
    for name in requests:
        if name not in capacity:
            return f"it has no capacity {name}"
    try:
        found = {name: _checked(name, asked.get(name), one, fractions) for name, one in capacity.items()}
        return _judged(found, capacity, fractions)
    except errors.Invalid as error:
        return f"a capacity of it is no quantity: {error.message}"


def _asked(name: str, text: str | float) -> Quantity:
    try:
        return quantity.parse(text)
    except errors.Invalid as error:
        message = f'capacity "{name}": {error.message}'
        raise CapacityError(message) from error


def _checked(name: str, asked: Quantity | None, capacity: DeviceCapacity, fractions: bool) -> Quantity:
    """Return what is consumed of one capacity, which is all of them before any of them is judged."""
    try:
        found = _consumed(asked, capacity, fractions)
    except CapacityError as error:
        message = f'capacity "{name}": {error}'
        raise CapacityError(message) from error
    if found.value < 0:
        message = f'capacity "{name}": capacity value is negative'
        raise CapacityError(message)
    return found


def _judged(
    found: Mapping[str, Quantity], capacity: Mapping[str, DeviceCapacity], fractions: bool
) -> Consumption | str:
    amounts = []
    for name, one in capacity.items():
        if one.request_policy is not None and (problem := _violates(found[name], one.request_policy, fractions)):
            return f"capacity {name} is not given out in amounts of {found[name]}: {problem}"
        there = quantity.parse_quantity(one.value)
        if found[name].value > there:
            return f"capacity {name} is short by {_text(found[name].value - there, found[name])}"
        amounts.append((name, _billionths(found[name].value), _billionths(there)))
    return Consumption(tuple(amounts), {name: str(one) for name, one in found.items()})


def _billionths(value: Fraction) -> int:
    return (value * ONE).numerator


def _text(value: Fraction, like: Quantity) -> str:
    return quantity.emit_quantity(value, like.form)


def _consumed(asked: Quantity | None, capacity: DeviceCapacity, fractions: bool) -> Quantity:
    policy = capacity.request_policy
    if asked is None:
        default = policy.default if policy is not None else None
        return quantity.parse(capacity.value if default is None else default)
    if policy is None:
        return asked
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _rounded(asked, policy.valid_range, fractions)
    for text in policy.valid_values:
        if asked.value <= (valid := quantity.parse(text)).value:
            return valid
    return asked


def _rounded(asked: Quantity, within: CapacityRequestPolicyRange, fractions: bool) -> Quantity:
    low = quantity.parse(within.min if within.min is not None else 0)
    if asked.value < low.value:
        return low
    if within.step is None:
        return asked
    step = quantity.parse(within.step)
    unit = _unit(within, fractions)
    if unit == _MILLI and not _is_milli(asked.value):
        message = f"{_NOT_SAID}: request {asked} is not a representable milli value"
        raise CapacityError(message)
    start, by, wanted = (_in(one.value, unit) for one in (low, step, asked))
    if by <= 0:
        return asked  # the policy contradicts itself, and takes no amount
    value = start + -(-(wanted - start) // by) * by
    if value > _LARGEST:
        message = f"{_NOT_SAID}: rounding request {asked} up to the next step passes the largest value"
        raise CapacityError(message)
    return Quantity(value * unit, step.form)


def _violates(value: Quantity, policy: CapacityRequestPolicy, fractions: bool) -> str:
    """Return what a policy says against an amount; empty: nothing."""
    if policy.default is not None and value.value == quantity.parse_quantity(policy.default):
        return ""
    within = policy.valid_range
    if within is None:
        valid = [quantity.parse(text) for text in policy.valid_values]
        is_one = not valid or value.value in [one.value for one in valid]
        return "" if is_one else f"valid values are {', '.join(map(str, valid))}"
    if within.max is not None and value.value > quantity.parse_quantity(within.max):
        return f"at most {quantity.canonical(within.max)}"
    if within.step is not None:
        unit = _unit(within, fractions)
        start, by = (
            _in(quantity.parse_quantity(one if one is not None else 0), unit) for one in (within.min, within.step)
        )
        if (unit == _MILLI and not _is_milli(value.value)) or by <= 0 or (_in(value.value, unit) - start) % by:
            return f"steps of {quantity.canonical(within.step)} from {quantity.canonical(within.min or 0)}"
    return ""


def _unit(within: CapacityRequestPolicyRange, fractions: bool) -> Fraction:
    """Return in which unit a range counts: whole numbers, or thousandths where all of it can be said in them."""
    if not fractions:
        return Fraction(1)
    values = [quantity.parse_quantity(one) for one in (within.min, within.max, within.step) if one is not None]
    step = quantity.parse_quantity(within.step) if within.step is not None else Fraction(1)
    return _MILLI if all(map(_is_milli, values)) and step >= _MILLI else Fraction(1)


def _is_milli(value: Fraction) -> bool:
    return (value * 1000).denominator == 1 and abs(value * 1000) <= _LARGEST


def _in(value: Fraction, unit: Fraction) -> int:
    return ceil(value / unit)

"""Checks how a shared capacity may be requested: its default, and the values or the range that requests are rounded to.

Amounts are compared exactly. Steps are counted in whole numbers, rounded up, unless the gate for fractions is on.
Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, validateRequestPolicy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairlead import errors
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.validate import field
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Quantity,
)

OPTIONS_MOST: Final = 10
_LARGEST: Final = 2**63 - 1
_MILLI: Final = 1000
_WRITTEN: Final = re.compile(r"[+-]?[0-9]*(?:\.([0-9]*))?([num]?)")
_DECIMALS: Final = {"m": 3, "u": 6, "n": 9}
_BOTH: Final = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'


@dataclass(frozen=True, slots=True)
class _Amount:
    value: Fraction
    text: str
    written: Quantity

    @property
    def whole(self) -> int:
        return math.ceil(self.value)

    @property
    def is_whole(self) -> bool:
        return self.value.denominator == 1


def problems(value: Quantity, policy: CapacityRequestPolicy, path: str, gates: Gates) -> Iterator[str]:
    """Yield what is wrong with the request policy of a capacity of that value."""
    wrong = list(_malformed(policy, path))
    most, default = _amount(value), _amount(policy.default)
    if wrong or most is None:
        yield from wrong
    elif policy.valid_values and policy.valid_range is not None:
        yield field.forbidden(path, _BOTH)
    elif policy.valid_values:
        if default is None:
            yield field.required(f"{path}.default", "required when validValues is defined")
        else:
            yield from _values(policy, default, most, f"{path}.validValues", gates)
    elif policy.valid_range is not None:
        if default is None:
            yield field.required(f"{path}.default", "required when validRange is defined")
        else:
            yield from _range(default, policy.valid_range, most, f"{path}.validRange", gates)


def _amount(text: Quantity | None) -> _Amount | None:
    """Return an amount, None: there is none, or it is not a quantity."""
    try:
        return None if text is None else _Amount(quantity.parse_quantity(text), quantity.canonical(text), text)
    except errors.RequestError:
        return None


def _malformed(policy: CapacityRequestPolicy, path: str) -> Iterator[str]:
    """Yield the problems of texts that are not quantities; a server does not decode those."""
    limits = policy.valid_range or CapacityRequestPolicyRange()
    texts: list[tuple[str, Quantity | None]] = [
        ("default", policy.default),
        *((f"validValues[{at}]", one) for at, one in enumerate(policy.valid_values)),
        *(("validRange.min", limits.min), ("validRange.max", limits.max), ("validRange.step", limits.step)),
    ]
    for key, text in texts:
        try:
            quantity.parse_quantity("0" if text is None else text)
        except errors.RequestError as error:
            yield field.invalid(f"{path}.{key}", text, error.message)


def _values(policy: CapacityRequestPolicy, default: _Amount, most: _Amount, path: str, gates: Gates) -> Iterator[str]:
    options = [one for one in map(_amount, policy.valid_values) if one is not None]
    for at in range(1, len(options)):
        if options[at - 1].value > options[at].value:
            yield field.invalid(f"{path}[{at}]", options[at].text, "values must be sorted in ascending order")
    if len(options) > OPTIONS_MOST:
        # The server looks at no option then, and so does not find the default among them either.
        yield field.too_many(path, len(options), OPTIONS_MOST)
        yield field.invalid(path, default.text, "default value is not valid according to the requestPolicy")
        return
    for at, one in enumerate(options):
        if one.value > most.value:
            yield field.invalid(f"{path}[{at}]", one.text, f"option is larger than capacity value: {most.text}")
    if gates.fractional_capacity_range:
        yield from field.unique(options, path, _digits, _digits)
    else:
        yield from field.unique(options, path, lambda one: one.whole, lambda one: str(one.whole))
    if default.value not in {one.value for one in options}:
        yield field.invalid(path, default.text, "default value is not valid according to the requestPolicy")


def _digits(item: _Amount) -> str:
    """Return an amount in as many digits behind the point as it was written with: `1500m` is `1.500`.

    The server compares these texts, so that `1.5` and `1500m` are two options to it.
    """
    shape = _WRITTEN.fullmatch(str(item.written))
    decimals = len(shape[1] or "") + _DECIMALS.get(shape[2], 0) if shape else 0
    whole = abs(item.value) * 10**decimals
    if not decimals or whole.denominator != 1:
        return str(item.whole)
    text = f"{whole.numerator:0{decimals + 1}d}"
    return ("-" if item.value < 0 else "") + f"{text[:-decimals]}.{text[-decimals:]}"


def _range(
    default: _Amount, limits: CapacityRequestPolicyRange, most: _Amount, path: str, gates: Gates
) -> Iterator[str]:
    lowest, highest, step = map(_amount, (limits.min, limits.max, limits.step))
    if lowest is None:
        yield field.required(f"{path}.min", "required when validRange is defined")
        return
    yield from _bounds(default, lowest, highest, most, path)
    given = {"default": default, "min": lowest, "max": highest, "step": step}
    parts = {key: one for key, one in given.items() if one is not None}
    in_milli = gates.fractional_capacity_range and not all(one.is_whole for one in parts.values())
    if in_milli:
        unsafe = [key for key, one in parts.items() if (one.value * _MILLI).denominator != 1]
        for key in unsafe:
            yield field.invalid(f"{path}.{key}", parts[key].text, "value cannot be represented as a milli value")
        if unsafe:
            return
    if step is not None:
        yield from _steps(parts, most, path, in_milli=in_milli)


def _bounds(default: _Amount, lowest: _Amount, highest: _Amount | None, most: _Amount, path: str) -> Iterator[str]:
    if lowest.value > most.value:
        yield field.invalid(f"{path}.min", lowest.text, f"min is larger than capacity value: {most.text}")
    if default.value < lowest.value:
        yield field.invalid(f"{path}.default", default.text, f"default is less than min: {lowest.text}")
    if highest is None:
        return
    if lowest.value > highest.value:
        yield field.invalid(f"{path}.max", lowest.text, f"min is larger than max: {highest.text}")
    if highest.value > most.value:
        yield field.invalid(f"{path}.max", highest.text, f"max is larger than capacity value: {most.text}")
    if default.value > highest.value:
        yield field.invalid(f"{path}.default", default.text, f"default is more than max: {highest.text}")


def _steps(parts: dict[str, _Amount], most: _Amount, path: str, *, in_milli: bool) -> Iterator[str]:
    lowest, step = parts["min"], parts["step"]
    if step.value <= 0:
        yield field.invalid(f"{path}.step", step.text, "must be greater than zero")
        return
    first = lowest.value + step.value
    if first > most.value:
        form = quantity.parse(lowest.text).form if lowest.value else quantity.parse(step.text).form
        shown = quantity.emit_quantity(first, form)
        yield field.invalid(f"{path}.step", step.text, f"one step {shown} is larger than capacity value: {most.text}")
    negative = [] if in_milli else [key for key, one in parts.items() if one.value < 0]
    for key in negative:
        yield field.invalid(f"{path}.{key}", parts[key].text, "must be greater than or equal to 0")
    if negative:
        return
    scale = _MILLI if in_milli else 1
    start, size = (math.ceil(one.value * scale) for one in (lowest, step))
    for key in ("default", "max"):
        one = parts.get(key)
        if one is not None and (math.ceil(one.value * scale) - start) % size:
            detail = f"value is not a multiple of a given step ({step.text}) from ({lowest.text})"
            yield field.invalid(f"{path}.step", one.text, detail)

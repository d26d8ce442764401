"""Holds a quantity as selectors see it: an exact number, and the power of ten that it is counted in.

The power decides nothing but `isInteger` and `asInteger`: the reference says no to each number that it counts in parts
(`1000m`) or keeps as a decimal of any length (`1Pi`, `1234567890123456789`), though it is whole.
Source: apimachinery pkg/api/resource, quantity.go (`ParseQuantity`) and amount.go, v0.37.2.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Final

from fairlead.wire.kubernetes import quantity

_PARTS: Final = re.compile(r"[+-]?0*([0-9]*)(?:\.([0-9]*))?(.*)", re.ASCII | re.DOTALL)
_MOST_DIGITS, _BINARY_DIGITS = 18, 14
_NANO: Final = -9
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class Amount:
    """A quantity. `scale` is the power of ten that it is counted in; None: it is a decimal of any length."""

    __slots__ = ("form", "scale", "value")

    def __init__(self, value: int | Fraction, form: quantity.Form, scale: int | None) -> None:
        self.value = int(value) if value.denominator == 1 else value
        self.form = form
        self.scale = scale

    def __str__(self) -> str:
        return quantity.emit_quantity(self.value, self.form)

    @property
    def is_integer(self) -> bool:
        """Whether the reference takes it for an integer."""
        return self.scale is not None and self.scale >= 0 and _INT_MIN <= self.value <= _INT_MAX

    def plus(self, other: Amount) -> Amount:
        """Return the sum."""
        form = self.form if self.value else other.form
        return Amount(self.value + other.value, form, _scale_of_sum(self, other))

    def minus(self, other: Amount) -> Amount:
        """Return the difference; what is subtracted as -2^63 keeps its sign, as in the reference."""
        form = self.form if self.value else other.form
        turned = -other.value
        is_counted = self.scale is not None and (self.scale >= 0 or not self.value)
        if other.scale == 0 and other.value == _INT_MIN and is_counted and self.value >= 0:
            turned = other.value
        return Amount(self.value + turned, form, _scale_of_sum(self, Amount(turned, other.form, other.scale)))


def _scale_of_sum(one: Amount, other: Amount) -> int | None:
    if one.scale is None or other.scale is None:
        return None
    if not other.value:
        return one.scale
    if not one.value:
        return other.scale
    scale = min(one.scale, other.scale)
    counted = (amount * Fraction(10) ** -scale for amount in (one.value, other.value, one.value + other.value))
    return scale if all(_INT_MIN <= count <= _INT_MAX for count in counted) else None


def whole(value: int) -> Amount:
    """Return the quantity of an integer."""
    return Amount(value, quantity.Form.DECIMAL, 0)


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Amount:
    """Return the quantity that a text is. Raises: Invalid (`QuantityInvalid`)."""
    sign = text[:1] if text[:1] in {"+", "-"} else ""
    rest = text[len(sign) :]
    # The reference reads a missing number as 0.
    found = quantity.parse(text if not text or rest[:1].isdecimal() else f"{sign}0{rest}")
    scale = _scale(text)
    is_capped = bool(scale) and abs(found.value) >= quantity.LARGEST
    return Amount(found.value, found.form, None if is_capped else scale)


def _scale(text: str) -> int | None:
    shape = _PARTS.fullmatch(text)
    if shape is None:
        return None
    number, fraction, suffix = shape[1] or "0", shape[2] or "", shape[3]
    if suffix in _BINARY:
        room = _BINARY_DIGITS - len(number) - int(_BINARY[suffix] * 3 / 10)
        return 0 if not fraction and room >= 0 else None
    scale = _DECIMAL[suffix] if suffix in _DECIMAL else max(-1000, min(1000, int(suffix[1:8])))
    scale -= len(fraction)
    return scale if len(number) + len(fraction) <= _MOST_DIGITS and scale >= _NANO else None

"""Parses Kubernetes quantities (`500m`, `1Gi`, `2`, `1e3`) into exact numbers, and emits the canonical form.

Numbers never pass through floating point. As in Kubernetes, values finer than a billionth are rounded away from zero
to one, and values beyond 2^63-1 are capped.
Source: apimachinery pkg/api/resource, `quantity.go` (grammar, `CanonicalizeBytes`, error texts) and `suffix.go`.
"""

from __future__ import annotations

import enum
import functools
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairlead import errors

LARGEST: Final = 2**63 - 1
_FINEST: Final = Fraction(1, 10**9)

_FORMAT_WRONG = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"  # Kubernetes' words
)
_NUMERIC_WRONG = "unable to parse numeric part of quantity"
_SUFFIX_WRONG = "unable to parse quantity's suffix"

_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class Form(enum.Enum):
    """Which suffixes a quantity is written with."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact value and the family of suffixes it was written with; `str` gives the canonical text."""

    value: Fraction
    form: Form = Form.DECIMAL

    def __str__(self) -> str:
        return emit_quantity(self.value, self.form)


_MOST_DIGITS = 1000
"""Python reads 4,300 at most, and no quantity needs a hundred."""


@functools.lru_cache(maxsize=4096, typed=True)
def parse(text: str | float) -> Quantity:
    """Read a quantity; numbers from JSON or YAML are read as their text. Raises: Invalid (`QuantityInvalid`)."""
    shape = _SHAPE.fullmatch(str(text))
    if (not text and text != 0) or shape is None:
        raise _invalid(text, _FORMAT_WRONG)
    sign, whole, fraction, suffix = shape.groups(default="")
    scale, form = _interpret(suffix, text)
    if not 0 < len(whole) + len(fraction) <= _MOST_DIGITS:
        raise _invalid(text, _NUMERIC_WRONG)
    digits = Fraction(int(whole + fraction), 10 ** len(fraction))
    value = _bounded(digits * scale)
    return Quantity(-value if sign == "-" else value, form)


def parse_quantity(text: str | float) -> Fraction:
    """Return a quantity's exact value: cores, bytes, pieces. Raises: Invalid."""
    return parse(text).value


def parse_whole(text: str | float) -> int:
    """Return the whole number that holds a quantity of bytes or pieces; fractions are rounded up. Raises: Invalid."""
    return math.ceil(parse(text).value)


def canonical(text: str | float) -> str:
    """Return the one text that Kubernetes writes for it: `0.5` is `500m`, `1024Mi` is `1Gi`. Raises: Invalid."""
    return str(parse(text))


def emit_quantity(value: Fraction | int, form: Form = Form.DECIMAL) -> str:
    """Write a value with the largest suffix of the family that needs no fraction."""
    exact = Fraction(value)
    if form is Form.BINARY and not -1024 < exact < 1024:
        return _emit_binary(_away_from_zero(exact))
    unscaled = _away_from_zero(exact / _FINEST)
    exponent = -9
    while unscaled and unscaled % 1000 == 0 and exponent < 18:
        unscaled, exponent = unscaled // 1000, exponent + 3
    if not unscaled:
        return "0"
    if form is Form.EXPONENT:
        return f"{unscaled}e{exponent}" if exponent else str(unscaled)
    return str(unscaled) + next(suffix for suffix, power in _DECIMAL.items() if power == exponent)


def _emit_binary(value: int) -> str:
    suffix = ""
    for larger in _BINARY:
        if value % 1024:
            break
        value, suffix = value // 1024, larger
    return f"{value}{suffix}"


def _interpret(suffix: str, text: object) -> tuple[Fraction, Form]:
    if suffix in _DECIMAL:
        return Fraction(10) ** _DECIMAL[suffix], Form.DECIMAL
    if suffix in _BINARY:
        return Fraction(2 ** _BINARY[suffix]), Form.BINARY
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise _invalid(text, _SUFFIX_WRONG)
    # Beyond this, digits no longer matter: the value is capped, or rounded to the finest.
    reach = len(str(text)) + 40
    return Fraction(10) ** max(-reach, min(reach, int(exponent[1]))), Form.EXPONENT


def _bounded(value: Fraction) -> Fraction:
    return min(Fraction(_away_from_zero(value / _FINEST)) * _FINEST, Fraction(LARGEST))


def _away_from_zero(value: Fraction) -> int:
    return math.ceil(value) if value >= 0 else math.floor(value)


def _invalid(text: object, problem: str) -> errors.Invalid:
    return errors.Invalid(problem, reason="QuantityInvalid", hint="such as 2, 500m, 1Gi or 1e3", value=str(text))

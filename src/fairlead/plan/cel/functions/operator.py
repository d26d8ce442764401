"""Adds, subtracts, orders and indexes values as the operators do.

Source: cel-go common/types (`Add`, `Compare`, overflow.go), v0.29.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from fairlead.plan.cel.semver import Semver
from fairlead.plan.cel.value import (
    INT_MAX,
    INT_MIN,
    LONGEST,
    MOST_ITEMS,
    NO_OVERLOAD,
    UINT_MAX,
    Duration,
    Failed,
    Spent,
    Timestamp,
    UInt,
    Value,
    contains,
    to_key,
)

EARLIEST, LATEST = -62135596800 * 10**9, 253402300800 * 10**9 - 1
_NUMBERS: Final = frozenset({int, UInt, float})


def whole(value: int) -> int:
    """Return a result as an int. Raises: Failed where it has more than 64 bits."""
    if not INT_MIN <= value <= INT_MAX:
        raise Failed("integer overflow")
    return value


def unsigned(value: int) -> UInt:
    """Return a result as a uint. Raises: Failed where it is below 0 or has more than 64 bits."""
    if not 0 <= value <= UINT_MAX:
        raise Failed("unsigned integer overflow")
    return UInt(value)


def span(nanos: int) -> Duration:
    """Return a result as a duration. Raises: Failed where it has more than 64 bits."""
    if not INT_MIN <= nanos <= INT_MAX:
        raise Failed("integer overflow")
    return Duration(nanos)


def moment(nanos: int) -> Timestamp:
    """Return a result as a timestamp. Raises: Failed where it is outside the years 1 to 9999."""
    if not EARLIEST <= nanos <= LATEST:
        raise Failed("timestamp overflow")
    return Timestamp(nanos)


def joined(left: Value, right: Value) -> Value:
    """Return two texts or two lists as one. Raises: Spent where it is larger than any limit lets it be used."""
    if len(left) + len(right) > (MOST_ITEMS if isinstance(left, tuple) else LONGEST):
        raise Spent
    return left + right


def _quotient(left: int, right: int) -> int:
    """Return a quotient that is cut off towards zero, as Go's is."""
    if right == 0:
        raise Failed("division by zero")
    found = abs(left) // abs(right)
    return found if (left < 0) is (right < 0) else -found


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise Failed("modulus by zero")
    found = abs(left) % abs(right)
    return -found if left < 0 else found


def _ratio(left: float, right: float) -> float:
    if right:
        return left / right
    if math.isnan(left) or not left:
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _product(left: float, right: float) -> float:
    return left * right


_Two = Callable[[Value, Value], Value]
_ADD: Final[dict[tuple[type, type], _Two]] = {
    (int, int): lambda left, right: whole(left + right),
    (UInt, UInt): lambda left, right: unsigned(int(left) + int(right)),
    (float, float): lambda left, right: left + right,
    (str, str): joined,
    (bytes, bytes): joined,
    (tuple, tuple): joined,
    (Duration, Duration): lambda left, right: span(left.nanos + right.nanos),
    (Duration, Timestamp): lambda left, right: moment(left.nanos + right.nanos),
    (Timestamp, Duration): lambda left, right: moment(left.nanos + right.nanos),
}
_SUBTRACT: Final[dict[tuple[type, type], _Two]] = {
    (int, int): lambda left, right: whole(left - right),
    (UInt, UInt): lambda left, right: unsigned(int(left) - int(right)),
    (float, float): lambda left, right: left - right,
    (Duration, Duration): lambda left, right: span(left.nanos - right.nanos),
    (Timestamp, Duration): lambda left, right: moment(left.nanos - right.nanos),
    (Timestamp, Timestamp): lambda left, right: span(left.nanos - right.nanos),
}
_MULTIPLY: Final[dict[tuple[type, type], _Two]] = {
    (int, int): lambda left, right: whole(left * right),
    (UInt, UInt): lambda left, right: unsigned(int(left) * int(right)),
    (float, float): _product,
}
_DIVIDE: Final[dict[tuple[type, type], _Two]] = {
    (int, int): lambda left, right: whole(_quotient(left, right)),
    (UInt, UInt): lambda left, right: unsigned(_quotient(int(left), int(right))),
    (float, float): _ratio,
}
_MODULO: Final[dict[tuple[type, type], _Two]] = {
    (int, int): lambda left, right: whole(_remainder(left, right)),
    (UInt, UInt): lambda left, right: unsigned(_remainder(int(left), int(right))),
}


def _by_types(table: dict[tuple[type, type], _Two]) -> _Two:
    def apply(left: Value, right: Value) -> Value:
        found = table.get((type(left), type(right)))
        if found is None:
            raise Failed(NO_OVERLOAD)
        return found(left, right)

    return apply


add = _by_types(_ADD)


def compare(left: Value, right: Value) -> int:
    """Return -1, 0 or 1; numbers are ordered across their types. Raises: Failed where the types have no order."""
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if math.isnan(left) or math.isnan(right):
            raise Failed("NaN values cannot be ordered")
        if float in (kind, other):
            left, right = float(left), float(right)  # as the reference, though large integers lose their last digits
    elif kind is not other or kind not in _ORDERED:
        raise Failed(NO_OVERLOAD)
    if left == right:
        return 0
    return -1 if left < right else 1


_ORDERED: Final = frozenset({bool, str, bytes, Duration, Timestamp})


def negate(value: Value) -> Value:
    """Return a number with the other sign."""
    if type(value) is int:
        return whole(-value)
    if type(value) is float:
        return -value
    raise Failed(NO_OVERLOAD)


def invert(value: Value) -> Value:
    """Return the other truth value."""
    if type(value) is not bool:
        raise Failed(NO_OVERLOAD)
    return not value


def within(wanted: Value, holder: Value) -> Value:
    """Return whether a list has an item, or a map a key."""
    if isinstance(holder, tuple):
        return contains(holder, wanted)
    if isinstance(holder, dict):
        if type(holder) is dict and type(wanted) is Semver:
            raise Spent("internal error: a version is looked up in a map")  # as the reference, which cannot hash it
        try:
            return to_key(wanted) in holder
        except Failed:
            return False
    raise Failed(NO_OVERLOAD)


def length(value: Value) -> Value:
    """Return the characters, bytes or items of a value."""
    if isinstance(value, str | bytes | tuple | dict):
        return len(value)
    raise Failed(NO_OVERLOAD)


BINARY: Final[dict[str, _Two]] = {
    "_+_": add,
    "_-_": _by_types(_SUBTRACT),
    "_*_": _by_types(_MULTIPLY),
    "_/_": _by_types(_DIVIDE),
    "_%_": _by_types(_MODULO),
    "_<_": lambda left, right: compare(left, right) < 0,
    "_<=_": lambda left, right: compare(left, right) <= 0,
    "_>_": lambda left, right: compare(left, right) > 0,
    "_>=_": lambda left, right: compare(left, right) >= 0,
    "@in": within,
}
UNARY: Final[dict[str, Callable[[Value], Value]]] = {"-_": negate, "!_": invert, "size": length}

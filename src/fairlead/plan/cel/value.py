"""Holds the values that CEL has and Python has not, and compares and measures values.

CEL's bool, int, double, string, bytes, null and list are Python's bool, int, float, str, bytes, None and tuple. `UInt`
is an int of its own class. A map is a `dict` whose keys are as `to_key` gives them, because True equals 1 in Python.
Source: cel-go common/types, v0.29.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fairlead.plan.cel.amount import Amount
from fairlead.plan.cel.semver import Semver

Value = Any
"""Any CEL value; which classes there are is said above."""

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
NO_OVERLOAD: Final = "no such overload"
LONGEST: Final = 10_000_000
"""Characters of a text, a hundred times what the cost limit lets a selector read."""
MOST_ITEMS: Final = 1_000_000
"""Items of a list: concatenation costs 1 whatever the size, so a doubling would never end by its cost."""


class Failed(Exception):
    """An evaluation went wrong at an offset of the text."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class Spent(Exception):
    """An evaluation reached a limit: of cost, size or depth."""

    def __init__(self, message: str = "operation cancelled: actual cost limit exceeded") -> None:
        super().__init__(message)
        self.message = message


class UInt(int):
    """An unsigned integer: equal to an int of the same value, and never added to one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: what `type(1)` returns and `int` names."""

    name: str


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time."""

    nanos: int


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time: nanoseconds since 1970 in UTC."""

    nanos: int


class Optional:
    """A value that may be missing."""

    __slots__ = ("is_present", "value")

    def __init__(self, value: Value = None, *, is_present: bool = True) -> None:
        self.value = value
        self.is_present = is_present


NONE: Final = Optional(is_present=False)


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address: its packed bytes' number, and how many bits they have."""

    number: int
    bits: int


@dataclass(frozen=True, slots=True)
class Network:
    """An IP network as it was written: an address and the length of its prefix."""

    address: Address
    prefix: int


@dataclass(frozen=True, slots=True)
class Location:
    """The parts of a URL."""

    scheme: str
    host: str
    path: str
    query: str
    text: str


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """One of Kubernetes' named formats of names."""

    name: str


class NameMap(dict[str, Value]):
    """A map of the device's, whose keys are texts."""

    __slots__ = ()


class DomainMap(NameMap):
    """The map of domains: a domain that is missing is looked up as an empty map."""

    __slots__ = ()


class _BoolKey:
    """Stands for a bool as the key of a map, where True and 1 are two keys."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


_TRUE, _FALSE = _BoolKey(True), _BoolKey(False)


def to_key(value: Value) -> Value:
    """Return the key of a `dict` that stands for a value. Raises: Failed where it is of no type that keys have."""
    kind = type(value)
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind in _KEYS:
        return value
    raise Failed(f"unsupported key type: {name_of(value)}")


def from_key(key: Value) -> Value:
    """Return the value that a key of a `dict` stands for."""
    return key.value if type(key) is _BoolKey else key


_KEYS: Final = frozenset({int, UInt, float, str})
_NUMBERS: Final = frozenset({int, UInt, float})
# What compares with its own kind alone: another kind is an error, not false.
STRICT: Final = frozenset({Amount, Semver, Address, Network, Location, NamedFormat})

_GO_NAMES: Final[dict[type, tuple[str, str]]] = {
    bool: ("bool", "types.Bool"),
    int: ("int", "types.Int"),
    UInt: ("uint", "types.Uint"),
    float: ("double", "types.Double"),
    str: ("string", "types.String"),
    bytes: ("bytes", "types.Bytes"),
    type(None): ("null_type", "types.Null"),
    tuple: ("list", "types.List"),
    dict: ("map", "types.Map"),
    NameMap: ("map", "types.Map"),
    DomainMap: ("map", "types.Map"),
    TypeValue: ("type", "types.Type"),
    Duration: ("google.protobuf.Duration", "types.Duration"),
    Timestamp: ("google.protobuf.Timestamp", "types.Timestamp"),
    Optional: ("optional_type", "types.Optional"),
    Amount: ("kubernetes.Quantity", "cel.Quantity"),
    Semver: ("kubernetes.Semver", "cel.Semver"),
    Address: ("net.IP", "cel.IP"),
    Network: ("net.CIDR", "cel.CIDR"),
    Location: ("kubernetes.URL", "cel.URL"),
    NamedFormat: ("kubernetes.NamedFormat", "cel.Format"),
}


def name_of(value: Value) -> str:
    """Return the name of a value's type."""
    return _GO_NAMES[type(value)][0]


def go_name_of(value: Value) -> str:
    """Return the name that the reference's messages give a value's type."""
    return _GO_NAMES[type(value)][1]


def equal(left: Value, right: Value) -> bool:
    """Return whether two values are equal; numbers across their types. Raises: Failed where a kind is strict."""
    kind, other = type(left), type(right)
    if left is None or right is None:
        return left is right
    if kind is str or kind is bool or kind is bytes:
        return other is kind and bool(left == right)
    if kind in _NUMBERS:
        return other in _NUMBERS and bool(left == right)
    if kind in STRICT:
        if other is not kind:
            raise Failed(NO_OVERLOAD)
        return bool(left.value == right.value) if kind is Amount else bool(left == right)
    return _equal_compound(left, right)


def _equal_compound(left: Value, right: Value) -> bool:
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(_not_unequal, left, right))
    if isinstance(left, dict):
        if not isinstance(right, dict) or len(left) != len(right):
            return False
        return all(key in right and _not_unequal(item, right[key]) for key, item in left.items())
    if isinstance(left, Optional):
        if not isinstance(right, Optional) or left.is_present != right.is_present:
            return False
        return not left.is_present or equal(left.value, right.value)
    return type(left) is type(right) and bool(left == right)


def _not_unequal(left: Value, right: Value) -> bool:
    """As the reference: within a list or a map, a comparison that fails does not count as a difference."""
    try:
        return equal(left, right)
    except Failed:
        return True


def contains(items: tuple[Value, ...], wanted: Value) -> bool:
    """Return whether a list has a value; items that it cannot be compared with are others."""
    return any(_is_equal(wanted, item) for item in items)


def _is_equal(left: Value, right: Value) -> bool:
    try:
        return equal(left, right)
    except Failed:
        return False


def is_text(value: str) -> bool:
    """Return whether a text has code points alone: half of a surrogate pair is none, and no UTF-8 writes it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def size(value: Value) -> int:
    """Return what the reference counts as a value's size: characters, bytes, items; 1 where it has none."""
    measure = _SIZES.get(type(value))
    return measure(value) if measure else 1


_SIZES: Final[dict[type, Callable[[Value], int]]] = {
    str: len,
    bytes: len,
    tuple: len,
    dict: len,
    NameMap: len,
    DomainMap: len,
    Address: lambda value: value.bits // 8,
    Network: lambda value: math.ceil(value.prefix / 8),
}


def size_through(value: Value) -> int:
    """Return a value's size, seen through an optional."""
    while type(value) is Optional and value.is_present:
        value = value.value
    return size(value)


def traversal(value: Value) -> int:
    """Return what going once through a value costs."""
    if isinstance(value, str):
        return int(len(value.encode("utf-8", "surrogatepass")) * 0.1)
    if isinstance(value, bytes):
        return int(len(value) * 0.1)
    if isinstance(value, tuple):
        return sum(map(traversal, value))
    if isinstance(value, dict):
        return sum(traversal(from_key(key)) + traversal(item) for key, item in value.items())
    return 1

"""Says what each call costs while an expression is evaluated.

A cost is a number, or a function of the arguments and the result where it grows with them; of an argument or a result
that is an error, the `Failed` stands in its place and counts as size 1. What is looked up by overload counts only where
the checker left one overload: over dyn it mostly left several, and the call costs 1.
Source: cel-go interpreter/runtimecost.go, ext/lists.go; apiserver pkg/cel/library/cost.go; v0.26.0 and v0.29.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.plan.cel.value import STRICT, NamedFormat, Value, size, size_through, traversal

LIMIT: Final = 1_000_000
OLD_RELEASE: Final = "1.36"
LIST_BASE, MAP_BASE = 10, 30
_FORMATS: Final = {
    "dns1123Label": 8,
    "dns1123Subdomain": 15,
    "dns1035Label": 8,
    "qualifiedName": 15,
    "dns1123LabelPrefix": 8,
    "dns1123SubdomainPrefix": 15,
    "dns1035LabelPrefix": 8,
    "labelValue": 10,
    "uri": 276,
    "uuid": 18,
    "byte": 21,
    "date": 18,
    "datetime": 18,
}
"""A quarter of the length of each format's regular expression."""
Growing = Callable[[Sequence[Value], Value], int]
Cost = int | Growing


def tenths(count: int) -> int:
    """Return a tenth, rounded up: what passing over that many characters costs."""
    return math.ceil(count * 0.1)


TENTHS: Final = tuple(tenths(count) for count in range(257))
"""Of the lengths that the values of devices have."""


def of(function: str, overload: str, release: str) -> Cost:
    """Return the cost of a call; `overload` is empty where several were left."""
    is_old = release == OLD_RELEASE
    if overload == "cidr_ip" or (is_old and function == "includes"):
        return 1
    if function in {"containsIP", "containsCIDR"}:
        return _contains(overload, more=function == "containsCIDR")
    if is_old and overload in _OLD:
        return _OLD[overload]
    if overload in _LISTS:
        return _LISTS[overload]
    return _BY_FUNCTION.get(function) or _BY_OVERLOAD.get(overload, 1)


def _first(args: Sequence[Value], _result: Value) -> int:
    return tenths(size(args[0]))


def _first_twice(args: Sequence[Value], _result: Value) -> int:
    return math.ceil(size(args[0]) * 2 * 0.1)


def _result_twice(_args: Sequence[Value], result: Value) -> int:
    return math.ceil(size(result) * 2 * 0.1)


def _whole(args: Sequence[Value], _result: Value) -> int:
    return traversal(args[0])


def _pattern(args: Sequence[Value], _result: Value) -> int:
    return math.ceil((1.0 + size(args[0])) * 0.1) * math.ceil(size(args[1]) * 0.25)


def _validated(args: Sequence[Value], _result: Value) -> int:
    if not isinstance(args[0], NamedFormat):
        return 1
    return math.ceil((1.0 + size(args[1])) * 0.1) * _FORMATS[args[0].name]


def _contains(overload: str, *, more: bool) -> Growing:
    def cost(args: Sequence[Value], _result: Value) -> int:
        bytes_compared = size(args[0])
        found = math.ceil((bytes_compared + bytes_compared) * 0.1)
        if more:
            found += tenths(bytes_compared) + 1
        if overload in {"cidr_contains_ip_string", "cidr_contains_cidr_string"}:
            found += tenths(size(args[1]))
        return found

    return cost


def _of_first(args: Sequence[Value], _result: Value) -> int:
    return tenths(size_through(args[0]))


def _of_second(args: Sequence[Value], _result: Value) -> int:
    return tenths(size_through(args[1]))


def _items(args: Sequence[Value], _result: Value) -> int:
    return size_through(args[1])


def smaller(args: Sequence[Value], _result: Value) -> int:
    """Return the cost of a comparison: of passing over the shorter one."""
    return tenths(min(size_through(args[0]), size_through(args[1])))


def equality(args: Sequence[Value], result: Value) -> int:
    """Return the cost of `==`."""
    return 1 if type(args[0]) in STRICT else smaller(args, result)


def _both(args: Sequence[Value], _result: Value) -> int:
    return tenths(size_through(args[0]) + size_through(args[1]))


def _substring(args: Sequence[Value], _result: Value) -> int:
    return tenths(size_through(args[0])) * tenths(size_through(args[1]))


def _made(_args: Sequence[Value], result: Value) -> int:
    return size(result) + 1 + LIST_BASE


def _flattened(args: Sequence[Value], _result: Value) -> int:
    depth = args[1] if len(args) == 2 and isinstance(args[1], int) else 1
    return int(size(args[0]) * (float(depth) if depth >= 0 else 1.0)) + 1 + LIST_BASE


def _compared(args: Sequence[Value]) -> int:
    if not isinstance(args[0], tuple):
        return 1 + LIST_BASE
    count = len(args[0])
    factor = 2.0 + (0.1 if count and isinstance(args[0][0], str | bytes) else 0.0)
    return int(count * count * factor) + 1 + LIST_BASE


def _sorted(args: Sequence[Value], _result: Value) -> int:
    return _compared(args)


def _sorted_by(args: Sequence[Value], _result: Value) -> int:
    return _compared(args[1:])


def _set(factor: float) -> Growing:
    return lambda args, _: 1 + int(size(args[0]) * size(args[1]) * factor)


_KINDS: Final = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_LISTS: Final[dict[str, Growing]] = {
    "list_slice": _made,
    "list_flatten": _flattened,
    "list_flatten_int": _flattened,
    "lists_range": _made,
    "list_reverse": _made,
    "list_distinct": _sorted,
    "list_sets_contains_list": _set(1),
    "list_sets_intersects_list": _set(1),
    "list_sets_equivalent_list": _set(2),
    **{f"list_{kind}_sort": _sorted for kind in _KINDS},
    **{f"list_{kind}_sortByAssociatedKeys": _sorted_by for kind in _KINDS},
}
_BY_FUNCTION: Final[dict[str, Cost]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _whole),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _first_twice),
    "join": _result_twice,
    **dict.fromkeys(("find", "findAll"), _pattern),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _first),
    "validate": _validated,
    "_==_": equality,
}
_BY_OVERLOAD: Final[dict[str, Cost]] = {
    "starts_with_string": _of_second,
    "ends_with_string": _of_second,
    **dict.fromkeys(("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _of_first),
    "in_list": _items,
    **{
        f"{name}_{kind}": smaller
        for name in ("less", "less_equals", "greater", "greater_equals")
        for kind in ("string", "bytes")
    },
    "not_equals": smaller,
    "add_string": _both,
    "add_bytes": _both,
    "matches": lambda args, _: math.ceil((1.0 + size_through(args[0])) * 0.1) * math.ceil(size_through(args[1]) * 0.25),
    "matches_string": lambda args, _: (
        math.ceil((1.0 + size_through(args[0])) * 0.1) * math.ceil(size_through(args[1]) * 0.25)
    ),
    "contains_string": _substring,
}


def _flattened_of_1_36(args: Sequence[Value], _result: Value) -> int:
    depth = args[1] if isinstance(args[1], int) else 1
    exact = int(size(args[0]) * float(depth))
    return (
        (exact if exact < 2**64 else 2**63) % 2**64 + 1 + LIST_BASE if exact >= 0 else (exact + 1 + LIST_BASE) % 2**64
    )


_OLD: Final[dict[str, Cost]] = {
    "starts_with_string": _of_first,
    "ends_with_string": _of_first,
    "matches": 1,
    "list_flatten_int": _flattened_of_1_36,
}

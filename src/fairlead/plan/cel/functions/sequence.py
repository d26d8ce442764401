"""Answers the functions over lists and sets, and those over optional values.

Source: apiserver pkg/cel/library/lists.go; cel-go ext/lists.go (version 3), ext/sets.go, cel/library.go.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Final

from fairlead.plan.cel.functions import operator
from fairlead.plan.cel.value import (
    MOST_ITEMS,
    NONE,
    Duration,
    Failed,
    NameMap,
    Optional,
    Spent,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    contains,
    equal,
    to_key,
)

_LONGEST_INCLUDED: Final = 48
Items = tuple[Value, ...]
_ORDERED: Final = frozenset({bool, int, UInt, float, str, bytes, Duration, Timestamp})


def _order(one: Value, other: Value) -> int:
    """As the reference: of two items that have no order, none is before the other."""
    try:
        return operator.compare(one, other)
    except Failed:
        return 0


def _hold_to_order(items: Items) -> None:
    if any(type(item) not in _ORDERED for item in items):
        raise Failed("no such overload")


def _is_sorted(items: Items) -> bool:
    _hold_to_order(items)
    return all(_order(one, other) <= 0 for one, other in itertools.pairwise(items))


def _sum(zero: Value) -> Callable[[Items], Value]:
    return lambda items: functools.reduce(operator.add, items, zero)


def _extreme(sign: int) -> Callable[[Items], Value]:
    def find(items: Items) -> Value:
        if not items:
            raise Failed(f"{'max' if sign > 0 else 'min'} called on empty list")
        _hold_to_order(items)
        found = items[0]
        for item in items:
            if _order(item, found) == sign:
                found = item
        return found

    return find


def _place(items: Items, wanted: Value) -> int:
    return next((at for at, item in enumerate(items) if _is_equal(item, wanted)), -1)


def _last_place(items: Items, wanted: Value) -> int:
    return next((at for at in reversed(range(len(items))) if _is_equal(items[at], wanted)), -1)


def _is_equal(one: Value, other: Value) -> bool:
    try:
        return equal(one, other)
    except Failed:
        return False


def _includes(holder: Value, wanted: Value) -> bool:
    if isinstance(holder, tuple):
        return any(_is_equal(item, wanted) for item in holder)
    return _is_equal(holder, wanted)


def _includes_of_1_36(holder: Value, wanted: Value) -> bool:
    if not isinstance(holder, tuple) or len(holder) <= _LONGEST_INCLUDED:
        return _includes(holder, wanted)
    if not _includes(holder[:_LONGEST_INCLUDED], wanted):
        raise Failed(f"'includes' function cannot be applied to lists longer than {_LONGEST_INCLUDED} values")
    return True


def _slice(items: Items, start: int, end: int) -> Items:
    if start < 0 or end < 0:
        raise Failed(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise Failed(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(items):
        raise Failed(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _flatten(items: Items, depth: int = 1) -> Items:
    if depth < 0:
        raise Failed("level must be non-negative")
    while depth > 0 and any(isinstance(item, tuple) for item in items):
        flat: list[Value] = []
        for item in items:
            flat.extend(item) if isinstance(item, tuple) else flat.append(item)
            if len(flat) > MOST_ITEMS:
                raise Spent
        items = tuple(flat)
        depth -= 1
    return items


def _range(count: int) -> Items:
    if count < 0:
        raise Failed(f"lists.range: size must be non-negative, got {count}")
    if count > MOST_ITEMS:
        raise Failed(f"lists.range: size {count} exceeds maximum allowed ({MOST_ITEMS})")
    return tuple(range(count))


def _range_of_1_36(count: int) -> Items:
    if count > MOST_ITEMS:
        raise Spent
    return tuple(range(count))


def _sort(items: Items) -> Items:
    return _sort_by(items, items)


def _sort_by(items: Items, keys: Items) -> Items:
    if len(items) != len(keys):
        raise Failed(f"@sortByAssociatedKeys() expected a list of the same size: {len(items)}, {len(keys)}")
    kinds = {type(key) for key in keys}
    if len(kinds) > 1 or not kinds <= _ORDERED:
        raise Failed("list elements must have the same type, which has an order")
    order = functools.cmp_to_key(operator.compare)
    return tuple(items[at] for at in sorted(range(len(items)), key=lambda at: order(keys[at])))


def _distinct(items: Items) -> Items:
    found: list[Value] = []
    seen: set[tuple[type, Value]] = set()
    for item in items:
        if type(item) in _ORDERED - {float, int, UInt}:
            if (type(item), item) in seen:
                continue
            seen.add((type(item), item))
        elif any(_is_equal(one, item) for one in found):
            continue
        found.append(item)
    return tuple(found)


def _set_contains(items: Items, wanted: Items) -> bool:
    return all(contains(items, item) for item in wanted)


def _intersects(items: Items, others: Items) -> bool:
    return any(_has(others, item) for item in items)


def _has(items: Items, wanted: Value) -> bool:
    try:
        return contains(items, wanted)
    except Failed:
        return False


def _unwrapped(items: Items) -> Items:
    if not all(isinstance(item, Optional) for item in items):
        raise Failed("value is not optional")
    return tuple(item.value for item in items if item.is_present)


def _is_zero(value: Value) -> bool:
    if isinstance(value, Duration | Timestamp):
        return value.nanos == 0 if isinstance(value, Duration) else value.nanos == operator.EARLIEST
    if isinstance(value, Optional):
        return not value.is_present or _is_zero(value.value)
    if isinstance(value, TypeValue):
        return False
    return value is None or (type(value) in _ZEROS and not value)


_ZEROS: Final = frozenset({bool, int, UInt, float, str, bytes, tuple, dict, NameMap})


def _value(optional: Optional) -> Value:
    if not optional.is_present:
        raise Failed("optional.none() dereference")
    return optional.value


def _inserted(held: Value, key: Value, value: Value) -> Value:
    known = to_key(key)
    if known in held:
        raise Failed("insert failed: key already exists")
    return {**held, known: value}


def _merged(held: Value, more: Value) -> Value:
    if held.keys() & more.keys():
        raise Failed("insert failed: key already exists")
    return {**held, **more}


_COMPARED: Final = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_ZERO: Final = {"int": 0, "uint": UInt(0), "double": 0.0, "duration": Duration(0)}
TABLE: Final[dict[str, Callable[..., Value]]] = {
    **{f"list_{kind}_is_sorted_bool": _is_sorted for kind in _COMPARED},
    **{f"list_{kind}_max_{kind}": _extreme(1) for kind in _COMPARED},
    **{f"list_{kind}_min_{kind}": _extreme(-1) for kind in _COMPARED},
    **{f"list_{kind}_sort": _sort for kind in _COMPARED},
    **{f"list_{kind}_sortByAssociatedKeys": _sort_by for kind in _COMPARED},
    **{f"list_{kind}_sum_{kind}": _sum(zero) for kind, zero in _ZERO.items()},
    "list_a_index_of_int": _place,
    "list_a_last_index_of_int": _last_place,
    "list_includes_dyn_dyn": _includes,
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _range,
    "list_reverse": lambda items: items[::-1],
    "list_distinct": _distinct,
    "list_sets_contains_list": _set_contains,
    "list_sets_equivalent_list": lambda one, other: _set_contains(one, other) and _set_contains(other, one),
    "list_sets_intersects_list": _intersects,
    "list_first": lambda items: Optional(items[0]) if items else NONE,
    "list_last": lambda items: Optional(items[-1]) if items else NONE,
    "optional_of": Optional,
    "optional_ofNonZeroValue": lambda value: NONE if _is_zero(value) else Optional(value),
    "optional_none": lambda: NONE,
    "optional_value": _value,
    "optional_hasValue": lambda optional: optional.is_present,
    "optional_unwrap": _unwrapped,
    "optional_unwrapOpt": _unwrapped,
    "@mapInsert_map_key_value": _inserted,
    "@mapInsert_map_map": _merged,
}
OLD: Final[dict[str, Callable[..., Value]]] = {
    "list_includes_dyn_dyn": _includes_of_1_36,
    "lists_range": _range_of_1_36,
}
"""What Kubernetes 1.36 does otherwise: of a longer list, `includes` reads 48 items and then fails."""

"""Compiles calls: evaluates the arguments, charges, and applies a function to the values.

All of one or two arguments are evaluated though the first one failed, and the call is charged with the error in the
argument's place; of three and more, the first error ends it and nothing is charged.
Source: cel-go interpreter/interpretable.go, v0.29.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fairlead.plan.cel import celtype, declare
from fairlead.plan.cel.amount import Amount
from fairlead.plan.cel.celtype import Type
from fairlead.plan.cel.functions import operator, table
from fairlead.plan.cel.grammar.node import Call
from fairlead.plan.cel.running import charge
from fairlead.plan.cel.running.frame import COST, Frame, Run, spend
from fairlead.plan.cel.semver import Semver
from fairlead.plan.cel.value import (
    NO_OVERLOAD,
    Address,
    DomainMap,
    Duration,
    Failed,
    Location,
    NamedFormat,
    NameMap,
    Network,
    Optional,
    Spent,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    equal,
    from_key,
    go_name_of,
    to_key,
)

Function = Callable[..., Value]
_CLASSES: Final[dict[str, frozenset[type[Any]]]] = {
    "bool": frozenset({bool}),
    "int": frozenset({int}),
    "uint": frozenset({UInt}),
    "double": frozenset({float}),
    "string": frozenset({str}),
    "bytes": frozenset({bytes}),
    "null_type": frozenset({type(None)}),
    "list": frozenset({tuple}),
    "map": frozenset[type[Any]]((dict, NameMap, DomainMap)),
    "type": frozenset({TypeValue}),
    "optional_type": frozenset({Optional}),
    "google.protobuf.Duration": frozenset({Duration}),
    "google.protobuf.Timestamp": frozenset({Timestamp}),
    "kubernetes.Quantity": frozenset({Amount}),
    "kubernetes.Semver": frozenset({Semver}),
    "kubernetes.URL": frozenset({Location}),
    "kubernetes.NamedFormat": frozenset({NamedFormat}),
    "net.IP": frozenset({Address}),
    "net.CIDR": frozenset({Network}),
}
UNGUARDED: Final = frozenset({"flatten", "sort", "@sortByAssociatedKeys"})
_ANY_LIST: Final = celtype.list_of(celtype.DYN)
_ALL: Final = frozenset[type[Any]]().union(*_CLASSES.values())


def constant(value: Value) -> Run:
    """Return the function of a constant."""

    def run(_frame: Frame) -> Value:
        return value

    return run


def function_of(node: Call, release: str) -> Function:
    """Return what applies a call to values: an operator's, or that of the first overload that fits them."""
    name, count = node.function, len(node.operands())
    if count == 2 and name in operator.BINARY:
        return operator.BINARY[name]
    if count == 1 and name in operator.UNARY:
        return operator.UNARY[name]
    if name in {"_==_", "_!=_"}:
        return equals if name == "_==_" else differs
    functions = table.OLD_FUNCTIONS if release == charge.OLD_RELEASE else table.FUNCTIONS
    found = [(declare.overload(one), functions.get(one, _missing)) for one in node.overloads]
    if name in UNGUARDED:
        # The reference looks at no items here: a flat list is as good as a list of lists.
        lists = [tuple(_ANY_LIST if arg.name == "list" else arg for arg in one.args) for one, _ in found]
        return _dispatched([(args, apply) for args, (_, apply) in zip(lists, found, strict=True)])
    return _dispatched([(one.args, apply) for one, apply in found])


def _missing(*_values: Value) -> Value:
    raise Failed(NO_OVERLOAD)


def _dispatched(candidates: list[tuple[tuple[Type, ...], Function]]) -> Function:
    is_shallow = not any(_is_deep(kind) for wanted, _ in candidates for kind in wanted)
    if is_shallow and len(candidates) == 1 and len(candidates[0][0]) in {1, 2}:
        return _guarded(*candidates[0])

    def apply(*values: Value) -> Value:
        for wanted, function in candidates:
            if all(map(_fits, values, wanted)):
                return function(*values)
        raise Failed(NO_OVERLOAD)

    return apply


def _is_deep(kind: Type) -> bool:
    """Return whether a value's class does not tell if it fits: the first item of a list tells too."""
    return kind.name in {"list", "map"} and any(one.name in _CLASSES for one in kind.params)


def _guarded(wanted: tuple[Type, ...], function: Function) -> Function:
    """Return a function of one or two values that looks at their types first."""
    classes = [_CLASSES.get(one.name, _ALL) for one in wanted]
    if len(classes) == 1:
        only = classes[0]

        def unary(value: Value) -> Value:
            if type(value) in only:
                return function(value)
            raise Failed(NO_OVERLOAD)

        return unary
    first, second = classes

    def binary(one: Value, other: Value) -> Value:
        if type(one) in first and type(other) in second:
            return function(one, other)
        raise Failed(NO_OVERLOAD)

    return binary


def _fits(value: Value, wanted: Type) -> bool:
    classes = _CLASSES.get(wanted.name)
    if classes is None:
        return True
    if type(value) not in classes:
        return False
    if not value or wanted.name not in {"list", "map"}:
        return True
    if isinstance(value, tuple):
        return _fits(value[0], wanted.params[0])
    key, item = next(iter(value.items()))
    return _fits(from_key(key), wanted.params[0]) and _fits(item, wanted.params[1])


def equals(left: Value, right: Value) -> Value:
    """Return whether two values are equal."""
    return equal(left, right)


def differs(left: Value, right: Value) -> Value:
    """Return whether two values are not known to be equal: what cannot be compared differs."""
    try:
        return not equal(left, right)
    except Failed:
        return True


def called(function: Function, args: list[Run], cost: charge.Cost, at: int, *, is_open: bool = False) -> Run:
    """Return the function of a call; an open one, of which several overloads are left, ends with the first error."""
    if is_open and len(args) > 1:
        return _many(function, args, cost, at)
    if len(args) == 1:
        return _unary(function, args[0], cost, at)
    if len(args) == 2:
        return _binary(function, args[0], args[1], cost, at)
    return _many(function, args, cost, at)


def _charge(frame: Frame, cost: charge.Cost, values: Sequence[Value], result: Value) -> None:
    spend(frame, cost if isinstance(cost, int) else cost(values, result))


def _unary(function: Function, arg: Run, cost: charge.Cost, at: int) -> Run:
    fixed = cost if isinstance(cost, int) else None

    def run(frame: Frame) -> Value:
        try:
            value: Value = arg(frame)
        except Failed as error:
            _charge(frame, cost, (error,), error)
            raise
        try:
            result = function(value)
        except Failed as error:
            raise _ended(frame, cost, (value,), error, at) from None
        if fixed is not None:
            frame[COST] += fixed
        else:
            _charge(frame, cost, (value,), result)
        return result

    return run


def _ended(frame: Frame, cost: charge.Cost, values: Sequence[Value], error: Failed, at: int) -> Failed:
    """Charge a call whose function failed, and return the error with its place."""
    if error.at < 0:
        error.at = at
    _charge(frame, cost, values, error)
    return error


def _binary(function: Function, left: Run, right: Run, cost: charge.Cost, at: int) -> Run:
    fixed = cost if isinstance(cost, int) else None

    def run(frame: Frame) -> Value:
        try:
            one: Value = left(frame)
        except Failed as error:
            raise _left_failed(frame, right, cost, error) from None
        try:
            other: Value = right(frame)
        except Failed as error:
            _charge(frame, cost, (one, error), error)
            raise
        try:
            result = function(one, other)
        except Failed as error:
            raise _ended(frame, cost, (one, other), error, at) from None
        if fixed is not None:
            frame[COST] += fixed
        else:
            _charge(frame, cost, (one, other), result)
        return result

    return run


def _left_failed(frame: Frame, right: Run, cost: charge.Cost, error: Failed) -> Failed:
    try:
        other: Value = right(frame)
    except Failed as second:
        other = second
    _charge(frame, cost, (error, other), error)
    return error


def _many(function: Function, args: list[Run], cost: charge.Cost, at: int) -> Run:
    def run(frame: Frame) -> Value:
        values: list[Value] = []
        for arg in args:
            try:
                values.append(arg(frame))
            except Failed as error:
                if len(values) == len(args) - 1:
                    _charge(frame, cost, [*values, error], error)
                raise
        try:
            result = function(*values)
        except Failed as error:
            raise _ended(frame, cost, values, error, at) from None
        _charge(frame, cost, values, result)
        return result

    return run


def logic(terms: list[Run], at: int, *, end: bool) -> Run:
    """Return the function of `&&` (which ends at False) or `||` (at True): an error of one term, the other may undo."""
    first, second = terms

    def run(frame: Frame) -> Value:
        try:
            found = first(frame)
        except Failed as error:
            return _undone(frame, second, error, end)
        if found is end:
            return end
        if type(found) is not bool:
            return _undone(frame, second, Failed(NO_OVERLOAD, at), end)
        found = second(frame)
        if type(found) is not bool:
            raise Failed(NO_OVERLOAD, at)
        return found

    return run


def _undone(frame: Frame, second: Run, error: Failed, end: bool) -> Value:
    try:
        found = second(frame)
    except Failed:
        raise error from None
    if found is end:
        return end
    raise error


def otherwise(first: Run, second: Run, at: int, *, is_value: bool) -> Run:
    """Return the function of `or` and `orValue`, which cost nothing."""

    def run(frame: Frame) -> Value:
        held = first(frame)
        if type(held) is not Optional:
            raise Failed(NO_OVERLOAD, at)
        if not held.is_present:
            return second(frame)
        return held.value if is_value else held

    return run


def member(item: Run, known: frozenset[Value], at: int) -> Run:
    """Return the function of `in` over constants. Raises: Spent for a version, which the reference cannot look up."""

    def run(frame: Frame) -> Value:
        value = item(frame)
        if type(value) is Semver:
            raise Spent(f"internal error: {go_name_of(value)} is looked up in a list of constants at offset {at}")
        try:
            return to_key(value) in known
        except Failed:
            return False

    return run


def listed(items: list[Run], optional: frozenset[int], at: int) -> Run:
    """Return the function of a list."""

    def run(frame: Frame) -> Value:
        found: list[Value] = []
        try:
            for place, item in enumerate(items):
                value = item(frame)
                if place in optional:
                    if type(value) is not Optional:
                        raise Failed("cannot initialize optional list element from non-optional value", at)
                    if not value.is_present:
                        continue
                    value = value.value
                found.append(value)
        finally:
            spend(frame, charge.LIST_BASE)
        return tuple(found)

    return run


def mapped(entries: list[tuple[Run, Run]], optional: frozenset[int], at: int) -> Run:
    """Return the function of a map."""

    def run(frame: Frame) -> Value:
        found: dict[Value, Value] = {}
        try:
            for place, (key, item) in enumerate(entries):
                known, value = key(frame), item(frame)
                if place in optional:
                    if type(value) is not Optional:
                        raise Failed("cannot initialize optional entry from non-optional value", at)
                    if not value.is_present:
                        continue
                    value = value.value
                found[_key(known, at)] = value
        finally:
            spend(frame, charge.MAP_BASE)
        return found

    return run


def _key(value: Value, at: int) -> Value:
    try:
        return to_key(value)
    except Failed as error:
        raise Failed(error.message, at) from None


def inserting(args: list[Run], accu: int, at: int) -> Run:
    """Return the function that puts an entry, or the entries of a map, into the map that a macro collects."""
    rest = args[1:]

    def run(frame: Frame) -> Value:
        frame[COST] += 1
        held = frame[accu]
        if type(held) is Failed:
            raise _left_failed(frame, rest[0], 1, held) if len(rest) == 1 else held
        values = _evaluated(frame, rest)
        frame[COST] += 1
        more = {_key(values[0], at): values[1]} if len(values) == 2 else values[0]
        if not isinstance(more, dict):
            raise Failed(NO_OVERLOAD, at)
        if held.keys() & more.keys():
            raise Failed("insert failed: key already exists", at)
        held.update(more)
        return held

    return run


def _evaluated(frame: Frame, args: list[Run]) -> list[Value]:
    values: list[Value] = []
    for arg in args:
        try:
            values.append(arg(frame))
        except Failed:
            if len(values) == len(args) - 1:
                frame[COST] += 1
            raise
    return values

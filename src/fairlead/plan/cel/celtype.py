"""Describes CEL's types and decides which is assignable to which, with type variables.

A type is a name and parameters. A type variable's name begins with `$`; `Bindings` says what each stands for so far.
Source: cel-go checker/types.go, v0.29.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple


class Type(NamedTuple):
    """A type: `list` with one parameter, `map` with two, most with none."""

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.params))})" if self.params else self.name


Bindings = dict[str, Type]

BOOL, INT, UINT, DOUBLE = Type("bool"), Type("int"), Type("uint"), Type("double")
STRING, BYTES, NULL, DYN, ERROR = Type("string"), Type("bytes"), Type("null_type"), Type("dyn"), Type("!error!")
DURATION, TIMESTAMP = Type("google.protobuf.Duration"), Type("google.protobuf.Timestamp")
QUANTITY, SEMVER = Type("kubernetes.Quantity"), Type("kubernetes.Semver")
DEVICE: Final = Type("kubernetes.DRADevice")

_PLAIN: Final = frozenset({"bool", "int", "uint", "double", "string", "bytes"})
"""What null is not assignable to; nor to `_COMPOUND`."""
_COMPOUND: Final = frozenset({"list", "map", "type"})


def list_of(item: Type) -> Type:
    """Return the type of lists of one type."""
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """Return the type of maps from one type to another."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """Return the type of optional values of one type."""
    return Type("optional_type", (value,))


def unwrapped(kind: Type) -> tuple[Type, bool]:
    """Return what an optional type is of, and whether it was one."""
    return (kind.params[0], True) if kind.name == "optional_type" else (kind, False)


def is_variable(kind: Type) -> bool:
    """Return whether a type is a type variable."""
    return kind.name[0] == "$"


def is_dyn(kind: Type) -> bool:
    """Return whether a type is known at run time alone."""
    return kind.name == "dyn"


def assign(bound: Bindings, given: Iterable[Type], wanted: Iterable[Type]) -> Bindings | None:
    """Return the bindings under which each given type is assignable to the wanted one; None: there are none."""
    given, wanted = tuple(given), tuple(wanted)
    trial = dict(bound)
    return trial if len(given) == len(wanted) and _all(trial, given, wanted) else None


def _all(bound: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    return all(_assignable(bound, one, other) for one, other in zip(given, wanted, strict=True))


def _assignable(bound: Bindings, one: Type, other: Type) -> bool:
    if is_variable(other):
        valid, is_bound = _substitutable(bound, one, other)
        if valid or is_bound:
            return valid
    if is_variable(one):
        return _substitutable(bound, other, one)[0]
    if one.name in _ANYTHING or other.name in _ANYTHING:
        return True
    if one.name == "null_type" or other.name == "null_type":
        named = other if one.name == "null_type" else one
        return named.name not in _PLAIN and named.name not in _COMPOUND
    if one.name == other.name == "type":
        return True
    return one.name == other.name and len(one.params) == len(other.params) and _all(bound, one.params, other.params)


_ANYTHING: Final = frozenset({"dyn", "!error!"})


def _substitutable(bound: Bindings, one: Type, variable: Type) -> tuple[bool, bool]:
    """Return whether a variable can stand for a type, and whether it stood for something already."""
    if one == variable:
        return True, True
    known = bound.get(variable.name)
    if known is not None:
        if one == known:
            return True, True
        if not _assignable(bound, one, known):
            return False, True
        wider = general(one, known)
        if _absent(bound, variable, wider):
            bound[variable.name] = wider
        return True, True
    if _absent(bound, variable, one):
        bound[variable.name] = one
        return True, False
    return False, False


def _absent(bound: Bindings, variable: Type, within: Type) -> bool:
    if variable == within:
        return False
    if is_variable(within):
        known = bound.get(within.name)
        return known is None or _absent(bound, variable, known)
    return all(_absent(bound, variable, param) for param in within.params)


def general(one: Type, other: Type) -> Type:
    """Return the less specific of two assignable types."""
    return one if _less_specific(one, other) else other


def _less_specific(one: Type, other: Type) -> bool:
    if is_dyn(one) or is_variable(one):
        return True
    if is_dyn(other) or is_variable(other) or one.name != other.name or len(one.params) != len(other.params):
        return False
    return one.name == "type" or all(map(_less_specific, one.params, other.params))


def substitute(bound: Mapping[str, Type], kind: Type, *, to_dyn: bool = False) -> Type:
    """Return a type with its variables replaced by what they stand for; free ones by dyn, if so asked."""
    while is_variable(kind):
        known = bound.get(kind.name)
        if known is None:
            return DYN if to_dyn else kind
        kind = known
    if not kind.params:
        return kind
    return Type(kind.name, tuple(substitute(bound, param, to_dyn=to_dyn) for param in kind.params))

"""Answers the functions over quantities and versions; both are exact.

Source: apiserver pkg/cel/library quantity.go and semverlib.go, v0.37.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead import errors
from fairlead.plan.cel import amount, semver
from fairlead.plan.cel.amount import Amount
from fairlead.plan.cel.problem import shown
from fairlead.plan.cel.value import Failed, Value


def parse_quantity(text: str) -> Amount:
    """Return the quantity that a text is. Raises: Failed."""
    try:
        return amount.parse(text)
    except errors.Invalid as error:
        raise Failed(f"{error.message}: {shown(text)}") from error


def _is_quantity(text: str) -> bool:
    try:
        amount.parse(text)
    except errors.Invalid:
        return False
    return True


def _compare(left: Value, right: Value) -> int:
    return 0 if left == right else (-1 if left < right else 1)


def _compare_amounts(one: Amount, other: Amount) -> int:
    left, right = one.value, other.value
    return 0 if left == right else (-1 if left < right else 1)


def _integer(value: Amount) -> int:
    if not value.is_integer:
        raise Failed("cannot convert value to integer")
    return int(value.value)


def parse_semver(text: str, normalize: bool = False) -> semver.Semver:
    """Return the version that a text is. Raises: Failed."""
    found = _semver(text, normalize)
    if found is None:
        raise Failed(f"invalid semantic version {shown(text)}")
    return found


def _semver(text: str, normalize: bool = False) -> semver.Semver | None:
    said = semver.normalized(text) if normalize else text
    return None if said is None else semver.parse(said)


def _is_semver(text: str, normalize: bool = False) -> bool:
    return _semver(text, normalize) is not None


TABLE: Final[dict[str, Callable[..., Value]]] = {
    "string_to_quantity": parse_quantity,
    "is_quantity_string": _is_quantity,
    "quantity_sign": lambda value: _compare(value.value, 0),
    "quantity_is_greater_than": lambda one, other: one.value > other.value,
    "quantity_is_less_than": lambda one, other: one.value < other.value,
    "quantity_compare_to": _compare_amounts,
    "quantity_get_float": lambda value: float(value.value),
    "quantity_get_int": _integer,
    "quantity_is_integer": lambda value: value.is_integer,
    "quantity_add": lambda one, other: one.plus(other),
    "quantity_add_int": lambda one, other: one.plus(amount.whole(other)),
    "quantity_sub": lambda one, other: one.minus(other),
    "quantity_sub_int": lambda one, other: one.minus(amount.whole(other)),
    "string_to_semver": parse_semver,
    "string_bool_to_semver": parse_semver,
    "is_semver_string": _is_semver,
    "is_semver_string_bool": _is_semver,
    "semver_is_greater_than": lambda one, other: one.key > other.key,
    "semver_is_less_than": lambda one, other: one.key < other.key,
    "semver_compare_to": lambda one, other: _compare(one.key, other.key),
    "semver_major": lambda value: value.key[0],
    "semver_minor": lambda value: value.key[1],
    "semver_patch": lambda value: value.key[2],
}

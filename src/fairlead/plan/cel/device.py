"""Holds a device as selectors see it: the variable `device`, made once per device from plain values.

A name without a domain has the driver's. Versions are parsed here, as the reference does before it evaluates.
Source: dynamic-resource-allocation cel/compile.go (`DeviceMatches`), v0.37.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.plan.cel import amount, semver
from fairlead.plan.cel.problem import CELError, shown
from fairlead.plan.cel.value import INT_MAX, INT_MIN, DomainMap, NameMap, Value, is_text


@dataclass(frozen=True, slots=True)
class Version:
    """The text of an attribute that is a version."""

    text: str


Scalar = bool | int | str | Version
_KINDS: Final = (bool, int, str, Version)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device for selectors.

    Args:
        driver: the driver's name, and the domain of each name that has none.
        attributes: by qualified name (`domain/id` or `id`): a value, or a sequence of values of one type.
        capacity: by qualified name: the quantity's text.
        allow_multiple_allocations: None reads as False.

    Raises: CELError for a version that is none (reason `CELDevice`), Invalid for a quantity that is none.
    """

    driver: str
    attributes: Mapping[str, Scalar | Sequence[Scalar]] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allow_multiple_allocations: bool | None = None
    root: Mapping[str, Value] = field(init=False, repr=False, compare=False)
    """The value of `device`."""
    flat_attributes: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    """The attributes by `domain/id`."""
    flat_capacity: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    """The capacities by `domain/id`."""

    def __post_init__(self) -> None:
        attributes = _domains(self.driver, {name: _value(name, one) for name, one in self.attributes.items()})
        capacity = _domains(self.driver, {name: amount.parse(text) for name, text in self.capacity.items()})
        root: Mapping[str, Value] = {
            "driver": self.driver,
            "allowMultipleAllocations": bool(self.allow_multiple_allocations),
            "attributes": attributes,
            "capacity": capacity,
        }
        for name, value in (
            ("root", root),
            ("flat_attributes", _flat(attributes)),
            ("flat_capacity", _flat(capacity)),
        ):
            object.__setattr__(self, name, value)


def _domains(driver: str, values: Mapping[str, Value]) -> DomainMap:
    found = DomainMap()
    for name, value in values.items():
        domain, slash, identifier = name.partition("/")
        where, what = (domain, identifier) if slash else (driver, name)
        found.setdefault(where, NameMap())[what] = value
    return found


def _flat(domains: DomainMap) -> dict[str, Value]:
    return {f"{domain}/{name}": value for domain, names in domains.items() for name, value in names.items()}


def _value(name: str, given: Scalar | Sequence[Scalar]) -> Value:
    if isinstance(given, _KINDS):
        return _scalar(name, given)
    return tuple(_scalar(name, one) for one in given)


def _scalar(name: str, given: Scalar) -> Value:
    if isinstance(given, Version):
        version = semver.parse(given.text)
        if version is None:
            raise CELError(f"attribute {shown(name)}: no semantic version: {shown(given.text)}", reason="CELDevice")
        return version
    if isinstance(given, str) and not is_text(given):
        raise CELError(f"attribute {shown(name)}: no UTF-8: {shown(given)}", reason="CELDevice")
    if type(given) is int and not INT_MIN <= given <= INT_MAX:
        raise CELError(f"attribute {shown(name)}: integer out of range", reason="CELDevice")
    return given

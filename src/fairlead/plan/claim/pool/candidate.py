"""Declares a device as the search sees it: what its slice says, read once and in exact numbers.

Amounts are whole numbers of billionths, the finest that a Kubernetes quantity can say, so that sums never round.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fairlead.plan.cel.device import DeviceView
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

ONE: Final = 10**9
"""The number of billionths in one."""

Value = frozenset[tuple[str, object]]
"""Values of an attribute, each with its type; a scalar is a set of one. Empty: a type that is not known."""

_SCALARS: Final = (("string", "string"), ("int", "int_"), ("bool", "bool_"), ("version", "version"))
_LISTS: Final = (("int", "ints"), ("bool", "bools"), ("string", "strings"), ("version", "versions"))


class DeviceID(NamedTuple):
    """Names a device in a cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class CounterID(NamedTuple):
    """Names a counter in a cluster: pools of two drivers may have one name."""

    driver: str
    pool: str
    counter_set: str
    counter: str

    def __str__(self) -> str:
        return f"{self.counter_set}/{self.counter} of pool {self.driver}/{self.pool}"


class GroupUse(NamedTuple):
    """Compatibility groups that a device declares towards one counter set."""

    driver: str
    pool: str
    counter_set: str
    groups: frozenset[str]


@functools.lru_cache(maxsize=4096, typed=True)
def billionths(text: str | float) -> int:
    """Return a quantity in billionths. Raises: Invalid."""
    value = quantity.parse_quantity(text) * ONE
    return value.numerator


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidate:
    """One device of a pool on one node; compared by identity, since it stands in one place of the order."""

    at: int
    """Its place in the node's order: pools by name, slices by name, devices as their slice has them."""
    id: DeviceID
    device: Device
    slice: ResourceSlice
    is_shared: bool
    """Claims share it and consume its capacity."""
    is_plain: bool
    """Its capacity has no policy and nothing negative: a request that names no capacity always fits."""
    barred: str = ""
    """Why no request gets as far as its selectors: a feature that is off."""
    is_elsewhere: bool = False
    """The device says itself that it is on other nodes."""
    refused: str = ""
    """Why it matches but is never allocated: a feature that is off, or that the node does not have."""
    consumes: tuple[tuple[CounterID, int], ...] = ()
    takes_counters: bool = False
    groups: tuple[GroupUse, ...] = ()
    values: dict[str, Value | None] = field(default_factory=dict)
    """Attributes that constraints asked for, by fully qualified name; filled as they are asked for."""
    views: list[DeviceView] = field(default_factory=list)
    """The device as selectors see it, once the first has asked."""


def value_of(candidate: Candidate, name: str, *, lists: bool) -> Value | None:
    """Return what a device has for a fully qualified attribute; None: it does not have it.

    Args:    lists: lists count, as with the gate DRAListTypeAttributes.
    """
    known = candidate.values
    if name not in known:
        found = _attribute(candidate.device.attributes, candidate.id.driver, name)
        known[name] = None if found is None else _value(found, lists=lists)
    return known[name]


def _attribute(attributes: Mapping[str, DeviceAttribute], driver: str, name: str) -> DeviceAttribute | None:
    found = attributes.get(name)
    if found is not None:
        return found
    domain, slash, rest = name.partition("/")
    return attributes.get(rest) if slash and domain == driver else None


def _value(attribute: DeviceAttribute, *, lists: bool) -> Value | None:
    for kind, field_name in _LISTS if lists else ():
        if items := getattr(attribute, field_name):
            return frozenset((kind, item) for item in items)
    for kind, field_name in _SCALARS:
        if (scalar := getattr(attribute, field_name)) is not None:
            return frozenset([(kind, scalar)])
    return None if lists else frozenset()

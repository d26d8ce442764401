"""Checks one device of a slice: its attributes, counters, taints and place.

Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, validateDevice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

from fairlead import errors
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.validate import capacity, field, metadata, name
from fairlead.plan.claim.validate.request import EFFECTS
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import (
    Counter,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableOverhead,
    NodeAllocatableResource,
    Quantity,
)

ENTRIES_MOST: Final = 32
"""Attributes and capacities of a device together."""
VALUES_MOST: Final = 48
"""Values of its attributes, each item of a list counted."""
VALUE_LONGEST: Final = 64
TAINTS_MOST: Final = 16
CONDITIONS_MOST: Final = 4
CONSUMPTIONS_MOST: Final = 2
COUNTERS_MOST: Final = 32
GROUPS_MOST: Final = 2

_KINDS: Final = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_NUMBER: Final = r"(0|[1-9]\d*)"
_PRE: Final = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?", re.ASCII
)
_PLACE: Final = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true "
    "in the ResourceSlice spec"
)
_NO_PLACE: Final = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "
    "ResourceSlice spec"
)
_PREPARE, _UNPREPARE, _ALL = "NodePrepareResources", "NodeUnprepareResources", "*"


def problems(
    device: Device, path: str, gates: Gates, *, has_place: bool, old: Device | None = None, is_same: bool = False
) -> Iterator[str]:
    """Yield what is wrong with a device.

    Args:    has_place: the slice leaves it to its devices to say where they are.   old: the stored device of its name.
             is_same: no device of the slice changes.
    """
    yield from name.dns_label(f"{path}.name", device.name)
    entries = len(device.attributes) + len(device.capacity)
    if entries > ENTRIES_MOST:
        detail = f"the total number of attributes and capacities must not exceed {ENTRIES_MOST}"
        yield field.invalid(path, entries, detail)
    values = sum(_values(one) for one in device.attributes.values())
    if values > VALUES_MOST:
        yield field.invalid(path, values, f"the total number of attribute values must not exceed {VALUES_MOST}")
    for key, attribute in device.attributes.items():
        yield from name.qualified(f"{path}.attributes", key)
        yield from _attribute(attribute, field.key(f"{path}.attributes", key, name.KEY_LONGEST))
    if old is None or old.capacity != device.capacity:
        yield from _capacities(device, f"{path}.capacity", gates)
    is_new = old is None or old.taints != device.taints
    yield from field.each(device.taints if is_new else (), f"{path}.taints", taint, most=TAINTS_MOST)
    if len(device.taints) > TAINTS_MOST if is_new else not is_same:
        # The server skips its hand-written rules for such taints, and applies the declared one.
        yield from field.each(device.taints, f"{path}.taints", _effect)
    counters = f"{path}.consumesCounters"
    yield from field.each(device.consumes_counters, counters, _consumption, most=CONSUMPTIONS_MOST)
    if len(device.consumes_counters) <= CONSUMPTIONS_MOST:
        yield from field.unique(device.consumes_counters, counters, lambda one: one.counter_set, lambda one: one)
    yield from _place(device, path, has_place=has_place)
    yield from binding_conditions(device.binding_conditions, device.binding_failure_conditions, path)
    for resource, share in device.node_allocatable_resources.items():
        where = f"{path}.nodeAllocatableResources[{resource}]"
        yield from _node_allocatable(resource, share, device.capacity, where)


def _values(item: DeviceAttribute) -> int:
    lists = (item.ints, item.bools, item.strings, item.versions)
    return sum(len(one) for one in lists if one) or 1


def _attribute(item: DeviceAttribute, path: str) -> Iterator[str]:
    values = (item.int_, item.bool_, item.string, item.version, item.ints, item.bools, item.strings, item.versions)
    given = {kind: value for kind, value in zip(_KINDS, values, strict=True) if value is not None}
    for kind, value in given.items():
        if value == ():
            yield field.invalid(f"{path}.{kind}", value, "must not be empty if specified")
    if item.string is not None:
        yield from _text(item.string, f"{path}.string")
    if item.version is not None:
        yield from _version(item.version, f"{path}.version")
    yield from field.each(item.strings or (), f"{path}.strings", _text)
    yield from field.each(item.versions or (), f"{path}.versions", _version)
    filled = [kind for kind, value in given.items() if value != ()]
    offered = ", ".join(f"`{kind}`" for kind in _KINDS)
    if not filled:
        yield field.invalid(path, "", f"must specify one of: {offered}")
    elif len(filled) > 1:
        yield field.invalid(path, "{" + ", ".join(filled) + "}", f"must specify exactly one of: {offered}")


def _text(text: str, path: str) -> Iterator[str]:
    if name.length(text) > VALUE_LONGEST:
        yield field.too_long(path, VALUE_LONGEST)


def _version(text: str, path: str) -> Iterator[str]:
    if not _SEMVER.fullmatch(text):
        yield field.invalid(path, text, "must be a string compatible with semver.org spec 2.0.0")
    yield from _text(text, path)


def _capacities(device: Device, path: str, gates: Gates) -> Iterator[str]:
    for key, item in device.capacity.items():
        where = field.key(path, key, name.KEY_LONGEST)
        yield from name.qualified(path, key)
        yield from amount(item.value, f"{where}.value")
        if item.request_policy is None:
            continue
        policy = f"{where}.requestPolicy"
        if device.allow_multiple_allocations:
            yield from capacity.problems(item.value, item.request_policy, policy, gates)
        else:
            yield field.forbidden(policy, "allowMultipleAllocations must be true")


def amount(text: Quantity, path: str) -> Iterator[str]:
    """Yield the problem of a text that is not a quantity; a server does not even decode it."""
    try:
        quantity.parse_quantity(text)
    except errors.RequestError as error:
        yield field.invalid(path, text, error.message)


def taint(item: DeviceTaint, path: str) -> Iterator[str]:
    """Yield what is wrong with a taint."""
    yield from name.label_key(f"{path}.key", item.key)
    yield from name.label_value(f"{path}.value", item.value)
    yield from _effect(item, path)


def _effect(item: DeviceTaint, path: str) -> Iterator[str]:
    if not item.effect:
        yield field.required(f"{path}.effect")
    elif item.effect not in EFFECTS:
        yield field.unsupported(f"{path}.effect", item.effect, EFFECTS)


def _consumption(item: DeviceCounterConsumption, path: str) -> Iterator[str]:
    yield from counter_name(item.counter_set, f"{path}.counterSet")
    yield from counters(item.counters, f"{path}.counters")
    groups = f"{path}.compatibilityGroups"
    yield from field.each(
        item.compatibility_groups, groups, lambda one, where: name.dns_label(where, one, "bytes"), most=GROUPS_MOST
    )
    if len(item.compatibility_groups) <= GROUPS_MOST:
        yield from field.unique(item.compatibility_groups, groups, str, str)


def counter_name(text: str, path: str) -> Iterator[str]:
    """Yield what is wrong with the name of a counter set."""
    yield from name.dns_label(path, text, "bytes") if text else [field.required(path)]


def counters(items: Mapping[str, Counter], path: str) -> Iterator[str]:
    """Yield what is wrong with the counters of a set, or with what a device consumes of them."""
    if not items:
        yield field.required(path)
    if len(items) > COUNTERS_MOST:
        yield field.too_many(path, len(items), COUNTERS_MOST)
    for key, item in items.items():
        yield from name.dns_label(path, key, "bytes")
        yield from amount(item.value, f"{field.key(path, key, name.LABEL_LONGEST)}.value")


def _place(device: Device, path: str, *, has_place: bool) -> Iterator[str]:
    if not has_place:
        if device.node_name is not None or device.node_selector is not None or device.all_nodes is not None:
            yield field.invalid(path, None, _NO_PLACE)
        return
    given = []
    if device.node_name:
        given.append("`nodeName`")
        yield from name.dns_subdomain(f"{path}.nodeName", device.node_name)
    elif device.node_name is not None:
        yield field.invalid(f"{path}.nodeName", "", "must not be empty")
    if device.node_selector is not None:
        given.append("`nodeSelector`")
        yield from metadata.node_selector(device.node_selector, f"{path}.nodeSelector")
    if device.all_nodes:
        given.append("`allNodes`")
    elif device.all_nodes is not None:
        yield field.invalid(f"{path}.allNodes", False, "must be either unset or set to true")
    if not given:
        yield field.required(path, _PLACE)
    elif len(given) > 1:
        yield field.invalid(path, "{" + ", ".join(given) + "}", _PLACE)


def binding_conditions(required: Sequence[str], failures: Sequence[str], path: str) -> Iterator[str]:
    """Yield what is wrong with the conditions that bind a pod, and with those that end its binding."""
    binding, failing = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"
    for where, items in ((binding, required), (failing, failures)):
        yield from field.each(items, where, lambda one, place: name.label_key(place, one), most=CONDITIONS_MOST)
        yield from field.unique(items, where, str, str)
    for at, one in enumerate(failures):
        if one in required:
            detail = "bindingFailureConditions must not overlap with bindingConditions"
            yield field.invalid(f"{failing}[{at}]", one, detail)
    if failures and not required:
        yield field.invalid(binding, None, "bindingConditions are required to use bindingFailureConditions")
    if required and not failures:
        yield field.invalid(failing, None, "bindingFailureConditions are required to use bindingConditions")


def skip_node_operations(items: Sequence[str], path: str) -> Iterator[str]:
    """Yield what is wrong with the operations that a kubelet leaves out."""
    for at, one in enumerate(items):
        if one not in {_ALL, _PREPARE, _UNPREPARE}:
            yield field.unsupported(f"{path}[{at}]", one, (_ALL, _PREPARE, _UNPREPARE))
    yield from field.unique(items, path, str, str)
    if _PREPARE in items and not {_UNPREPARE, _ALL} & set(items):
        detail = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"
        yield field.invalid(path, items, detail)


def _node_allocatable(
    resource: str, item: NodeAllocatableResource, capacities: Mapping[str, DeviceCapacity], path: str
) -> Iterator[str]:
    if resource not in {"cpu", "memory"} and not resource.startswith("hugepages-"):
        yield field.invalid(path, resource, "must be a node allocatable resource name")
    if item.mapping is None and item.overhead is None:
        yield field.required(path, "at least one of mapping or overhead must be set")
    if item.mapping is not None:
        yield from _mapping(item.mapping, capacities, f"{path}.mapping")
    if item.overhead is not None:
        yield from _overhead(item.overhead, f"{path}.overhead")


def _mapping(item: NodeAllocatableMapping, capacities: Mapping[str, DeviceCapacity], path: str) -> Iterator[str]:
    key, multiplier = f"{path}.capacityKey", f"{path}.capacityMultiplier"
    offered = "`capacityKey`, `deviceMultiplier`"
    if item.capacity_key is None and item.device_multiplier is None:
        yield field.invalid(path, "", f"must specify one of: {offered}")
    elif item.capacity_key is not None and item.device_multiplier is not None:
        yield field.invalid(path, "{capacityKey, deviceMultiplier}", f"must specify exactly one of: {offered}")
    if item.capacity_key == "":
        yield field.invalid(key, "", "capacityKey must not be an empty string")
    elif item.capacity_key is not None and item.capacity_key not in capacities:
        yield field.not_found(key, item.capacity_key)
    if item.capacity_key is not None and item.capacity_multiplier is None:
        yield field.required(multiplier, "capacityMultiplier is required when capacityKey is set")
    if item.capacity_multiplier is not None and item.capacity_key is None:
        yield field.required(key, "capacityKey is required when capacityMultiplier is set")
    if item.capacity_key is not None:
        yield from _above(item.capacity_multiplier, multiplier, 0, "must be positive")
    yield from _above(item.device_multiplier, f"{path}.deviceMultiplier", 0, "must be positive")


def _overhead(item: NodeAllocatableOverhead, path: str) -> Iterator[str]:
    if item.per_pod is None and item.per_container is None:
        yield field.invalid(path, "", "at least one of perPod or perContainer must be set")
    finest = Fraction(-1, 10**9)
    yield from _above(item.per_pod, f"{path}.perPod", finest, "must be non-negative")
    yield from _above(item.per_container, f"{path}.perContainer", finest, "must be non-negative")


def _above(text: Quantity | None, path: str, bound: Fraction | int, detail: str) -> Iterator[str]:
    """Yield the problem of a quantity that is not above a bound; quantities are no finer than a billionth."""
    if text is None:
        return
    wrong = list(amount(text, path))
    yield from wrong
    if not wrong and quantity.parse_quantity(text) <= bound:
        yield field.invalid(path, quantity.canonical(text), detail)

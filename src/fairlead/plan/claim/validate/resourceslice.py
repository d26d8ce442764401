"""Checks ResourceSlices.

Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, validateResourceSliceSpec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.validate import device, field, metadata, name
from fairlead.wire.kubernetes.resource.device import CounterSet, Device, DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec

DEVICES_MOST: Final = 128
ADVANCED_MOST: Final = 64
"""Devices of a slice in which any has a taint, consumes a counter, or has an attribute that is a list."""
COUNTER_SETS_MOST: Final = 8
_ONE_PLACE: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def problems(item: ResourceSlice, gates: Gates) -> Iterator[str]:
    """Yield what is wrong with a new slice."""
    yield from metadata.problems(item.metadata, is_namespaced=False)
    yield from _spec(item.spec, None, gates)


def update_problems(new: ResourceSlice, old: ResourceSlice, gates: Gates) -> Iterator[str]:
    """Yield what is wrong with a changed slice; capacities and taints that stay are not looked at again."""
    yield from metadata.update_problems(new.metadata, old.metadata)
    for path, was, now in (
        ("spec.pool.name", old.spec.pool.name, new.spec.pool.name),
        ("spec.driver", old.spec.driver, new.spec.driver),
        ("spec.nodeName", old.spec.node_name, new.spec.node_name),
    ):
        if was != now:
            yield field.invalid(path, now, metadata.IMMUTABLE)
    yield from _spec(new.spec, old.spec, gates)


def most_devices(spec: ResourceSliceSpec) -> int:
    """Return how many devices the slice may have: fewer where any has taints, counters or lists."""
    is_advanced = any(
        one.taints or one.consumes_counters or any(map(_is_list, one.attributes.values())) for one in spec.devices
    )
    return ADVANCED_MOST if is_advanced else DEVICES_MOST


def _is_list(item: DeviceAttribute) -> bool:
    return any(one is not None for one in (item.ints, item.bools, item.strings, item.versions))


def _spec(spec: ResourceSliceSpec, old: ResourceSliceSpec | None, gates: Gates) -> Iterator[str]:
    yield from name.driver("spec.driver", spec.driver)
    yield from _pool(spec.pool)
    yield from _place(spec)
    if spec.shared_counters and spec.devices:
        yield field.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    most = most_devices(spec)
    stored = {one.name: one for one in reversed(old.devices)} if old else {}
    has_place = bool(spec.per_device_node_selection)
    is_same = old is not None and old.devices == spec.devices

    def check(one: Device, path: str) -> Iterator[str]:
        return device.problems(one, path, gates, has_place=has_place, old=stored.get(one.name), is_same=is_same)

    yield from field.each(spec.devices, "spec.devices", check, most=most)
    if len(spec.devices) <= most:
        yield from field.unique(spec.devices, "spec.devices", lambda one: one.name, lambda one: one.name)
    counters = "spec.sharedCounters"
    yield from field.each(spec.shared_counters, counters, _counter_set, most=COUNTER_SETS_MOST)
    if len(spec.shared_counters) <= COUNTER_SETS_MOST:
        yield from field.unique(spec.shared_counters, counters, lambda one: one.name, lambda one: one)
    yield from _partition_type(spec)
    yield from device.skip_node_operations(spec.skip_node_operations, "spec.skipNodeOperations")


def _pool(item: ResourcePool) -> Iterator[str]:
    yield from name.pool("spec.pool.name", item.name)
    if item.resource_slice_count <= 0:
        yield field.invalid("spec.pool.resourceSliceCount", item.resource_slice_count, "must be greater than zero")
    if item.generation < 0:
        detail = "must be greater than or equal to zero"
        yield field.invalid("spec.pool.generation", item.generation, detail)


def _place(spec: ResourceSliceSpec) -> Iterator[str]:
    given = []
    if spec.node_name:
        given.append("`nodeName`")
        yield from name.dns_subdomain("spec.nodeName", spec.node_name)
    elif spec.node_name is not None:
        yield field.invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    if spec.node_selector is not None:
        given.append("`nodeSelector`")
        yield from metadata.node_selector(spec.node_selector, "spec.nodeSelector")
        terms = spec.node_selector.node_selector_terms
        if len(terms) != 1:
            detail = "must have exactly one node selector term"
            yield field.invalid("spec.nodeSelector.nodeSelectorTerms", terms, detail)
    for key, value in (("allNodes", spec.all_nodes), ("perDeviceNodeSelection", spec.per_device_node_selection)):
        if value:
            given.append(f"`{key}`")
        elif value is not None:
            yield field.invalid(f"spec.{key}", value, "must be either unset or set to true")
    if not given:
        yield field.required("spec", _ONE_PLACE)
    elif len(given) > 1:
        yield field.invalid("spec", "{" + ", ".join(given) + "}", f"{_ONE_PLACE}, but multiple fields are set")


def _counter_set(item: CounterSet, path: str) -> Iterator[str]:
    yield from device.counter_name(item.name, f"{path}.name")
    yield from device.counters(item.counters, f"{path}.counters")


def _partition_type(spec: ResourceSliceSpec) -> Iterator[str]:
    attribute, path = spec.partition_type_attribute, "spec.partitionTypeAttribute"
    if attribute is None:
        return
    malformed = list(name.fully_qualified(path, attribute))
    yield from malformed
    if not any(one.consumes_counters for one in spec.devices):
        detail = "may only be set on a slice which declares devices that consume counters"
        yield field.invalid(path, attribute, detail)
        return
    # A name in the driver's own domain may stand without it.
    bare = attribute.removeprefix(f"{spec.driver}/")
    for at, one in enumerate(spec.devices if not malformed else ()):
        where = f"spec.devices[{at}].attributes[{attribute}]"
        found = one.attributes.get(attribute) or one.attributes.get(bare)
        if not one.consumes_counters:
            continue
        if found is None:
            detail = "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"
            yield field.required(where, detail)
        elif found.string is None:
            detail = "must be a string value because `partitionTypeAttribute` names this attribute"
            yield field.invalid(where, _as_go_shows(found), detail)


def _as_go_shows(item: DeviceAttribute) -> dict[str, object]:
    """Return an attribute as the server's own struct has it, whose fields are not those of JSON."""
    return {
        **{"IntValue": item.int_, "BoolValue": item.bool_, "StringValue": item.string, "VersionValue": item.version},
        **{"IntValues": item.ints, "BoolValues": item.bools, "StringValues": item.strings},
        "VersionValues": item.versions,
    }

"""Says which features of DRA a cluster has, and drops the fields of those that it has not.

A server drops such fields in silence, unless the stored object has them already; here each is named.
Source: kubernetes 1.37 pkg/features/kube_features.go, pkg/api/resourceclaimspec/util.go and the strategies of
pkg/registry/resource (behaviour).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Feature gates that are not yet locked in Kubernetes 1.37, with its defaults, or were off in older releases."""

    prioritized_list: bool = True
    """DRAPrioritizedList: on since 1.34, locked since 1.36; off, a claim with `firstAvailable` is an error."""
    admin_access: bool = True
    """DRAAdminAccess: on since 1.34, locked since 1.36; off, a claim with `adminAccess` is an error."""
    device_taints: bool = True
    """DRADeviceTaints: off before 1.36; off, taints do not count."""
    partitionable_devices: bool = True
    """DRAPartitionableDevices, beta: counters, and devices that say themselves where they are."""
    consumable_capacity: bool = True
    """DRAConsumableCapacity, beta: devices that claims share, request policies, `distinctAttribute`."""
    device_binding_conditions: bool = True
    """DRADeviceBindingConditions, beta."""
    extended_resources: bool = True
    """DRAExtendedResource: on since 1.36, locked since 1.37; off, no class stands for an extended resource."""
    fractional_capacity_range: bool = False
    """DRAFractionalCapacityRange, beta and off: ranges of less than one."""
    list_type_attributes: bool = False
    """DRAListTypeAttributes, alpha."""
    node_allocatable_resources: bool = False
    """DRANodeAllocatableResources, alpha."""
    optional_node_operations: bool = False
    """DRAOptionalNodeOperations, alpha: `skipNodeOperations`."""
    derived_attributes: bool = False
    """DRADerivedAttributes, alpha."""
    device_compatibility_groups: bool = False
    """DRADeviceCompatibilityGroups, alpha."""
    partitionable_devices_type: bool = False
    """DRAPartitionableDevicesType, alpha: `partitionTypeAttribute`."""


DEFAULTS: Final = Gates()
"""Those of Kubernetes 1.37."""

NAMES: Final = {
    "DRAPrioritizedList": "prioritized_list",
    "DRAAdminAccess": "admin_access",
    "DRADeviceTaints": "device_taints",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRADeviceBindingConditions": "device_binding_conditions",
    "DRAExtendedResource": "extended_resources",
    "DRAFractionalCapacityRange": "fractional_capacity_range",
    "DRAListTypeAttributes": "list_type_attributes",
    "DRANodeAllocatableResources": "node_allocatable_resources",
    "DRAOptionalNodeOperations": "optional_node_operations",
    "DRADerivedAttributes": "derived_attributes",
    "DRADeviceCompatibilityGroups": "device_compatibility_groups",
    "DRAPartitionableDevicesType": "partitionable_devices_type",
}
"""Feature gates by the API server's names: fields of `Gates`."""
_WORDS: Final = {"true": True, "false": False}
_LISTS: Final = ("ints", "bools", "strings", "versions")
_SHARED: Final = ("share_id", "consumed_capacity")
_BINDING: Final = ("binding_conditions", "binding_failure_conditions")


def chosen(asked: Iterable[str], usual: Gates = DEFAULTS) -> Gates:
    """Return feature gates as they are asked for, each `NAME=true` or `NAME=false`. Raises: RequestError."""
    changes = {}
    for one in asked:
        name, _, word = one.partition("=")
        if name not in NAMES or word.lower() not in _WORDS:
            near = errors.closest(name, NAMES)
            hint = f"did you mean {near}?" if near and near != name else f"NAME=true or NAME=false; {', '.join(NAMES)}"
            message = f'"{errors.readable(one)}" is no feature gate with its value'
            raise errors.RequestError(message, reason="FeatureGateUnknown", hint=hint)
        changes[NAMES[name]] = _WORDS[word.lower()]
    return dataclasses.replace(usual, **changes)


def of_setting(text: str) -> Gates:
    """Return the feature gates of the setting `control.feature_gates`. Raises: RequestError."""
    return chosen(one for part in text.split(",") if (one := part.strip()))


def claim_spec(
    spec: ResourceClaimSpec, gates: Gates, path: str = "spec", *, old: ResourceClaimSpec | None = None
) -> tuple[ResourceClaimSpec, tuple[str, ...]]:
    """Return the spec of a claim without the fields of disabled features, and their paths.

    Args:    old: the stored spec; the fields of a feature that it uses stay.
    """
    fields = _Fields()
    off = _Off(gates, old)
    devices = spec.devices
    shared, derived = off("consumable_capacity", _uses_capacity), off("derived_attributes", _uses_derived)
    of_request = (*(("capacity",) if shared else ()), *(("derived_attributes",) if derived else ()))
    constraints = tuple(
        fields.drop(one, f"{path}.devices.constraints[{at}]", ("distinct_attribute",) if shared else ())
        for at, one in enumerate(devices.constraints)
    )
    requests = []
    for at, request in enumerate(devices.requests or ()):
        where = f"{path}.devices.requests[{at}]"
        exactly = request.exactly and fields.drop(request.exactly, f"{where}.exactly", of_request)
        choices = tuple(
            fields.drop(one, f"{where}.firstAvailable[{choice}]", of_request)
            for choice, one in enumerate(request.first_available)
        )
        requests.append(msgspec.structs.replace(request, exactly=exactly, first_available=choices))
    if not fields.dropped:
        return spec, ()
    devices = msgspec.structs.replace(devices, constraints=constraints, requests=tuple(requests))
    return msgspec.structs.replace(spec, devices=devices), tuple(fields.dropped)


def claim_status(
    claim: ResourceClaim, gates: Gates, *, old: ResourceClaim | None = None
) -> tuple[ResourceClaim, tuple[str, ...]]:
    """Return a claim without the fields of its status that belong to disabled features, and their paths."""
    fields = _Fields()
    off = _Off(gates, old)
    shared = off("consumable_capacity", _status_uses_capacity)
    of_result = (
        *(_SHARED if shared else ()),
        *(_BINDING if off("device_binding_conditions", _status_uses_binding) else ()),
        *(("skip_node_operations",) if off("optional_node_operations", _status_uses_skips) else ()),
    )
    status = claim.status
    devices = tuple(
        fields.drop(one, f"status.devices[{at}]", ("share_id",) if shared else ())
        for at, one in enumerate(status.devices)
    )
    allocation = status.allocation
    if allocation is not None:
        results = tuple(
            fields.drop(one, f"status.allocation.devices.results[{at}]", of_result)
            for at, one in enumerate(allocation.devices.results)
        )
        allocated = msgspec.structs.replace(allocation.devices, results=results)
        allocation = msgspec.structs.replace(allocation, devices=allocated)
    if not fields.dropped:
        return claim, ()
    status = msgspec.structs.replace(status, allocation=allocation, devices=devices)
    return msgspec.structs.replace(claim, status=status), tuple(fields.dropped)


def resource_slice(
    item: ResourceSlice, gates: Gates, *, old: ResourceSlice | None = None
) -> tuple[ResourceSlice, tuple[str, ...]]:
    """Return a slice without the fields of disabled features, and their paths.

    An attribute that had a list keeps nothing: it is refused then, as a server does.
    """
    fields = _Fields()
    off = _Off(gates, old)
    partitions = off("partitionable_devices", _slice_uses_partitions)
    of_spec = (
        *(("shared_counters", "per_device_node_selection") if partitions else ()),
        *(("partition_type_attribute",) if off("partitionable_devices_type", _slice_uses_type) else ()),
        *(("skip_node_operations",) if off("optional_node_operations", _slice_uses_skips) else ()),
    )
    spec = fields.drop(item.spec, "spec", of_spec)
    parts = _DeviceParts(
        device=(
            *(("consumes_counters", "node_name", "node_selector", "all_nodes") if partitions else ()),
            *(("binds_to_node", *_BINDING) if off("device_binding_conditions", _slice_uses_binding) else ()),
            *(("allow_multiple_allocations",) if (shared := off("consumable_capacity", _slice_shares)) else ()),
            *(("node_allocatable_resources",) if off("node_allocatable_resources", _slice_maps) else ()),
        ),
        capacity=("request_policy",) if shared else (),
        consumption=("compatibility_groups",) if off("device_compatibility_groups", _slice_uses_groups) else (),
        attribute=_LISTS if off("list_type_attributes", _slice_uses_lists) else (),
    )
    devices = tuple(_device(one, parts, f"spec.devices[{at}]", fields) for at, one in enumerate(spec.devices))
    if not fields.dropped:
        return item, ()
    changed = msgspec.structs.replace(spec, devices=devices)
    return msgspec.structs.replace(item, spec=changed), tuple(fields.dropped)


def pool_status_request(
    item: ResourcePoolStatusRequest, gates: Gates, *, old: ResourcePoolStatusRequest | None = None
) -> tuple[ResourcePoolStatusRequest, tuple[str, ...]]:
    """Return a request without the fields of disabled features, and their paths."""
    fields = _Fields()
    is_off = _Off(gates, old)("partitionable_devices_type", _request_uses_type)
    spec = fields.drop(item.spec, "spec", ("default_partition_type_attribute",) if is_off else ())
    return msgspec.structs.replace(item, spec=spec), tuple(fields.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceParts:
    """Fields to drop of a device and of its parts."""

    device: tuple[str, ...]
    capacity: tuple[str, ...]
    consumption: tuple[str, ...]
    attribute: tuple[str, ...]


def _device(device: Device, parts: _DeviceParts, path: str, fields: _Fields) -> Device:
    device = fields.drop(device, path, parts.device)
    return msgspec.structs.replace(
        device,
        attributes={
            name: fields.drop(one, f"{path}.attributes[{name}]", parts.attribute)
            for name, one in device.attributes.items()
        },
        capacity={
            name: fields.drop(one, f"{path}.capacity[{name}]", parts.capacity) for name, one in device.capacity.items()
        },
        consumes_counters=tuple(
            fields.drop(one, f"{path}.consumesCounters[{at}]", parts.consumption)
            for at, one in enumerate(device.consumes_counters)
        ),
    )


class _Off:
    """Says whether a feature is off, and the stored object does not use it."""

    def __init__(self, gates: Gates, old: Any) -> None:
        self._gates = gates
        self._old = old

    def __call__(self, gate: str, uses: Callable[[Any], bool]) -> bool:
        return not getattr(self._gates, gate) and not (self._old is not None and uses(self._old))


class _Fields:
    """Drops fields of structs and keeps their paths."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, item: S, path: str, names: tuple[str, ...]) -> S:
        """Return the struct with the defaults of those fields."""
        gone: dict[str, Any] = {}
        known = _defaults(type(item)) if names else {}
        for name in names:
            default, encoded = known[name]
            if getattr(item, name) != default:
                gone[name] = default
                self.dropped.append(f"{path}.{encoded}")
        return msgspec.structs.replace(item, **gone) if gone else item


@functools.cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, str]]:
    """Return the default and the name in documents of each field; msgspec reads the annotations again at every call."""
    found = {}
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        found[field.name] = (field.default if made is msgspec.NODEFAULT else made(), field.encode_name)
    return found


def _of_requests(spec: ResourceClaimSpec) -> Iterator[Any]:
    for request in spec.devices.requests or ():
        yield from [request.exactly] if request.exactly else []
        yield from request.first_available


def _uses_capacity(spec: ResourceClaimSpec) -> bool:
    distinct = any(one.distinct_attribute is not None for one in spec.devices.constraints)
    return distinct or any(one.capacity is not None for one in _of_requests(spec))


def _uses_derived(spec: ResourceClaimSpec) -> bool:
    return any(one.derived_attributes for one in _of_requests(spec))


def _results(claim: ResourceClaim) -> tuple[Any, ...]:
    return claim.status.allocation.devices.results if claim.status.allocation else ()


def _status_uses_capacity(claim: ResourceClaim) -> bool:
    shared = any(one.share_id is not None or one.consumed_capacity for one in _results(claim))
    return shared or _uses_capacity(claim.spec) or any(one.share_id is not None for one in claim.status.devices)


def _status_uses_binding(claim: ResourceClaim) -> bool:
    return any(one.binding_conditions or one.binding_failure_conditions for one in _results(claim))


def _status_uses_skips(claim: ResourceClaim) -> bool:
    return any(one.skip_node_operations for one in _results(claim))


def _slice_uses_partitions(item: ResourceSlice) -> bool:
    spec = item.spec
    return bool(spec.shared_counters or spec.per_device_node_selection is not None) or any(
        one.consumes_counters or one.node_name is not None or one.node_selector is not None or one.all_nodes is not None
        for one in spec.devices
    )


def _slice_uses_type(item: ResourceSlice) -> bool:
    return item.spec.partition_type_attribute is not None


def _request_uses_type(item: ResourcePoolStatusRequest) -> bool:
    return item.spec.default_partition_type_attribute is not None


def _slice_uses_skips(item: ResourceSlice) -> bool:
    return bool(item.spec.skip_node_operations)


def _slice_uses_binding(item: ResourceSlice) -> bool:
    return any(
        one.binding_conditions or one.binding_failure_conditions or one.binds_to_node is not None
        for one in item.spec.devices
    )


def _slice_shares(item: ResourceSlice) -> bool:
    return any(
        one.allow_multiple_allocations is not None
        or any(capacity.request_policy is not None for capacity in one.capacity.values())
        for one in item.spec.devices
    )


def _slice_maps(item: ResourceSlice) -> bool:
    return any(one.node_allocatable_resources for one in item.spec.devices)


def _slice_uses_groups(item: ResourceSlice) -> bool:
    return any(used.compatibility_groups for one in item.spec.devices for used in one.consumes_counters)


def _slice_uses_lists(item: ResourceSlice) -> bool:
    return any(
        getattr(attribute, name) is not None
        for one in item.spec.devices
        for attribute in one.attributes.values()
        for name in _LISTS
    )

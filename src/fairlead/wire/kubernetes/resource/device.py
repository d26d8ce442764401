"""Declares one device of a ResourceSlice: attributes, capacity, counters, taints and where it is.

A field whose absence differs from its zero value is None where it is absent, since the rules of the API tell the two
apart (`allNodes: false` is refused, no `allNodes` is not). Quantities stay as they were written.
Source: k8s.io/api/resource/v1 types.go, release 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from fairlead.wire.kubernetes.core import NodeSelector
from fairlead.wire.kubernetes.meta import Wire

Quantity = str | int | float
"""An amount as it was written (`2`, `500m`, `10Gi`); `wire.kubernetes.quantity` reads it."""

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number that an API server can read."""

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""Standard attribute: the PCIe root complex, `pci0000:00`."""
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"


class DeviceAttribute(Wire, frozen=True):
    """One attribute of a device: exactly one field is set."""

    int_: Int64 | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    """A semantic version, `1.2.3`."""
    ints: tuple[Int64, ...] | None = None
    """Lists need the feature gate DRAListTypeAttributes."""
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRequestPolicyRange(Wire, frozen=True):
    """Amounts that a request may take: `min`, `min` + `step`, …, up to `max`."""

    min: Quantity | None = None
    max: Quantity | None = None
    """None: up to the whole capacity."""
    step: Quantity | None = None
    """None: any amount of the range."""


class CapacityRequestPolicy(Wire, frozen=True):
    """How much of a shared capacity one request takes; at most one of `valid_values` and `valid_range` is set."""

    default: Quantity | None = None
    """What a request takes that names no amount."""
    valid_values: tuple[Quantity, ...] = ()
    """Ascending."""
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Wire, frozen=True):
    """One capacity of a device."""

    value: Quantity = 0
    request_policy: CapacityRequestPolicy | None = None
    """Only where the device allows multiple allocations; None: a request takes what it names, or everything."""


class Counter(Wire, frozen=True):
    """One counter of a set, or what a device consumes of it."""

    value: Quantity = 0


class CounterSet(Wire, frozen=True):
    """Counters that the devices of a pool share."""

    name: str = ""
    counters: Mapping[str, Counter] = {}


class DeviceCounterConsumption(Wire, frozen=True):
    """What a device consumes of one counter set."""

    counter_set: str = ""
    counters: Mapping[str, Counter] = {}
    compatibility_groups: tuple[str, ...] = ()
    """Devices of one counter set need a common group; needs the feature gate DRADeviceCompatibilityGroups."""


class DeviceTaint(Wire, frozen=True):
    """What keeps claims off a device unless they tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""
    """`NoSchedule`, `NoExecute` or `None`; an effect that is not known acts as `None`."""
    time_added: str | None = None


class DeviceToleration(Wire, frozen=True):
    """Taints that a request bears."""

    key: str = ""
    """Empty: all keys, with the operator `Exists`."""
    operator: str = ""
    """`Exists` or `Equal`; empty is `Equal`."""
    value: str = ""
    effect: str = ""
    """Empty: every effect."""
    toleration_seconds: Int64 | None = None
    """How long `NoExecute` is borne; None: for ever."""


class NodeAllocatableMapping(Wire, frozen=True):
    """How much of a node's resource a device stands for, by its capacity or as a whole."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableOverhead(Wire, frozen=True):
    """How much of a node's resource a device costs beside its own."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResource(Wire, frozen=True):
    """One resource of the node (`cpu`, `memory`, …) that a device stands for or costs."""

    mapping: NodeAllocatableMapping | None = None
    overhead: NodeAllocatableOverhead | None = None


class Device(Wire, frozen=True):
    """One device of a pool."""

    name: str = ""
    attributes: Mapping[str, DeviceAttribute] = {}
    """By qualified name; a name without a domain is of the driver's domain."""
    capacity: Mapping[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    """This field and the next two say where it is, in a slice with `perDeviceNodeSelection`."""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    """An allocation binds the claim to the node that it was made for."""
    binding_conditions: tuple[str, ...] = ()
    """Conditions of `status.devices` that must be true before the pod is bound."""
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None
    """Claims share the device and consume its capacity."""
    node_allocatable_resources: Mapping[str, NodeAllocatableResource] = {}
    """By resource of the node; needs the feature gate DRANodeAllocatableResources."""

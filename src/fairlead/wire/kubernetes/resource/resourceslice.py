"""Declares ResourceSlice, in which a DRA driver publishes devices or the counters that they share.

Source: k8s.io/api/resource/v1 types.go, release 1.37.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.core import NodeSelector
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire
from fairlead.wire.kubernetes.resource.device import CounterSet, Device, Int64


class ResourcePool(Wire, frozen=True):
    """The pool that a slice is of."""

    name: str = ""
    generation: Int64 = 0
    """Only the slices of the highest generation count."""
    resource_slice_count: Int64 = 0
    """How many slices the pool has at this generation; with fewer it is incomplete."""


class ResourceSliceSpec(Wire, frozen=True):
    """Devices or shared counters of one pool, and the nodes that have them."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    """Exactly one of this field, the next two and `per_device_node_selection` is set."""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[Device, ...] = ()
    per_device_node_selection: bool | None = None
    """Each device says itself where it is."""
    shared_counters: tuple[CounterSet, ...] = ()
    """Not in a slice that has devices."""
    partition_type_attribute: str | None = None
    """The attribute whose value names the kind of a partition; needs the gate DRAPartitionableDevicesType."""
    skip_node_operations: tuple[str, ...] = ()
    """`NodePrepareResources`, `NodeUnprepareResources` or `*`: what the kubelet leaves out; needs the gate
    DRAOptionalNodeOperations."""


class ResourceSlice(Wire, frozen=True):
    """Some of the devices of a pool."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    KIND: ClassVar[str] = "ResourceSlice"
    PLURAL: ClassVar[str] = "resourceslices"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()

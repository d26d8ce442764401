"""Declares ResourcePoolStatusRequest, which asks once how much of a driver's pools is free.

Source: k8s.io/api/resource/v1alpha3 types.go, release 1.37 (feature gate DRAResourcePoolStatus).
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire
from fairlead.wire.kubernetes.resource.device import Quantity


class ResourcePoolStatusRequestSpec(Wire, frozen=True):
    """Which pools are asked for; immutable."""

    driver: str = ""
    pool_name: str | None = None
    """None: all pools of the driver."""
    limit: int | None = None
    """Pools in the answer, 1 to 1000; None is 100."""
    default_partition_type_attribute: str | None = None
    """For slices that name none themselves; needs the feature gate DRAPartitionableDevicesType."""


class PartitionTypeStatus(Wire, frozen=True):
    """Partitions of one kind."""

    attribute: str = ""
    type: str = ""
    total: int | None = None
    allocatable: int | None = None


class ShareableCapacityStatus(Wire, frozen=True):
    """One capacity of the devices that are shared."""

    name: str = ""
    total: Quantity | None = None
    consumed: Quantity | None = None
    available: Quantity | None = None


class ShareableSummaryStatus(Wire, frozen=True):
    """Devices that are shared."""

    fully_available_devices: int | None = None
    partially_available_devices: int | None = None
    capacity: tuple[ShareableCapacityStatus, ...] = ()


class PoolStatus(Wire, frozen=True):
    """One pool; its counts are None where `validation_error` says why."""

    driver: str = ""
    pool_name: str = ""
    generation: int = 0
    resource_slice_count: int | None = None
    total_devices: int | None = None
    allocated_devices: int | None = None
    available_devices: int | None = None
    unavailable_devices: int | None = None
    node_name: str | None = None
    validation_error: str | None = None
    partition_summary: tuple[PartitionTypeStatus, ...] = ()
    shareable_summary: ShareableSummaryStatus | None = None


class ResourcePoolStatusRequestStatus(Wire, frozen=True):
    """The answer, given once."""

    pool_count: int | None = None
    """Pools that matched, also those beyond the limit."""
    pools: tuple[PoolStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
    """`Complete` or `Failed`."""


class ResourcePoolStatusRequest(Wire, frozen=True):
    """A question about pools, and its answer."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1alpha3"
    KIND: ClassVar[str] = "ResourcePoolStatusRequest"
    PLURAL: ClassVar[str] = "resourcepoolstatusrequests"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourcePoolStatusRequestSpec = ResourcePoolStatusRequestSpec()
    status: ResourcePoolStatusRequestStatus | None = None

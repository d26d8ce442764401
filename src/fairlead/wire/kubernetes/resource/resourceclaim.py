"""Declares ResourceClaim, the right to devices, what was allocated for it, and the template that claims are made from.

Source: k8s.io/api/resource/v1 types.go, release 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from fairlead.wire.kubernetes.core import NodeSelector
from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire
from fairlead.wire.kubernetes.resource.device import DeviceToleration, Quantity
from fairlead.wire.kubernetes.resource.request import DeviceClaim, OpaqueDeviceConfiguration

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Of a claim with an allocation."""
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was made from a template: the name that the pod has for it."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that was made for an extended resource: `true`."""
ADMIN_ACCESS: Final = "resource.kubernetes.io/admin-access"
"""Label of namespaces whose claims may have `adminAccess`: `true`."""


class ResourceClaimSpec(Wire, frozen=True):
    """What is claimed; immutable."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Wire, frozen=True):
    """One device that was allocated for a request."""

    request: str = ""
    """The request's name, or `request/subrequest`."""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    """Of a device that allows multiple allocations: a UUID, one an allocation."""
    consumed_capacity: Mapping[str, Quantity] = {}
    skip_node_operations: tuple[str, ...] = ()


class DeviceAllocationConfiguration(Wire, frozen=True):
    """Configuration for a driver, as it was when the claim was allocated."""

    source: str = ""
    """`FromClass` or `FromClaim`."""
    requests: tuple[str, ...] = ()
    """Empty: all."""
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(Wire, frozen=True):
    """Allocated devices, and the configuration for their drivers: of classes first, then of the claim."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(Wire, frozen=True):
    """What was allocated; a claim without it is not allocated."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    """Nodes that the devices can be used on; None: all."""
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(Wire, frozen=True):
    """A user of the claim: a pod, or a group of pods."""

    api_group: str = ""
    resource: str = ""
    """`pods`."""
    name: str = ""
    uid: str = ""


class NetworkDeviceData(Wire, frozen=True):
    """What a driver reports of a network device."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    """With prefix length: `192.0.2.5/24`."""
    hardware_address: str = ""


class AllocatedDeviceStatus(Wire, frozen=True):
    """What a driver reports of an allocated device; driver, pool, device and share id are its key."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[Condition, ...] | None = None
    """None: none, which a server writes as null."""
    data: Any = None
    """A JSON object of the driver; None: absent."""
    network_data: NetworkDeviceData | None = None


class ResourceClaimStatus(Wire, frozen=True):
    """Whether and how a claim is allocated, and who uses it."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class ResourceClaim(Wire, frozen=True):
    """A request for devices and the allocation that answers it."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    KIND: ClassVar[str] = "ResourceClaim"
    PLURAL: ClassVar[str] = "resourceclaims"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Wire, frozen=True):
    """The claim to make, with its labels and annotations; immutable."""

    metadata: ObjectMeta = ObjectMeta()
    """Only labels and annotations may be set."""
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Wire, frozen=True):
    """A claim that is made for each pod that names the template."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    KIND: ClassVar[str] = "ResourceClaimTemplate"
    PLURAL: ClassVar[str] = "resourceclaimtemplates"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()

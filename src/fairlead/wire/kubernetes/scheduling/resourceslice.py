"""Declares what is read of a `ResourceSlice`, in which a DRA driver publishes devices.

Source: k8s.io/api/resource/v1 types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class DeviceAttribute(Wire, frozen=True):
    """One attribute, where it is a text; numbers and versions are not read."""

    string: str = ""


class Device(Wire, frozen=True):
    """One device."""

    name: str = ""
    attributes: Mapping[str, DeviceAttribute] = {}
    """By name; a driver's own may stand without its domain."""


class ResourcePool(Wire, frozen=True):
    """The pool that a slice is of."""

    name: str = ""
    generation: int = 0
    """Slices of an older one are out of date."""


class ResourceSliceSpec(Wire, frozen=True):
    """Devices of one pool."""

    driver: str = ""
    node_name: str = ""
    pool: ResourcePool = ResourcePool()
    devices: tuple[Device, ...] = ()


class ResourceSlice(Wire, frozen=True):
    """Some of the devices that a driver has on a node."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    KIND: ClassVar[str] = "ResourceSlice"
    PLURAL: ClassVar[str] = "resourceslices"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()

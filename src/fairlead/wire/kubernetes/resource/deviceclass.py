"""Declares DeviceClass, the kinds of devices that an administrator offers.

Source: k8s.io/api/resource/v1 types.go, release 1.37.
"""

from __future__ import annotations

from typing import ClassVar, Final

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire
from fairlead.wire.kubernetes.resource.request import DeviceSelector, OpaqueDeviceConfiguration

IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Every class is an extended resource too: this prefix and the class's name."""


class DeviceClassConfiguration(Wire, frozen=True):
    """Configuration for a driver, which goes with every device of the class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(Wire, frozen=True):
    """Which devices are of the class."""

    selectors: tuple[DeviceSelector, ...] = ()
    """All must hold."""
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None
    """The resource, `nvidia.com/gpu`, by which pods without claims request devices of the class."""


class DeviceClass(Wire, frozen=True):
    """A kind of devices, by its name in requests."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    KIND: ClassVar[str] = "DeviceClass"
    PLURAL: ClassVar[str] = "deviceclasses"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()

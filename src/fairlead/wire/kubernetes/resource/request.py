"""Declares what a claim requests: devices by class and selector, constraints between them, configuration for drivers.

Source: k8s.io/api/resource/v1 types.go, release 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.wire.kubernetes.meta import Wire
from fairlead.wire.kubernetes.resource.device import DeviceToleration, Int64, Quantity


class CELDeviceSelector(Wire, frozen=True):
    """A CEL expression over `device`."""

    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    """One condition on a device."""

    cel: CELDeviceSelector | None = None


class CapacityRequirements(Wire, frozen=True):
    """How much a request takes of the capacity of a shared device."""

    requests: Mapping[str, Quantity] = {}
    """By qualified name; a capacity that is not named is taken by its policy's default, or as a whole."""


class DeviceDerivedAttribute(Wire, frozen=True):
    """An attribute that is computed for each candidate; needs the feature gate DRADerivedAttributes."""

    name: str = ""
    """Fully qualified; a constraint of the claim must use it."""
    expression: str = ""


class ExactDeviceRequest(Wire, frozen=True):
    """A request for devices of one class."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    """All must hold."""
    allocation_mode: str = ""
    """`ExactCount` or `All`; empty is `ExactCount`."""
    count: Int64 = 0
    """0 with `ExactCount` is 1."""
    admin_access: bool | None = None
    """Sees devices whether or not they are allocated; needs a label of the namespace."""
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceSubRequest(Wire, frozen=True):
    """One alternative of a request; the first that fits is taken."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    """As of `ExactDeviceRequest`."""
    count: Int64 = 0
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DeviceDerivedAttribute, ...] = ()


class DeviceRequest(Wire, frozen=True):
    """One request of a claim: exactly one of its fields beside the name is set."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Wire, frozen=True):
    """One condition on the devices of a claim together: exactly one attribute is set."""

    requests: tuple[str, ...] = ()
    """Names of requests, or `request/subrequest`; a request without one means all of its alternatives. Empty: all."""
    match_attribute: str | None = None
    """All devices have the same value."""
    distinct_attribute: str | None = None
    """No two devices have the same value."""


class OpaqueDeviceConfiguration(Wire, frozen=True):
    """Parameters that only a driver understands."""

    driver: str = ""
    parameters: Any = None
    """A JSON object, as it was written; None: absent."""


class DeviceClaimConfiguration(Wire, frozen=True):
    """Configuration of a claim for a driver."""

    requests: tuple[str, ...] = ()
    """As of `DeviceConstraint`."""
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(Wire, frozen=True):
    """All that a claim requests."""

    requests: tuple[DeviceRequest, ...] | None = ()
    """None: none, which a server writes as null."""
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()

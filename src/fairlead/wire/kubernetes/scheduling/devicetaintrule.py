"""Declares `DeviceTaintRule`, which taints a device of a DRA driver from outside of the driver.

Source: k8s.io/api/resource/v1beta2 types.go (served from Kubernetes 1.36 on, where `--runtime-config` turns it on).
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class DeviceSelector(Wire, frozen=True):
    """Which devices; here always one."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class DeviceTaint(Wire, frozen=True):
    """What keeps claims off a device unless they tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""
    """`NoSchedule`, `NoExecute`, or `None`, which only tells."""
    time_added: str | None = None
    """The API server's own."""


class DeviceTaintRuleSpec(Wire, frozen=True):
    """One taint, and what has it."""

    device_selector: DeviceSelector = DeviceSelector()
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Wire, frozen=True):
    """A taint of devices that a driver publishes."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1beta2"
    KIND: ClassVar[str] = "DeviceTaintRule"
    PLURAL: ClassVar[str] = "devicetaintrules"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()

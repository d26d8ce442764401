"""Declares DeviceTaintRule, by which an administrator taints devices that a driver publishes.

A cluster serves it as v1 from Kubernetes 1.37 on; 1.36 as v1beta2, where `--runtime-config` turns that on.
Source: k8s.io/api/resource/v1 types.go, release 1.37.
"""

from __future__ import annotations

from typing import ClassVar, Final

from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire
from fairlead.wire.kubernetes.resource.device import DeviceTaint

EVICTION_IN_PROGRESS: Final = "EvictionInProgress"
"""Condition: pods are being evicted because of the rule."""


class DeviceTaintSelector(Wire, frozen=True):
    """Which devices; each field that is set narrows it."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Wire, frozen=True):
    """One taint, and the devices that have it."""

    device_selector: DeviceTaintSelector | None = None
    """None: no device; empty: every device."""
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRuleStatus(Wire, frozen=True):
    """How far the eviction is."""

    conditions: tuple[Condition, ...] = ()


class DeviceTaintRule(Wire, frozen=True):
    """A taint of published devices."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1"
    KIND: ClassVar[str] = "DeviceTaintRule"
    PLURAL: ClassVar[str] = "devicetaintrules"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()


class DeviceTaintRuleV1Beta2(DeviceTaintRule, frozen=True):
    """The same under its older name."""

    API_VERSION: ClassVar[str] = "resource.k8s.io/v1beta2"


SERVED: Final[tuple[type[DeviceTaintRule], ...]] = (DeviceTaintRule, DeviceTaintRuleV1Beta2)
"""As which a cluster may serve it, the newest first."""

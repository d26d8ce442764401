"""Checks DeviceTaintRules.

Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, ValidateDeviceTaintRule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.plan.claim.validate import device, metadata, name
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule, DeviceTaintRuleSpec

CONDITIONS_MOST: Final = 8


def problems(item: DeviceTaintRule) -> Iterator[str]:
    """Yield what is wrong with a new rule; its status does not count."""
    yield from metadata.problems(item.metadata, is_namespaced=False)
    yield from _spec(item.spec)


def update_problems(new: DeviceTaintRule, old: DeviceTaintRule) -> Iterator[str]:
    """Yield what is wrong with a changed rule; an effect that stays may be one that is not known here."""
    yield from metadata.update_problems(new.metadata, old.metadata)
    kept = new.spec.taint.effect == old.spec.taint.effect
    yield from (one for one in _spec(new.spec) if not (kept and one.startswith("spec.taint.effect:")))


def status_problems(new: DeviceTaintRule, old: DeviceTaintRule) -> Iterator[str]:
    """Yield what is wrong with a changed status."""
    yield from metadata.update_problems(new.metadata, old.metadata)
    yield from metadata.conditions(new.status.conditions, "status.conditions", CONDITIONS_MOST)


def _spec(spec: DeviceTaintRuleSpec) -> Iterator[str]:
    selector, path = spec.device_selector, "spec.deviceSelector"
    if selector is not None:
        if selector.driver is not None:
            yield from name.driver(f"{path}.driver", selector.driver)
        if selector.pool is not None:
            yield from name.pool(f"{path}.pool", selector.pool)
        if selector.device is not None:
            yield from name.dns_label(f"{path}.device", selector.device)
    yield from device.taint(spec.taint, "spec.taint")

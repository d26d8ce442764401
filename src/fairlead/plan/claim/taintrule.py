"""Taints devices by the rules of administrators, so that the search sees one kind of taint.

Source: k8s.io/dynamic-resource-allocation v0.37.2 resourceslice/tracker (behaviour).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_Rules = Mapping[tuple[str | None, str | None], Sequence[DeviceTaintRule]]


def tainted(slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]) -> tuple[ResourceSlice, ...]:
    """Return slices whose devices have the taints of the rules too; what no rule selects stays the same object."""
    known = defaultdict[tuple[str | None, str | None], list[DeviceTaintRule]](list)
    for rule in sorted(rules, key=lambda one: one.metadata.name):
        if (chosen := rule.spec.device_selector) is not None:
            known[chosen.driver, chosen.pool].append(rule)
    return tuple(_slice(one, known) for one in slices) if known else tuple(slices)


def _slice(item: ResourceSlice, known: _Rules) -> ResourceSlice:
    driver, pool = item.spec.driver, item.spec.pool.name
    keys = ((None, None), (driver, None), (None, pool), (driver, pool))
    rules = [rule for key in keys for rule in known.get(key, ())]
    if not rules:
        return item
    by_device = defaultdict[str | None, list[DeviceTaint]](list)
    for rule in rules:
        if (chosen := rule.spec.device_selector) is not None:
            by_device[chosen.device].append(rule.spec.taint)
    devices = tuple(_device(one, (*by_device.get(None, ()), *by_device.get(one.name, ()))) for one in item.spec.devices)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def _device(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    return msgspec.structs.replace(device, taints=(*device.taints, *taints)) if taints else device

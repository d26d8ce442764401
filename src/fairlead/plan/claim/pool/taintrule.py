"""Taints devices by the rules of administrators, so that the search sees one kind of taint.

Source: k8s.io/dynamic-resource-allocation v0.37.2 resourceslice/tracker (behaviour).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_Taints = list[tuple[str | None, DeviceTaint]]
"""Taints with the device that each is for; None: every device."""
_Known = Mapping[tuple[str | None, str | None], _Taints]
"""By driver and pool; None: any."""


def tainted(slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]) -> tuple[ResourceSlice, ...]:
    """Return slices whose devices have the taints of the rules too; what no rule selects stays the same object."""
    known = defaultdict[tuple[str | None, str | None], _Taints](list)
    for rule in sorted(rules, key=lambda one: one.metadata.name):
        if (chosen := rule.spec.device_selector) is not None:
            known[chosen.driver, chosen.pool].append((chosen.device, rule.spec.taint))
    return tuple(_slice(one, known) for one in slices) if known else tuple(slices)


def _slice(item: ResourceSlice, known: _Known) -> ResourceSlice:
    driver, pool = item.spec.driver, item.spec.pool.name
    keys = ((None, None), (driver, None), (None, pool), (driver, pool))
    chosen = [pair for key in keys for pair in known.get(key, ())]
    if not chosen:
        return item
    by_device = defaultdict[str | None, list[DeviceTaint]](list)
    for device, taint in chosen:
        by_device[device].append(taint)
    devices = tuple(_device(one, (*by_device.get(None, ()), *by_device.get(one.name, ()))) for one in item.spec.devices)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def _device(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    return msgspec.structs.replace(device, taints=(*device.taints, *taints)) if taints else device

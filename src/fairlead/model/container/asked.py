"""Says in words which devices a container asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def in_words(resources: Mapping[str, int], claims: Iterable[str], devices: Iterable[str]) -> str:
    """Return `2 x nvidia.com/gpu, the devices of claim pair, vendor.com/class=name`, or `no devices`.

    Args: resources: devices by extended resource; claims: names of claims; devices: CDI names of devices that are
    asked for one by one.
    """
    counted = (f"{count} x {name}" for name, count in resources.items())
    return ", ".join((*counted, *(f"the devices of claim {name}" for name in claims), *devices)) or "no devices"

"""Reads QMP's `query-pci`: at which addresses a guest sees the functions that it got.

The guest's firmware numbers the buses, and QEMU knows how: so which GPU a guest speaks of is not the guest's word.
Source: QEMU QMP Reference Manual, `query-pci`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from fairlead import errors

_DEEPEST: Final = 8
Number = Annotated[int, msgspec.Meta(ge=0, le=255)]


class _Bridge(msgspec.Struct, frozen=True):
    devices: tuple[_Function, ...] = ()


class _Function(msgspec.Struct, frozen=True):
    bus: Number
    slot: Number
    function: Number
    qdev_id: str = ""
    pci_bridge: _Bridge | None = None


class _Bus(msgspec.Struct, frozen=True):
    devices: tuple[_Function, ...] = ()


def parse_places(answer: Any) -> dict[str, str]:
    """Return the guest's PCI address (`0000:01:00.0`) of each device that has an id, by that id.

    Raises: ProtocolError (`QMPMalformed`): it is no answer to `query-pci`.
    """
    try:
        buses = msgspec.convert(answer, tuple[_Bus, ...])
    except (msgspec.ValidationError, RecursionError) as error:
        message = f"the emulator's list of PCI buses is not understood: {str(error)[:200]}"
        raise errors.ProtocolError(message, reason="QMPMalformed", hint="use a QEMU of version 7 or newer") from error
    found = (one for bus in buses for one in _walk(bus.devices, 0))
    return {one.qdev_id: f"0000:{one.bus:02x}:{one.slot:02x}.{one.function:x}" for one in found if one.qdev_id}


def _walk(devices: tuple[_Function, ...], depth: int) -> Iterator[_Function]:
    for one in devices:
        yield one
        if one.pci_bridge is not None and depth < _DEEPEST:
            yield from _walk(one.pci_bridge.devices, depth + 1)

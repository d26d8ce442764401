"""The PCI configuration space of a function, as its table has it: 4096 bytes, and which bits of them can be written.

Source: PCI Local Bus Specification 3.0, chapter 6; PCI Express Base Specification 6.0, 7.5 to 7.9 (in Linux:
`include/uapi/linux/pci_regs.h`).
"""

from __future__ import annotations

import struct
from typing import Final

from hgx.layout import FunctionTable

SIZE: Final = 4096
COMMAND: Final = 0x04
MEMORY_ENABLED: Final = 0x2
_PM, _EXPRESS, _VPD, _AER, _SERIAL = 0x40, 0x60, 0xB0, 0x100, 0x150
POWER_STATE: Final = _PM + 4
DEVICE_CONTROL: Final = _EXPRESS + 8
FUNCTION_RESET: Final = 0x8000
LINK_STATUS: Final = _EXPRESS + 0x12
VPD_ADDRESS, VPD_DATA = _VPD + 2, _VPD + 4
VPD_DONE: Final = 0x8000
SERIAL_NUMBER: Final = _SERIAL + 4
_GENERATION, _LANES = 5, 16


def link(generation: int, lanes: int) -> bytes:
    """Return what the link status register says, such as 5 and 16 for 32 GT/s x16."""
    return struct.pack("<H", generation | lanes << 4)


FULL_LINK: Final = link(_GENERATION, _LANES)


def initial(table: FunctionTable) -> bytearray:
    """Return the bytes after a reset."""
    space = bytearray(SIZE)
    struct.pack_into("<HHHH", space, 0, table.vendor, table.device, 0, 0x10)
    struct.pack_into("<I", space, 8, table.class_code << 8 | table.revision)
    for index, (_, flags) in table.bars.items():
        struct.pack_into("<I", space, 0x10 + 4 * index, flags)
    struct.pack_into("<HH", space, 0x2C, table.vendor, table.subsystem)
    space[0x34] = _PM
    # Version 3; no soft reset, so that leaving D3 does not reset it
    space[_PM : _PM + 6] = struct.pack("<BBHH", 1, _EXPRESS, 3, 0x8)
    struct.pack_into("<BBH", space, _EXPRESS, 0x10, _VPD if table.vpd is not None else 0, 2)
    struct.pack_into("<I", space, _EXPRESS + 4, 1 << 15 | 1 << 28)  # role-based errors, function level reset
    struct.pack_into("<I", space, _EXPRESS + 0xC, _GENERATION | _LANES << 4)
    space[LINK_STATUS : LINK_STATUS + 2] = FULL_LINK
    struct.pack_into("<I", space, _EXPRESS + 0x2C, 0b11111 << 1)  # speeds of generations 1 to 5
    struct.pack_into("<H", space, _EXPRESS + 0x30, _GENERATION)
    if table.vpd is not None:
        space[_VPD] = 3
    after_aer = _SERIAL if table.serial is not None else 0
    struct.pack_into("<I", space, _AER, 0x0001 | 2 << 16 | after_aer << 20)
    if table.serial is not None:
        struct.pack_into("<IQ", space, _SERIAL, 0x0003 | 1 << 16, table.serial)
    return space


def writable(table: FunctionTable) -> bytes:
    """Return a mask of the bits that can be written and read back."""
    mask = bytearray(SIZE)
    for offset, bits in (
        (COMMAND, 0x0547),
        (0x3C, 0x00FF),  # interrupt line
        (POWER_STATE, 0x0003),
        (DEVICE_CONTROL, 0x7FFF),  # without the reset bit, which reads as 0
        (_EXPRESS + 0x10, 0x01FF),
        (_EXPRESS + 0x28, 0x7FFF),
        (_EXPRESS + 0x30, 0x00FF),
        (_AER + 0x8, 0xFFFF),
        (_AER + 0xA, 0xFFFF),
        (_AER + 0xC, 0xFFFF),
        (_AER + 0xE, 0xFFFF),
        (_AER + 0x14, 0xFFFF),
    ):
        struct.pack_into("<H", mask, offset, bits)
    if table.vpd is not None:
        struct.pack_into("<H", mask, VPD_ADDRESS, 0xFFFF)
    return bytes(mask)

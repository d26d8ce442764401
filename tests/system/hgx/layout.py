"""Boards, as tables: which PCI functions an HGX baseboard has, what each answers, and which share a slot.

A board is a list of slots, each behind a PCI Express port of its own, in the order in which the kernel numbers them.
Functions of one slot share an IOMMU group, because nothing between them keeps them apart.

Sources: identities of functions and the module numbers in order of PCI addresses: NVIDIA, "HGX platform configuration
guide" (WP-12736-002); subsystems, module pins and the scrub flag: NVIDIA's gpu-admin-tools; four ConnectX-7 functions
with `SW_MNG` in their VPD: NVIDIA's Fabric Manager guide; classes: PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

NVIDIA, MELLANOX, PMC_SIERRA = 0x10DE, 0x15B3, 0x11F8
MIB: Final = 1 << 20
MEMORY_64: Final = 0xC
"""BAR flags: 64 bits wide, prefetchable. Source: PCI Local Bus Specification 3.0, 6.2.5.1."""
MEMORY_BAR: Final = 2
"""Of a GPU: the window into its memory."""
FIRMWARE = 0x21280
"""Register of the stand-in that plays the version of a GPU's firmware: what a real driver reads by NVML."""
PLATFORM_MODULE = 0x21284
"""Likewise of its firmware's answer which module it is, which a Blackwell GPU tells a driver alone."""
MODULE_REGISTERS: Final = tuple(0x21200 + 4 * pin for pin in (0x9, 0x11, 0x12))
MODULE_BIT: Final = 14
MODULES: Final = (5, 7, 6, 8, 1, 3, 2, 4)
"""Module numbers of the eight GPUs in the order of their PCI addresses."""


@dataclass(frozen=True, kw_only=True)
class FunctionTable:
    """One PCI function."""

    name: str
    vendor: int
    device: int
    subsystem: int
    """Device part; the vendor part is the vendor's own."""
    class_code: int
    revision: int = 0
    bars: Mapping[int, tuple[int, int]]
    """Index → size in bytes, flags."""
    registers: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Of BAR 0: offset → value after a reset."""
    scrub_register: int | None = None
    """Of BAR 0: 1 once the memory was overwritten after a reset; None: it has no memory."""
    module: int | None = None
    serial: int | None = None
    """Device Serial Number capability; None: it has none."""
    vpd: bytes | None = None
    firmware: int | None = None
    """What plays the version of its firmware, at `FIRMWARE` of BAR 0; None: nothing does."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A whole board."""

    name: str
    slots: tuple[tuple[FunctionTable, ...], ...]
    scrub_s: float = 0.5
    """How long a GPU overwrites its memory after a reset."""

    def functions(self) -> tuple[FunctionTable, ...]:
        return tuple(function for slot in self.slots for function in slot)

    def gpus(self) -> tuple[FunctionTable, ...]:
        """In order of PCI addresses."""
        return tuple(function for function in self.functions() if function.scrub_register is not None)


def module_pins(module: int, *, is_flipped: bool) -> dict[int, int]:
    """Return the registers that tell a module number, 1 to 8; some boards have the highest pin inverted."""
    value = (module - 1) ^ (4 if is_flipped else 0)
    return {register: (value >> bit & 1) << MODULE_BIT for bit, register in enumerate(MODULE_REGISTERS)}


def vital_data(title: str, fields: Mapping[str, bytes]) -> bytes:
    """Return vital product data with read-only fields. Source: PCI Local Bus Specification 3.0, appendix I."""
    name = title.encode()
    body = b"".join(key.encode() + bytes([len(value)]) + value for key, value in fields.items())
    head = b"\x82" + len(name).to_bytes(2, "little") + name + b"\x90" + (len(body) + 4).to_bytes(2, "little")
    summed = head + body + b"RV\x01"
    return summed + bytes([-sum(summed) & 0xFF]) + b"\x78"


def _h100(position: int, module: int) -> FunctionTable:
    pins = module_pins(module, is_flipped=True)
    return FunctionTable(
        name=f"gpu{position}",
        vendor=NVIDIA,
        device=0x2330,
        subsystem=0x16C1,
        class_code=0x030200,
        revision=0xA1,
        bars={0: (16 * MIB, MEMORY_64), MEMORY_BAR: (64 * MIB, MEMORY_64), 4: (32 * MIB, MEMORY_64)},
        registers=MappingProxyType({0: 0x180000A1, **pins}),
        firmware=0x96007400,
        scrub_register=0x100B20,
        module=module,
        serial=0x48B02D0000000000 + 0x1A0 + module,
    )


def _b200(position: int, module: int) -> FunctionTable:
    """Have no module pins: from Blackwell on, firmware has to be asked (`PLATFORM_MODULE` plays its answer)."""
    return FunctionTable(
        name=f"gpu{position}",
        vendor=NVIDIA,
        device=0x2901,
        subsystem=0x1999,
        class_code=0x030200,
        revision=0xA1,
        bars={0: (64 * MIB, MEMORY_64), MEMORY_BAR: (64 * MIB, MEMORY_64), 4: (32 * MIB, MEMORY_64)},
        registers=MappingProxyType({0: 0x1A0000A1, PLATFORM_MODULE: module}),
        firmware=0x97005A00,
        scrub_register=0x8A004C,
        module=module,
        serial=0x48B02D0000000000 + 0x2B0 + module,
    )


def _nvswitch(position: int) -> FunctionTable:
    return FunctionTable(
        name=f"nvswitch{position}",
        vendor=NVIDIA,
        device=0x22A3,
        subsystem=0x1796,
        class_code=0x068000,
        revision=0xA1,
        bars={0: (32 * MIB, 0)},
    )


_MEMORY_CONTROLLER = FunctionTable(
    name="memory-controller",
    vendor=PMC_SIERRA,
    device=0x4128,
    subsystem=0x4128,
    class_code=0x058000,
    bars={0: (MIB, 0)},
)


def _switch_bridge(position: int) -> FunctionTable:
    number = f"MT2433X0{position:04d}".encode()
    fields = {"PN": b"699-9X789-00SW-001", "EC": b"A4", "SN": number, "VA": b"SW_MNG"}
    return FunctionTable(
        name=f"bridge{position}",
        vendor=MELLANOX,
        device=0x1021,
        subsystem=0x0041,
        class_code=0x020700,
        bars={0: (32 * MIB, MEMORY_64)},
        vpd=vital_data("Nvidia ConnectX-7 mezz board for NVLink switches", fields),
    )


_SWITCHES = (_nvswitch(0), _MEMORY_CONTROLLER, *(_nvswitch(position) for position in (1, 2, 3)))
HGX_H100: Final = Layout(
    name="hgx-h100",
    slots=(*((_h100(position, module),) for position, module in enumerate(MODULES)), _SWITCHES),
)
HGX_B200: Final = Layout(
    name="hgx-b200",
    slots=(
        *((_b200(position, module),) for position, module in enumerate(MODULES)),
        *((_switch_bridge(position),) for position in range(4)),
    ),
)
BY_NAME: Final = MappingProxyType({layout.name: layout for layout in (HGX_H100, HGX_B200)})

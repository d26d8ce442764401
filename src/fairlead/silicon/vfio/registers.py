"""Reads a GPU's registers through the file of its first memory region: module number, scrub flag, generation.

This touches hardware, so it is a port of its own, and a caller must know that nobody has the function. Memory decoding
is turned on for the length of a reading where firmware or a driver left it off, and a sleeping function is kept awake;
both are put back. Registers are read four bytes at a time, as one access each: the device may answer nothing else.

A kernel in lockdown refuses (EPERM), and one that guards device memory does while a driver has claimed the region
(EINVAL): that is said. Registers of a function that fell off the bus, or sleeps, read as ones.
Source: kernel Documentation/PCI/sysfs-pci.rst (resource0, config), Documentation/power/pci.rst; NVIDIA gpu-admin-tools
(MIT): the GPIO registers of the module number, the flag of a finished memory scrub; nouveau's device table for boot0.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from fairlead.model.vfio import Function, FunctionKind, ModuleReading, ModuleUnknown
from fairlead.silicon.vfio import attribute

_COMMAND, _MEMORY = 0x04, 1 << 1
_BOOT0: Final = 0x0
_HOPPER, _BLACKWELL = 0x180, range(0x1A0, 0x1B0)
"""Architecture and implementation, as boot0 has them: GH100, and GB10x of data centres."""
_GPIO: Final = 0x21200
_STRAPS: Final = (0x09, 0x11, 0x12)
"""GPIOs that hold bits 0 to 2 of the module number, less one."""
_STRAP_BIT: Final = 14
_FLIPPED: Final = 4
_SCRUBBED: Final = 0x100B20
_SCRUBBED_BLACKWELL: Final = 0x8A004C
_CC_MODE: Final = 0x1182CC
_CC_MODE_BLACKWELL: Final = 0x590
_CC_MODES: Final = {0: "off", 1: "on", 3: "devtools"}
_ONES: Final = 0xFFFFFFFF
_NVIDIA: Final = 0x10DE
_UNPLACED: Final = "0x0000000000000000 0x0000000000000000 "
"""How `resource` begins where the first region has no address: it may be so after a hot plug."""
_MODULES: Final[dict[int, frozenset[int]]] = {
    0x2324: frozenset({0x17A6, 0x17A8}),
    0x2328: frozenset({0x1905, 0x1906}),
    0x2329: frozenset({0x198B, 0x198C}),
    0x232C: frozenset({0x2063, 0x2064}),
    0x2330: frozenset({0x16C0, 0x16C1, 0x2044, 0x20C1}),
    0x2335: frozenset({0x18BE, 0x18BF}),
    0x2336: frozenset({0x16C2, 0x16C7}),
    0x2337: frozenset({0x16E5, 0x16EF}),
    0x2338: frozenset({0x16F6, 0x16F7}),
    0x2339: frozenset({0x17D9, 0x17FC}),
}
"""SXM modules of the Hopper generation whose wiring is known, by device and subsystem: bit 2 is inverted on all."""
_CARDS: Final = frozenset({0x2321, 0x2322, 0x2331, 0x233A, 0x233B, 0x233D})
"""Hopper on PCIe cards: no modules."""
_UNSWITCHED: Final = re.compile(r"(?:G[KM][0-9]|GP10|TU[0-9]|GA10[1-9]|AD[0-9]|GB20)[0-9A-Z]*\b", re.ASCII)
"""Begins the names of chips in the list of PCI ids that no board with NVSwitches has: those were made of GV100, GA100,
GH100 and GB10x. Whatever is not here may be on one.
"""
_ON_A_CARD: Final = re.compile(r"\bPCIe\b")


class Registers(Protocol):
    """Reads 32-bit registers of one function's first memory region while it is open."""

    def read(self, offset: int) -> int:
        """Return one register. Raises: OSError: it lies outside the region, or the region is gone."""
        ...


class _Mapped:
    """Registers in a mapping of `resource0`."""

    def __init__(self, data: memoryview) -> None:
        self._words = data

    def read(self, offset: int) -> int:
        if offset % 4 or offset // 4 >= len(self._words):
            raise OSError(errno.EINVAL, f"register {offset:#x} lies outside the region")
        return int(self._words[offset // 4])


@contextlib.contextmanager
def opened(root: Path, address: str) -> Iterator[Registers]:
    """Open a function's registers for a block, awake and decoding memory. Raises: OSError: refused, or gone."""
    folder = f"{root}/sys/bus/pci/devices/{address}"
    if attribute.find_text(f"{folder}/resource").startswith(_UNPLACED):
        why = "Linux found no room for its memory (dmesg: can't assign; no space); reboot, or boot with pci=realloc"
        raise OSError(errno.ENODEV, why)
    with _awake(folder), _decoding(folder):
        handle = os.open(f"{folder}/resource0", os.O_RDWR | os.O_SYNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(handle).st_size & ~3
            if not size:
                raise OSError(errno.ENODEV, "its first memory region is empty")
            with mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                whole = memoryview(mapped)
                words = whole.cast("I")
                try:
                    yield _Mapped(words)
                finally:
                    words.release()
                    whole.release()
        except ValueError as error:
            raise OSError(errno.ENODEV, str(error)) from error
        finally:
            os.close(handle)


@contextlib.contextmanager
def _awake(folder: str) -> Iterator[None]:
    """Keep a function in full power; one without the file has no power management."""
    before = attribute.find_text(f"{folder}/power/control")
    if before != "auto":
        yield
        return
    _write(f"{folder}/power/control", b"on")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it is gone
            _write(f"{folder}/power/control", b"auto")


@contextlib.contextmanager
def _decoding(folder: str) -> Iterator[None]:
    """Have a function answer memory accesses. Raises: OSError: it does not answer at all, or may not be told to."""
    command = attribute.read(f"{folder}/config", at=_COMMAND, size=2)
    if len(command) < 2 or command == b"\xff\xff":
        raise OSError(errno.ENODEV, "it does not answer on the bus")
    word = int.from_bytes(command, "little")
    if word & _MEMORY:
        yield
        return
    _write(f"{folder}/config", (word | _MEMORY).to_bytes(2, "little"), at=_COMMAND)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _write(f"{folder}/config", command, at=_COMMAND)


def _write(path: str, data: bytes, *, at: int = 0) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(handle, data, at)
    finally:
        os.close(handle)


def read_module(root: Path, function: Function) -> ModuleReading:
    """Return which module of its baseboard a GPU is. Only for one that nobody has; no error leaves here."""
    if (why := _no_module(function)) is not None:
        return ModuleReading(why=why)
    try:
        with opened(root, function.address) as registers:
            return parse_module(registers)
    except OSError as error:
        return ModuleReading(why=ModuleUnknown.UNREADABLE, detail=error.strerror or str(error))


def is_card(function: Function) -> bool:
    """Return whether a GPU can be no module of a board with NVSwitches; one that nobody knows may be."""
    if function.vendor != _NVIDIA or function.device in _CARDS:
        return True
    if function.device in _MODULES:
        return False
    return bool(_UNSWITCHED.match(function.model) or _ON_A_CARD.search(function.model))


def _no_module(function: Function) -> ModuleUnknown | None:
    """Return why it is no use to ask; None: it may be asked."""
    is_card = function.vendor != _NVIDIA or function.kind is not FunctionKind.GPU or function.device in _CARDS
    if is_card:
        return ModuleUnknown.NOT_SXM
    known = _MODULES.get(function.device)
    if known is None:
        return ModuleUnknown.GENERATION
    is_known = function.subsystem_vendor == _NVIDIA and function.subsystem_device in known
    return None if is_known else ModuleUnknown.BOARD


def parse_module(registers: Registers) -> ModuleReading:
    """Return the module number of a known SXM module. Raises: OSError."""
    boot0 = registers.read(_BOOT0)
    words = [registers.read(_GPIO + 4 * gpio) for gpio in _STRAPS]
    if boot0 == _ONES or _ONES in words:
        return ModuleReading(why=ModuleUnknown.SILENT)
    if _generation(boot0) != _HOPPER:
        return ModuleReading(why=ModuleUnknown.GENERATION, detail=f"boot0 is {boot0:#010x}")
    bits = [(word >> _STRAP_BIT) & 1 for word in words]
    return ModuleReading(number=1 + (sum(bit << place for place, bit in enumerate(bits)) ^ _FLIPPED))


def is_scrubbed(registers: Registers) -> bool | None:
    """Return whether the hardware has erased its memory since its last reset; None: it does not say.

    Only Hopper and Blackwell erase by themselves. Ones are no answer. Raises: OSError.
    """
    boot0 = registers.read(_BOOT0)
    generation = _generation(boot0)
    if boot0 == _ONES or (generation != _HOPPER and generation not in _BLACKWELL):
        return None
    word = registers.read(_SCRUBBED if generation == _HOPPER else _SCRUBBED_BLACKWELL)
    return None if word == _ONES else word == 1


def find_cc_mode(registers: Registers) -> str | None:
    """Return the mode of confidential computing, off, on or devtools, that a GPU began in; None: it does not say.

    Source: NVIDIA open-gpu-kernel-modules, gh100 dev_gc6_island.h (NV_PGC6_AON_SECURE_SCRATCH_GROUP_20); what its bits
    mean, and Blackwell's register, NVIDIA nvrc. Raises: OSError.
    """
    boot0 = registers.read(_BOOT0)
    generation = _generation(boot0)
    if boot0 == _ONES or (generation != _HOPPER and generation not in _BLACKWELL):
        return None
    word = registers.read(_CC_MODE if generation == _HOPPER else _CC_MODE_BLACKWELL)
    return None if word == _ONES else _CC_MODES.get(word & 3)


def _generation(boot0: int) -> int:
    return (boot0 & 0x1FF00000) >> 20

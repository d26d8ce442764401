"""One PCI function at work: what reads and writes of its regions do, resets, its memory, and faults by command.

A GPU's memory is what the window of its memory BAR shows. A reset begins to overwrite it and takes the scrub flag
away; until it is overwritten the old bytes are still read, as whoever does not wait for the flag deserves. Time is
passed in. Methods may be called from any thread.
"""

from __future__ import annotations

import enum
import math
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hgx import configspace
from hgx.layout import FIRMWARE, MEMORY_BAR, FunctionTable

CONFIG_REGION = 7
"""Source: linux/vfio.h, VFIO_PCI_CONFIG_REGION_INDEX."""
_PAGE = 4096
_NOTHING = bytes(_PAGE)


class Fault(enum.Enum):
    """What can be wrong with a function; several at once."""

    OFF_THE_BUS = "off the bus"
    """Every read is ones, writes are lost, resets too."""
    NEVER_SCRUBBED = "never scrubbed"
    """The memory stays as it was after resets, and the flag is never set."""
    FLR_IGNORED = "flr ignored"
    """A function level reset is accepted, and nothing happens."""
    FLR_KEEPS_MEMORY = "flr keeps memory"
    """A function level reset leaves the memory alone, flag set: only a bus reset overwrites it."""
    POWER_KEEPS_MEMORY = "power keeps memory"
    """The memory outlives a start of the machine, as where its processors lose power and its board does not."""


class Reset(enum.Enum):
    """Each is counted apart."""

    POWER = "power"
    """The machine was started."""
    FLR = "flr"
    BUS = "bus"
    FLR_IGNORED = "flr ignored"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a function, by the clock that was passed in."""

    at_s: float
    function: str
    what: str


class Function:
    """Answers the reads and writes of one function."""

    def __init__(self, table: FunctionTable, *, scrub_s: float, clock: Callable[[], float]) -> None:
        self.table, self._scrub_s, self._clock = table, scrub_s, clock
        self._lock = threading.RLock()
        self._config = configspace.initial(table)
        self._writable = configspace.writable(table)
        self._fixed = {*table.registers, table.scrub_register}
        self._vpd, self._serial, self._firmware = table.vpd, table.serial, table.firmware
        self._link = configspace.FULL_LINK
        self._registers: dict[int, int] = {}
        self._memory: dict[int, bytearray] = {}
        self._faults: set[Fault] = set()
        self._scrubbing_until: float | None = None  # math.inf: for ever
        self._answers_at = clock()
        self._flr_s = 0.0
        self._resets: Counter[Reset] = Counter()
        self._events: list[Event] = []

    # What a test commands and reads

    def resets(self, how: Reset) -> int:
        with self._lock:
            return self._resets[how]

    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events)

    def note(self, what: str) -> None:
        """Put an event of the connection beside those of the function."""
        with self._lock:
            self._events.append(Event(at_s=self._clock(), function=self.table.name, what=what))

    def fail(self, *faults: Fault) -> None:
        """Add faults."""
        with self._lock:
            self._faults.update(faults)
            if Fault.NEVER_SCRUBBED in faults and self._scrubbing_until is not None:
                self._scrubbing_until = math.inf

    def mend(self) -> None:
        """Take away every fault, a slow reset, another serial number or firmware, a narrow link and other VPD.

        A scrub that had stopped goes on.
        """
        with self._lock:
            self._faults.clear()
            if self._scrubbing_until == math.inf:
                self._scrubbing_until = self._clock() + self._scrub_s
            self._flr_s, self._link = 0.0, configspace.FULL_LINK
            self._serial, self._vpd, self._firmware = self.table.serial, self.table.vpd, self.table.firmware
            self._restore_fixed()

    def slow_down(self, flr_s: float) -> None:
        """Have the function answer with ones for so long after a function level reset."""
        with self._lock:
            self._flr_s = flr_s

    def set_serial(self, serial: int) -> None:
        """Have it tell another serial number, such as another GPU's."""
        if self.table.serial is None:
            raise ValueError(f"{self.table.name} has no serial number")
        with self._lock:
            self._serial = serial
            self._restore_fixed()

    def set_firmware(self, version: int) -> None:
        """Have it tell another version of its firmware, which no reset changes."""
        with self._lock:
            self._firmware = version

    def set_link(self, generation: int, lanes: int) -> None:
        with self._lock:
            self._link = configspace.link(generation, lanes)
            self._restore_fixed()

    def set_vpd(self, data: bytes) -> None:
        """Have it tell other vital product data, which may be no such data at all."""
        if self.table.vpd is None:
            raise ValueError(f"{self.table.name} has no vital product data")
        with self._lock:
            self._vpd = data

    def memory(self, offset: int, size: int) -> bytes:
        """Return bytes of the memory, whatever state the function is in."""
        with self._lock:
            self._settle()
            return self._read_memory(offset, size)

    def leave(self, data: bytes) -> None:
        """Put bytes at the beginning of the memory, as a tenant leaves them."""
        with self._lock:
            self._settle()
            self._write_memory(0, data)

    def is_clean(self) -> bool:
        """Return whether the whole memory is zeros."""
        with self._lock:
            self._settle()
            return not any(any(page) for page in self._memory.values())

    def is_scrubbing(self) -> bool:
        """Return whether the memory is still to be overwritten after a reset, which may be for ever."""
        with self._lock:
            self._settle()
            return self._scrubbing_until is not None

    # What the machine does

    def region_size(self, region: int) -> int:
        """Return a region's size in bytes; 0: there is none."""
        return configspace.SIZE if region == CONFIG_REGION else self.table.bars.get(region, (0, 0))[0]

    def reset(self, how: Reset) -> None:
        with self._lock:
            self._settle()
            if Fault.OFF_THE_BUS in self._faults and how is not Reset.POWER:
                self.note(f"{how.value} lost")
                return
            if how is Reset.FLR and Fault.FLR_IGNORED in self._faults:
                how = Reset.FLR_IGNORED
            self._resets[how] += 1
            self.note(f"reset {how.value}")
            if how is Reset.FLR_IGNORED:
                return
            self._config = configspace.initial(self.table)
            self._restore_fixed()
            self._registers.clear()
            self._start_scrub(how)
            if how is Reset.FLR:
                self._answers_at = self._clock() + self._flr_s

    def read(self, region: int, offset: int, size: int) -> bytes:
        """Read bytes that lie within the region."""
        with self._lock:
            self._settle()
            if not self._answers(region):
                return b"\xff" * size
            if region == CONFIG_REGION:
                return bytes(self._config[offset : offset + size])
            if region == MEMORY_BAR and self.table.scrub_register is not None:
                return self._read_memory(offset, size)
            words = range(offset & ~3, offset + size, 4)
            data = b"".join(self._register(region, at).to_bytes(4, "little") for at in words)
            return data[offset & 3 :][:size]

    def write(self, region: int, offset: int, data: bytes) -> None:
        """Write bytes that lie within the region."""
        with self._lock:
            self._settle()
            if not self._answers(region):
                return
            if region == CONFIG_REGION:
                self._write_config(offset, data)
            elif region == MEMORY_BAR and self.table.scrub_register is not None:
                self._write_memory(offset, data)
            elif region == 0 and offset % 4 == 0 and len(data) == 4 and offset not in self._fixed:
                self._registers[offset] = int.from_bytes(data, "little")

    # The rest is called with the lock held

    def _answers(self, region: int) -> bool:
        if Fault.OFF_THE_BUS in self._faults or self._clock() < self._answers_at:
            return False
        enabled = self._config[configspace.COMMAND] & configspace.MEMORY_ENABLED
        awake = self._config[configspace.POWER_STATE] & 3 == 0
        return region == CONFIG_REGION or bool(enabled and awake)

    def _start_scrub(self, how: Reset) -> None:
        if how is Reset.POWER and Fault.POWER_KEEPS_MEMORY in self._faults:
            return
        if how is Reset.POWER:  # without power it keeps nothing
            self._memory.clear()
            self._scrubbing_until = None
        elif Fault.NEVER_SCRUBBED in self._faults:
            self._scrubbing_until = math.inf
        elif not (how is Reset.FLR and Fault.FLR_KEEPS_MEMORY in self._faults):
            self._scrubbing_until = self._clock() + self._scrub_s

    def _settle(self) -> None:
        """Overwrite the memory if its time has come since the last look."""
        if self._scrubbing_until is not None and self._clock() >= self._scrubbing_until:
            self._memory.clear()
            self._scrubbing_until = None
            if self.table.scrub_register is not None:
                self.note("scrubbed")

    def _register(self, region: int, offset: int) -> int:
        if region != 0:
            return 0
        if offset == self.table.scrub_register:
            return int(self._scrubbing_until is None)
        if offset == FIRMWARE and self._firmware is not None:
            return self._firmware
        return self._registers.get(offset, self.table.registers.get(offset, 0))

    def _write_config(self, offset: int, data: bytes) -> None:
        for at, value in enumerate(data, offset):
            mask = self._writable[at]
            self._config[at] = self._config[at] & ~mask & 0xFF | value & mask
        touched = range(offset, offset + len(data))
        if configspace.VPD_ADDRESS + 1 in touched and self._vpd is not None:
            self._fetch_vpd(self._vpd)
        high = configspace.DEVICE_CONTROL + 1
        if high in touched and data[high - offset] & configspace.FUNCTION_RESET >> 8:
            self.reset(Reset.FLR)

    def _fetch_vpd(self, vpd: bytes) -> None:
        """Serve four bytes, which the flag in the address register announces."""
        (address,) = struct.unpack_from("<H", self._config, configspace.VPD_ADDRESS)
        if not address & configspace.VPD_DONE:
            part = vpd[address : address + 4].ljust(4, b"\0")
            struct.pack_into("<H4s", self._config, configspace.VPD_ADDRESS, address | configspace.VPD_DONE, part)

    def _restore_fixed(self) -> None:
        """Put back what a command changed for good, in the configuration space as it is now."""
        if self._serial is not None:
            struct.pack_into("<Q", self._config, configspace.SERIAL_NUMBER, self._serial)
        self._config[configspace.LINK_STATUS : configspace.LINK_STATUS + 2] = self._link

    def _read_memory(self, offset: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            page, start = divmod(offset + len(data), _PAGE)
            data += self._memory.get(page, _NOTHING)[start : start + size - len(data)]
        return bytes(data)

    def _write_memory(self, offset: int, data: bytes) -> None:
        while data:
            page, start = divmod(offset, _PAGE)
            part, data = data[: _PAGE - start], data[_PAGE - start :]
            self._memory.setdefault(page, bytearray(_NOTHING))[start : start + len(part)] = part
            offset += len(part)

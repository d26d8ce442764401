"""Reads how a PCI device is from what every driver has in sysfs: its sensors, and whether it is still on the bus.

AMD's and Intel's GPUs report no events to programs, so their health is what these files say at each scan.
Source: Linux Documentation/ABI/testing/sysfs-class-hwmon (temp[1-*]_input, temp[1-*]_crit), sysfs-bus-pci (config).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead.model.gpu import UnreadableGPU
from fairlead.model.ids import GPUUUID
from fairlead.silicon.pci import pci

_ABSENT: Final = b"\xff\xff"
"""What the bus answers for a device that does not: no vendor has this number."""


def read_temperature(folder: Path) -> tuple[int | None, int | None]:
    """Return temperature and critical temperature in C of the sensor that is nearest to its limit.

    Sensors without a limit count only where none has one.
    """
    found: list[tuple[int, int | None]] = []
    for monitor in sorted((folder / "hwmon").glob("hwmon*")):
        for path in sorted(monitor.glob("temp*_input")):
            now = pci.read_int(path)
            limit = pci.read_int(path.with_name(path.name.replace("_input", "_crit")))
            if now is not None:
                found.append((now // 1000, limit // 1000 if limit and limit > 0 else None))
    limited = [(now, limit) for now, limit in found if limit is not None]
    if limited:
        return max(limited, key=lambda one: one[0] - one[1])
    return found[0] if found else (None, None)


def is_gone(folder: Path) -> bool:
    """Return whether the device has fallen off the bus: its configuration space answers with ones alone."""
    try:
        with (folder / "config").open("rb") as file:
            return file.read(len(_ABSENT)) == _ABSENT
    except OSError:
        return False


def fallen(address: str, index: int) -> UnreadableGPU:
    """Return the entry of a GPU that has fallen off the bus."""
    message = f"{address} does not answer on the bus: reset its slot, or reboot the node"
    return UnreadableGPU(index=index, pci_bus_id=address, uuid=GPUUUID(address), reason="Lost", message=message)

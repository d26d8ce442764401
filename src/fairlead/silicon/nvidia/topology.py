"""Builds links between GPUs, one value a pair: NVLink and NVSwitch from the readings, else the PCIe level.

NVLinks are read with every scan, because links fail; PCIe levels do not change while a machine runs and are kept. A
pair whose level the driver does not report is placed by the kernel's device tree, so no pair is ever missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead.model.gpu import Link, LinkKind
from fairlead.silicon.nvidia import binding, gpureader
from fairlead.silicon.pci import pci

LEVELS: Final = {
    0: LinkKind.SAME_BOARD,
    10: LinkKind.SINGLE_SWITCH,
    20: LinkKind.MULTI_SWITCH,
    30: LinkKind.HOST_BRIDGE,
    40: LinkKind.SAME_NODE,
    50: LinkKind.SYSTEM,
}
"""nvmlGpuTopologyLevel_t."""
Levels = Mapping[tuple[str, str], LinkKind]
"""(PCI address, PCI address) → level, the lower index first."""


def read_levels(
    nvml: binding.Binding, one: gpureader.Reading, others: Sequence[gpureader.Reading]
) -> dict[str, LinkKind]:
    """Ask the driver how one GPU reaches others over PCIe; by the other's PCI address, known ones only.

    Blocking: runs in the first GPU's thread.
    """
    found = {}
    for other in others:
        level = nvml.reading("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
        if level in LEVELS:
            found[other.gpu.pci_bus_id] = LEVELS[level]
    return found


def links(readings: Sequence[gpureader.Reading], levels: Levels, root: Path) -> tuple[Link, ...]:
    """Return one link for every pair, in index order."""
    return tuple(
        _link(one, other, levels, root) for place, one in enumerate(readings) for other in readings[place + 1 :]
    )


def _link(one: gpureader.Reading, other: gpureader.Reading, levels: Levels, root: Path) -> Link:
    a, b = one.gpu, other.gpu
    direct = max(one.peers.count(b.pci_bus_id), other.peers.count(a.pci_bus_id))
    if direct:
        return Link(a=a.uuid, b=b.uuid, kind=LinkKind.NVLINK, lanes=direct)
    switched = min(a.nvswitch_links, b.nvswitch_links)
    if switched:
        return Link(a=a.uuid, b=b.uuid, kind=LinkKind.NVSWITCH, lanes=switched)
    key = (a.pci_bus_id, b.pci_bus_id)
    return Link(a=a.uuid, b=b.uuid, kind=levels.get(key) or pci.link_kind(root, *key))


def missing(readings: Sequence[gpureader.Reading], levels: Levels) -> dict[int, list[gpureader.Reading]]:
    """Return, by position of the first GPU, the later ones whose PCIe level is not known yet."""
    found: dict[int, list[gpureader.Reading]] = {}
    for place, one in enumerate(readings):
        unknown = [o for o in readings[place + 1 :] if (one.gpu.pci_bus_id, o.gpu.pci_bus_id) not in levels]
        if unknown:
            found[place] = unknown
    return found

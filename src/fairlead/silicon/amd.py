"""Reads AMD GPUs from sysfs: the amdgpu driver's devices and the KFD's topology.

There is no library to ask and nothing that hangs for long, so one scan is one pass over files in a thread. XGMI links
come from KFD's topology, everything else from the PCI tree. A GPU whose attributes cannot be read is unreadable; the
others are not touched by it. AMD reports no events this way: watchers wait, and rescans notice.

A board that is divided into compute partitions (DPX, QPX, CPX) has one PCI function and a node of KFD's topology for
each partition; the first has its DRM nodes below the PCI device, each other one below a platform device of its own
(`amdgpu_xcp.N`, `amdgpu_xcp_N`). Each partition is a GPU here: `0000:05:00.0`, `0000:05:00.0.1`, …
Source: Linux amdgpu_xcp_drv.c; kfd_topology.c (location_id, its bits 31:28 number the partition; mem_banks).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.driver import DriverFiles, Module
from fairlead.model.gpu import GPU, Driver, GPUHealth, Inventory, Link, LinkKind, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.silicon.pci import devnode, pci, vitals

_DRIVER_FOLDER: Final = "sys/module/amdgpu/drivers/pci:amdgpu"
_KFD_NODES: Final = "sys/class/kfd/kfd/topology/nodes"
_XGMI: Final = 11
"""KFD's CRAT link type; 2 is PCIe."""
_UNCORRECTABLE: Final = "ue:"


@frozen
class _Node:
    """One GPU node of KFD's topology."""

    number: int
    render_minor: int
    gfx_version: int
    """gfx_target_version, major * 10000 + minor * 100 + stepping; 0 where it is absent."""
    xgmi: tuple[int, ...]
    """Numbers of the nodes at the far ends of XGMI links, one a link."""
    place: tuple[int, int] = (0, 0)
    """PCI domain, and bus, device and function in 16 bits."""
    memory_bytes: int = 0
    """Of the partition; 0: the topology does not tell."""


def _addresses(root: Path) -> list[str]:
    folder = root / _DRIVER_FOLDER
    return sorted(path.name for path in folder.iterdir() if path.name.count(":") == 2) if folder.is_dir() else []


def _version(root: Path) -> str | None:
    """The module's own version, or the kernel's where the module is the kernel's."""
    return pci.read_text(root / "sys/module/amdgpu/version") or pci.read_text(root / "proc/sys/kernel/osrelease")


def scan(root: Path) -> Inventory:
    """Read every GPU now. Args: root: where /dev, /proc and /sys lie."""
    addresses = _addresses(root)
    if not addresses:
        return Inventory()
    nodes = {node.render_minor: node for node in _kfd_nodes(root)}
    gpus, unreadable = list[GPU](), list[UnreadableGPU]()
    for address in addresses:
        index = len(gpus) + len(unreadable)
        gpu = _read(root, address, index, nodes)
        if isinstance(gpu, GPU):
            gpus += _partitions(root, gpu, _of_board(address, nodes))
        else:
            unreadable.append(gpu)
    return Inventory(
        gpus=tuple(gpus),
        unreadable=tuple(unreadable),
        links=tuple(_link(root, a, b, nodes) for a, b in itertools.combinations(gpus, 2)),
        drivers=(Driver(vendor=Vendor.AMD, version=_version(root) or "unknown"),),
    )


def _read(root: Path, address: str, index: int, nodes: dict[int, _Node]) -> GPU | UnreadableGPU:
    folder = pci.folder(root, address)
    if vitals.is_gone(folder):
        return vitals.fallen(address, index)
    memory = pci.read_int(folder / "mem_info_vram_total")
    renders = sorted(path.name for path in (folder / "drm").glob("renderD*"))
    if memory is None or not renders:
        lacks = "mem_info_vram_total" if memory is None else "drm/renderD*"
        return UnreadableGPU(
            index=index,
            pci_bus_id=address,
            uuid=GPUUUID(address),
            reason="Unreadable",
            message=f"sysfs of {address} does not show {lacks} (see dmesg for amdgpu messages)",
        )
    minor = int(renders[0].removeprefix("renderD"))
    device = pci.read_text(folder / "device") or "unknown"
    return GPU(
        uuid=GPUUUID(address),
        vendor=Vendor.AMD,
        index=index,
        minor=minor,
        pci_bus_id=pci.normalise(address),
        name=pci.read_text(folder / "product_name") or f"AMD GPU {device}",
        memory_bytes=memory,
        serial=pci.read_text(folder / "serial_number") or None,
        compute_capability=_gfx(nodes.get(minor)),
        numa_node=pci.numa_node(root, address),
        nics=pci.list_near_nics(root, address),
        device_nodes=tuple(pci.list_drm_nodes(root, address)),
        health=_health(folder),
    )


def _of_board(address: str, nodes: Mapping[int, _Node]) -> list[_Node]:
    """Return the topology's nodes of one board: one, or one for each compute partition."""
    domain, bus, rest = pci.normalise(address).split(":")
    device, function = rest.split(".")
    place = (int(domain, 16), int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16))
    return sorted((node for node in nodes.values() if node.place == place), key=lambda node: node.render_minor)


def _partitions(root: Path, board: GPU, nodes: Sequence[_Node]) -> Iterator[GPU]:
    """Yield a board as its partitions, the first under the board's own name; one that is not divided as it is."""
    if len(nodes) < 2:
        yield board
        return
    mode = pci.read_text(pci.folder(root, board.pci_bus_id) / "current_compute_partition") or "partition"
    for number, node in enumerate(nodes):
        uuid = board.uuid if not number else GPUUUID(f"{board.uuid}.{number}")
        yield dataclasses.replace(
            board,
            uuid=uuid,
            index=board.index + number,
            minor=node.render_minor,
            name=f"{board.name} {mode}",
            memory_bytes=node.memory_bytes or board.memory_bytes // len(nodes),
            compute_capability=_gfx(node),
            device_nodes=tuple(_drm_nodes(root, node.render_minor)),
            # What the board has of memory in use is not one partition's.
            health=dataclasses.replace(board.health, memory_used_bytes=None),
        )


def _drm_nodes(root: Path, minor: int) -> list[str]:
    """Return `/dev/dri/…` paths of the device that has a render node, as `pci.list_drm_nodes` does."""
    return pci.list_nodes(root, (root / f"sys/class/drm/renderD{minor}").resolve().parent)


def _gfx(node: _Node | None) -> tuple[int, int] | None:
    return (node.gfx_version // 10000, node.gfx_version // 100 % 100) if node and node.gfx_version else None


def _health(folder: Path) -> GPUHealth:
    monitor = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), folder / "hwmon")
    power = pci.read_int(monitor / "power1_average")
    temperature, limit = vitals.read_temperature(folder)
    pages = _page_states(folder)
    return GPUHealth(
        temperature_c=temperature,
        limit_c=limit,
        power_mw=None if power is None else power // 1000,
        ecc_uncorrected=_uncorrected(folder),
        remap_pending=None if pages is None else "P" in pages,
        remap_failed=None if pages is None else "F" in pages,
        utilization_percent=pci.read_int(folder / "gpu_busy_percent"),
        memory_used_bytes=pci.read_int(folder / "mem_info_vram_used"),
    )


def _uncorrected(folder: Path) -> int | None:
    """Return the uncorrectable errors of all blocks together; None where the GPU counts none.

    Source: Linux amdgpu_ras.c, "AMDGPU RAS sysfs Error Count Interface": `ue: N` in `ras/BLOCK_err_count`.
    """
    texts = [pci.read_text(path) or "" for path in sorted((folder / "ras").glob("*_err_count"))]
    lines = [line.split() for text in texts for line in text.splitlines() if line.startswith(_UNCORRECTABLE)]
    counts = [int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()]
    return sum(counts) if counts else None


def _page_states(folder: Path) -> set[str] | None:
    """Return the states of bad memory pages: R retired, P at the next reset, F not possible.

    Source: Linux amdgpu_ras.c, "AMDGPU RAS sysfs gpu_vram_bad_pages Interface": `ADDRESS : SIZE : STATE`.
    """
    text = pci.read_text(folder / "ras/gpu_vram_bad_pages")
    return None if text is None else {line.rpartition(":")[2].strip() for line in text.splitlines()}


def _kfd_nodes(root: Path) -> list[_Node]:
    folder = root / _KFD_NODES
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        properties = _properties(path / "properties")
        if properties.get("simd_count", 0) > 0 and "drm_render_minor" in properties and path.name.isdigit():
            found.append(
                _Node(
                    number=int(path.name),
                    render_minor=properties["drm_render_minor"],
                    gfx_version=properties.get("gfx_target_version", 0),
                    xgmi=tuple(_xgmi(path)),
                    place=(properties.get("domain", 0), properties.get("location_id", 0) & 0xFFFF),
                    memory_bytes=sum(
                        _properties(bank).get("size_in_bytes", 0) for bank in path.glob("mem_banks/*/properties")
                    ),
                )
            )
    return found


def _xgmi(node: Path) -> list[int]:
    links = [_properties(path) for kind in ("io_links", "p2p_links") for path in node.glob(f"{kind}/*/properties")]
    return [link["node_to"] for link in links if link.get("type") == _XGMI and "node_to" in link]


def _properties(path: Path) -> dict[str, int]:
    """Lines `name number` of a KFD file; others are skipped."""
    pairs = [line.split() for line in (pci.read_text(path) or "").splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _link(root: Path, a: GPU, b: GPU, nodes: dict[int, _Node]) -> Link:
    one, other = nodes.get(a.minor), nodes.get(b.minor)
    if one is not None and other is not None:
        lanes = max(one.xgmi.count(other.number), other.xgmi.count(one.number))
        if lanes:
            return Link(a=a.uuid, b=b.uuid, kind=LinkKind.XGMI, lanes=lanes)
    if a.pci_bus_id == b.pci_bus_id:
        return Link(a=a.uuid, b=b.uuid, kind=LinkKind.SAME_BOARD)
    return Link(a=a.uuid, b=b.uuid, kind=pci.link_kind(root, a.pci_bus_id, b.pci_bus_id))


def scan_driver(root: Path) -> DriverFiles | None:
    """Read device nodes and modules; None where there is no trace of the driver."""
    addresses = _addresses(root)
    is_loaded = (root / "sys/module/amdgpu").is_dir()
    if not addresses and not is_loaded:
        return None
    drawn = [path for address in addresses for path in pci.list_drm_nodes(root, address)]
    drawn += [path for node in _kfd_nodes(root) for path in _drm_nodes(root, node.render_minor)] if addresses else []
    paths = [root / "dev/kfd", *(root / path.lstrip("/") for path in dict.fromkeys(drawn))]
    nodes = [node for path in paths if (node := devnode.read_node(root, path)) is not None]
    problems = []
    if addresses and not any(node.path == "/dev/kfd" for node in nodes):
        problems.append("device node /dev/kfd is missing: load amdgpu with KFD support (modprobe amdgpu)")
    return DriverFiles(
        vendor=Vendor.AMD,
        version=_version(root),
        nodes=tuple(nodes),
        modules=(
            Module(name="amdgpu", is_loaded=is_loaded, version=pci.read_text(root / "sys/module/amdgpu/version")),
        ),
        problems=tuple(problems),
    )

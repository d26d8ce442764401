"""Makes what a vGPU manager leaves in sysfs and /dev: functions with a type, or mediated devices, and VFIO nodes.

No guest can use them: nothing answers behind the nodes. A board of a profile that is itself a vGPU gets the
configuration space by which its guest knows that.
Source: as `silicon.pci.vgpuhost` and `silicon.pci.vgpu`.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from fairlead.silicon.sim import machine, profile, treefile

MAJOR_NAME: Final = "vfio"
_CONTAINER_MINOR: Final = 255
_FIRST_FUNCTION: Final = 4
_FIRST_GROUP: Final = 1000
_GROUPS_A_BOARD: Final = 64
_NAMESPACE: Final = uuid.UUID("6f1c5a0e-2b7d-5f0a-9d53-fa1e1ead0002")


def major_names(host: machine.Machine) -> tuple[str, ...]:
    """Return the driver whose major the machine needs; none where it lends nothing."""
    return (MAJOR_NAME,) if any(gpu.board.lending for gpu in host.gpus) else ()


def build(path: Path, host: machine.Machine, major: int) -> None:
    """Write it all below a machine's tree, whose PCI folders are there."""
    for gpu in host.gpus:
        board = gpu.board
        if board.licence:
            treefile.write_bytes(path / "sys/bus/pci/devices" / board.pci / "config", _lent_space(host.profile.driver))
        if board.lending is None:
            continue
        treefile.ensure_node(path / "dev/vfio/vfio", major, _CONTAINER_MINOR)
        make = _functions if board.lending.framework == "sriov" else _mediated
        make(path, board, board.lending, major)


def _functions(path: Path, board: profile.Board, lending: profile.Lending, major: int) -> None:
    devices = path / "sys/bus/pci/devices"
    treefile.write(devices / board.pci / "sriov_totalvfs", f"{lending.functions}\n")
    treefile.write(devices / board.pci / "sriov_numvfs", f"{lending.functions}\n")
    rows = "".join(f"{number} : {name}\n" for number, name in lending.types)
    for place in range(lending.functions):
        address = function_address(board, place)
        folder = devices / address
        current = lending.lent[place] if place < len(lending.lent) else 0
        for name, text in (
            ("vendor", "0x10de\n"),
            ("device", f"0x{board.part.device_id:04x}\n"),
            ("class", "0x030200\n"),
            ("numa_node", f"{board.numa}\n"),
            ("nvidia/current_vgpu_type", f"{current}\n"),
            ("nvidia/creatable_vgpu_types", f"ID    : vGPU Name\n{'' if current else rows}"),
        ):
            treefile.write(folder / name, text)
        treefile.ensure_link(folder / "driver", "../../drivers/nvidia")
        treefile.ensure_link(folder / "physfn", f"../{board.pci}")
        treefile.ensure_link(devices / board.pci / f"virtfn{place}", f"../{address}")
        _group(path, folder, _group_of(board, place), major)


def _mediated(path: Path, board: profile.Board, lending: profile.Lending, major: int) -> None:
    folder = path / "sys/bus/pci/devices" / board.pci
    for number, name in lending.types:
        kind = folder / f"mdev_supported_types/nvidia-{number}"
        treefile.write(kind / "name", f"{name}\n")
        treefile.write(kind / "available_instances", "0\n" if lending.lent else "4\n")
    (path / "sys/class/mdev_bus").mkdir(parents=True, exist_ok=True)
    (path / "sys/bus/mdev/devices").mkdir(parents=True, exist_ok=True)
    treefile.ensure_link(path / "sys/class/mdev_bus" / board.pci, f"../../bus/pci/devices/{board.pci}")
    for place, number in enumerate(lending.lent):
        name = mediated_uuid(board, place)
        (folder / name).mkdir(exist_ok=True)
        treefile.ensure_link(folder / name / "mdev_type", f"../mdev_supported_types/nvidia-{number}")
        treefile.ensure_link(path / "sys/bus/mdev/devices" / name, f"../../pci/devices/{board.pci}/{name}")
        _group(path, folder / name, _group_of(board, place), major)


def function_address(board: profile.Board, place: int) -> str:
    """Return the PCI address of a board's virtual function."""
    number = _FIRST_FUNCTION + place
    return f"{board.pci.rpartition(':')[0]}:{number >> 3:02x}.{number & 7}"


def mediated_uuid(board: profile.Board, place: int) -> str:
    """Return the stable UUID of a board's mediated device."""
    return str(uuid.uuid5(_NAMESPACE, f"{board.uuid}/{place}"))


def _group_of(board: profile.Board, place: int) -> int:
    return _FIRST_GROUP + board.index * _GROUPS_A_BOARD + place


def _group(path: Path, folder: Path, number: int, major: int) -> None:
    """Put a device into an IOMMU group of its own, with its node."""
    members = path / "sys/kernel/iommu_groups" / str(number) / "devices"
    members.mkdir(parents=True, exist_ok=True)
    inside = folder.relative_to(path / "sys")
    treefile.ensure_link(folder / "iommu_group", f"{'../' * len(inside.parts)}kernel/iommu_groups/{number}")
    treefile.ensure_link(members / folder.name, f"../../../../{inside}")
    treefile.ensure_node(path / "dev/vfio" / str(number), major, number, mode=0o600)


def _lent_space(version: str) -> bytes:
    """Return the configuration space of a vGPU whose hypervisor runs this driver."""
    space = bytearray(256)
    space[0:2], space[0x06], space[0x34] = b"\xde\x10", 1 << 4, 0x40
    data = version.encode()[:10].ljust(10, b"\0") + f"r{version.partition('.')[0]}_00".encode()[:10].ljust(10, b"\0")
    record = b"VF" + bytes((0, 2 + len(data))) + data
    capability = bytes((0x09, 0, 3 + len(record))) + record
    space[0x40 : 0x40 + len(capability)] = capability
    return bytes(space)

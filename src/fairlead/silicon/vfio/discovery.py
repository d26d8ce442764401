"""Finds every PCI function that passthrough concerns, and how each is bound, from sysfs alone.

First each function's vendor and class decide whether it matters; then those that do are read whole. A function that
does not say what it is costs itself and is named; what else cannot be read of one is a problem of that one. Nothing is
written, no driver is asked, and nothing is woken but a device in D3cold, whose configuration space the kernel reads.

What a GPU is: a display controller of a vendor that has GPUs, physical. Its auxiliary functions share its device
number, or sysfs names them its consumers. A network function is a switch bridge by its VPD alone.
Source: kernel Documentation/PCI/sysfs-pci.rst, ABI/testing/sysfs-bus-pci; NVIDIA's driver README, "The /proc
filesystem" (gpus/ADDRESS/information); PCI Code and ID Assignment Specification
(03 display, 0680 other bridge, 0604 bridge between PCI buses).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead.model.driver import DeviceNode
from fairlead.model.vfio import (
    Function,
    FunctionKind,
    GroupMember,
    Identity,
    PCILink,
    SerialSource,
    Snapshot,
    UnreadableFunction,
)
from fairlead.silicon.pci import devnode
from fairlead.silicon.vfio import attribute, configspace, host, pciids, tree, vpd

_NVIDIA, _AMD, _INTEL, _MELLANOX = 0x10DE, 0x1002, 0x8086, 0x15B3
_GPU_VENDORS: Final = frozenset({_NVIDIA, _AMD, _INTEL})
_DISPLAYS: Final = frozenset({0x0300, 0x0302, 0x0380})
_OTHER_BRIDGE, _PCI_BRIDGES, _NETWORK = 0x0680, frozenset({0x0600, 0x0604}), 0x02
_COMPANION: Final = (0x11F8, 0x4128)
_MARK: Final = b"SW_MNG"
_SPEED: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) GT/s.*", re.DOTALL)
_DRM_NAME: Final = re.compile(r"(?:card|renderD)[0-9]{1,4}")
_MINOR: Final = re.compile(r"^Device Minor:\s*([0-9]{1,4})\s*$", re.MULTILINE)
_VFIO_NAME: Final = re.compile(r"vfio[0-9]{1,9}")
_ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_BARS: Final = 6
_BAR_TYPE, _BAR_64_BIT = 0x6, 0x4
_LARGEST: Final = 1 << 50
"""Bytes of regions that are believed: a petabyte."""


@dataclasses.dataclass(slots=True)
class _Seen:
    """A function of which only identification is read."""

    vendor: int
    pci_class: int
    kind: FunctionKind | None = None
    board: str = ""
    vpd: vpd.VPD | None = None
    """None: not read yet."""


class _Scan:
    """One scan: what is looked up once and needed for many functions."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root, self.base = root, base
        self.folder = f"{root}/sys/bus/pci/devices"
        self.unreadable: list[UnreadableFunction] = []
        self.problems: list[str] = []
        self.seen: dict[str, _Seen] = {}
        self.places: dict[str, tree.Place] = {}
        self.slots = tree.read_slots(f"{root}/sys/bus/pci/slots")
        self.groups: dict[str, tuple[GroupMember, ...]] = {}
        self.below: dict[str, list[str]] = {}

    def look(self) -> None:
        """Read what each function is, and find those that matter."""
        names = attribute.names(self.folder)
        for name in names:
            if attribute.is_address(name):
                self._identify(name)
            else:
                self.problems.append(f"{name} in {self.folder} is no PCI address")
        # Those that do not say what they are too: a reset of a bus hits them all the same.
        self.places = tree.read_places(self.folder, [name for name in names if attribute.is_address(name)])
        self.below = tree.below(self.places)
        for name, one in self.seen.items():
            one.kind = self._kind(name, one)
        for name in [name for name, one in self.seen.items() if one.kind is FunctionKind.GPU]:
            self._find_auxiliary(name)

    def _identify(self, name: str) -> None:
        at = f"{self.folder}/{name}"
        try:
            self.seen[name] = _Seen(attribute.number(f"{at}/vendor"), attribute.number(f"{at}/class"))
        except (OSError, ValueError) as error:
            self.unreadable.append(_unreadable(name, "vendor or class", error))

    def _kind(self, name: str, one: _Seen) -> FunctionKind | None:
        at = f"{self.folder}/{name}"
        if one.vendor in _GPU_VENDORS and one.pci_class >> 8 in _DISPLAYS:
            return FunctionKind.VIRTUAL if os.path.islink(f"{at}/physfn") else FunctionKind.GPU  # noqa: PTH114
        if one.vendor == _NVIDIA and one.pci_class >> 8 == _OTHER_BRIDGE:
            return FunctionKind.NVSWITCH
        if one.vendor == _COMPANION[0] and attribute.find_number(f"{at}/device") == _COMPANION[1]:
            return FunctionKind.MEMORY_CONTROLLER
        is_physical = not os.path.islink(f"{at}/physfn")  # noqa: PTH114
        if one.vendor == _MELLANOX and one.pci_class >> 16 == _NETWORK and is_physical:
            one.vpd = self._read_vpd(name)
            return FunctionKind.SWITCH_BRIDGE if one.vpd is not None and _MARK in one.vpd.data else None
        return None

    def _read_vpd(self, name: str) -> vpd.VPD | None:
        """Return a function's VPD; None: it has none."""
        try:
            return vpd.read(f"{self.folder}/{name}/vpd")
        except FileNotFoundError:
            return None
        except OSError as error:
            return vpd.VPD(problem=f"cannot be read: {error.strerror}")

    def _find_auxiliary(self, gpu: str) -> None:
        device = gpu.rpartition(".")[0]
        named = [n.removeprefix("consumer:pci:") for n in attribute.names(f"{self.folder}/{gpu}") if ":pci:" in n]
        for name, one in self.seen.items():
            is_beside = name.rpartition(".")[0] == device or name in named
            if is_beside and one.kind is None and one.pci_class >> 8 not in _PCI_BRIDGES:
                one.kind, one.board = FunctionKind.AUXILIARY, gpu

    def functions(self) -> Iterable[Function]:
        """Yield each function that matters, read whole."""
        for name, one in self.seen.items():
            if one.kind is not None:
                try:
                    yield self._read(name, one, one.kind)
                except (OSError, ValueError) as error:
                    self.unreadable.append(_unreadable(name, "device", error))

    def _read(self, name: str, one: _Seen, kind: FunctionKind) -> Function:
        at, problems = f"{self.folder}/{name}", list[str]()
        device = attribute.number(f"{at}/device")
        subsystem = [attribute.find_number(f"{at}/subsystem_{what}") for what in ("vendor", "device")]
        space = self._read_space(at, problems)
        if one.vpd is None and space.answers and not space.serial and kind is not FunctionKind.AUXILIARY:
            one.vpd = self._read_vpd(name)
        if one.vpd is not None and one.vpd.problem:
            problems.append(f"its VPD {one.vpd.problem}")
        hardware = "-".join("x" if n is None else f"{n:04x}" for n in (one.vendor, device, *subsystem))
        group, members = self._group(at, problems)
        cdev = self._device_name(at, problems)
        place = self.places[name]
        bridge = place.bridges[-1] if place.bridges else ""
        methods = attribute.find_text(f"{at}/reset_method")
        override = attribute.find_text(f"{at}/driver_override")
        return Function(
            address=name,
            kind=kind,
            vendor=one.vendor,
            device=device,
            subsystem_vendor=subsystem[0],
            subsystem_device=subsystem[1],
            pci_class=one.pci_class,
            identity=self._identity(name, space, one.vpd, hardware),
            driver=attribute.find_link(f"{at}/driver"),
            override="" if override == "(null)" else override,
            group=group,
            members=members,
            group_node=self._node(f"vfio/{group}") if group else None,
            device_node=self._node(f"vfio/devices/{cdev}") if cdev else None,
            device_name=cdev,
            numa_node=self._numa_node(at),
            pcie_root=_root_complex(place),
            addressable_bytes=_addressable_bytes(f"{at}/resource"),
            link=_link(at),
            reset_methods=self._reset_methods(at, methods),
            has_flr=space.has_flr,
            bridge=bridge,
            neighbours=tuple(other for other in self.below.get(bridge, ()) if other != name),
            bridge_resets=bool(bridge) and os.path.exists(f"{self.folder}/{bridge}/reset_subordinate"),  # noqa: PTH110
            driver_nodes=self._driver_nodes(name),
            board=one.board or (attribute.find_link(f"{at}/physfn") if kind is FunctionKind.VIRTUAL else ""),
            virtual_functions=attribute.find_number(f"{at}/sriov_numvfs"),
            answers=space.answers,
            is_console=attribute.find_number(f"{at}/boot_vga") == 1,
            problems=tuple(problems),
        )

    def _read_space(self, at: str, problems: list[str]) -> configspace.ConfigSpace:
        try:
            space = configspace.read(f"{at}/config")
        except OSError as error:
            problems.append(f"its configuration space cannot be read: {error.strerror}")
            return configspace.ConfigSpace(is_whole=False)
        if not space.answers:
            problems.append("it does not answer on the bus: its configuration space reads as ones")
        elif not space.is_whole:
            problems.append("its serial number may be missing: root alone may read all of configuration space")
        return space

    def _identity(self, name: str, space: configspace.ConfigSpace, found: vpd.VPD | None, hardware: str) -> Identity:
        serial, source = space.serial, SerialSource.PCIE
        if not serial and found is not None:
            serial, source = found.serial, SerialSource.VPD
        return Identity(
            serial=serial,
            source=source if serial else None,
            slot=self._slot(name),
            path=self.places[name].path or name,
            hardware=hardware,
            is_certain=space.answers and space.is_whole,
        )

    def _slot(self, name: str) -> str:
        """Return the name of the slot that a function is in, itself or through the nearest bridge above it."""
        for one in (name, *reversed(self.places[name].bridges)):
            if (slot := self.slots.get(one.rpartition(".")[0])) is not None:
                return slot
        return ""

    def _group(self, at: str, problems: list[str]) -> tuple[str | None, tuple[GroupMember, ...]]:
        number = attribute.find_link(f"{at}/iommu_group")
        if not number:
            return None, ()
        if not (number.isascii() and number.isdecimal()):
            problems.append(f'its IOMMU group "{number}" is no number')
            return None, ()
        if number not in self.groups:
            listed = attribute.names(f"{self.root}/sys/kernel/iommu_groups/{number}/devices")
            addresses = sorted(filter(attribute.is_address, listed), key=attribute.order)
            self.groups[number] = tuple(map(self._member, addresses))
        return number, self.groups[number]

    def _member(self, address: str) -> GroupMember:
        at, seen = f"{self.folder}/{address}", self.seen.get(address)
        driver = attribute.find_link(f"{at}/driver")
        is_bridge = seen is not None and seen.pci_class >> 8 in _PCI_BRIDGES
        return GroupMember(address=address, driver=driver, is_bridge=is_bridge)

    def _device_name(self, at: str, problems: list[str]) -> str:
        found = attribute.names(f"{at}/vfio-dev")
        good = [name for name in found if _VFIO_NAME.fullmatch(name)]
        if len(good) != 1 and found:
            problems.append(f"vfio-dev does not name one device but {', '.join(found[:4])}")
        return good[0] if len(good) == 1 else ""

    def _node(self, name: str) -> DeviceNode | None:
        return devnode.read_node(self.base, self.base / "dev" / name)

    def _driver_nodes(self, name: str) -> tuple[DeviceNode, ...]:
        nodes = [f"dri/{one}" for one in attribute.names(f"{self.folder}/{name}/drm") if _DRM_NAME.fullmatch(one)]
        said = attribute.find_text(f"{self.root}/proc/driver/nvidia/gpus/{name}/information")
        if (match := _MINOR.search(said)) is not None:
            nodes.append(f"nvidia{match.group(1)}")
        return tuple(node for one in nodes if (node := self._node(one)) is not None)

    def _numa_node(self, at: str) -> int | None:
        node = attribute.find_number(f"{at}/numa_node")
        if node is None or node < 0:
            return None
        return node if attribute.find_text(f"{self.root}/sys/devices/system/node/node{node}/cpulist") else None

    def _reset_methods(self, at: str, methods: str) -> tuple[str, ...] | None:
        if methods:
            return tuple(methods.split())
        # The file came with Linux 5.15, where it is there if the function can be reset at all, as `reset` is.
        return None if os.path.exists(f"{at}/reset") else ()  # noqa: PTH110


def scan(root: Path, *, dev_root: Path | None = None) -> Snapshot:
    """Read everything now; a machine without PCI has no functions, and nothing of it raises.

    Args: root: where /sys, /proc and /lib/modules lie.   dev_root: where `dev` is; None: there too.
    """
    base = root if dev_root is None else dev_root
    work = _Scan(root, base)
    work.look()
    functions = sorted(work.functions(), key=lambda one: attribute.order(one.address))
    return Snapshot(
        host=host.scan(root, base),
        functions=tuple(_with_names(root, _with_shared(functions))),
        unreadable=tuple(work.unreadable),
        problems=tuple(work.problems),
    )


def _with_shared(functions: Sequence[Function]) -> list[Function]:
    """Mark the serials that more than one function says; functions of one board may share one, and are no rivals."""
    said = Counter(
        (one.identity.source, one.identity.serial)
        for one in functions
        if one.identity.serial and one.kind is not FunctionKind.AUXILIARY
    )
    return [_shared(one) if said[one.identity.source, one.identity.serial] > 1 else one for one in functions]


def _shared(one: Function) -> Function:
    identity = dataclasses.replace(one.identity, is_shared=True)
    said = f'its serial number "{identity.serial}" is another function\'s too'
    return dataclasses.replace(one, identity=identity, problems=(*one.problems, said))


def _with_names(root: Path, functions: Sequence[Function]) -> list[Function]:
    names: Mapping[tuple[int, int], str] = pciids.find_names(root, ((one.vendor, one.device) for one in functions))
    return [dataclasses.replace(one, model=names.get((one.vendor, one.device), "")) for one in functions]


def _root_complex(place: tree.Place) -> str:
    above = place.path.partition("/")[0]
    return above if _ROOT_COMPLEX.fullmatch(above) else ""


def _addressable_bytes(path: str) -> int:
    """Return the size of a function's 64-bit memory regions, as the next power of two; 0: no file says it.

    A line of `resource` is start, end and flags of a region; the first six are the base address registers.
    Source: kernel Documentation/PCI/sysfs-pci.rst; PCI Local Bus Specification 3.0, 6.2.5.1; NVIDIA go-nvlib, nvpci,
    GetTotalAddressableMemory.
    """
    total = 0
    for line in attribute.find_text(path).splitlines()[:_BARS]:
        words = [attribute.parse_number(word) for word in line.split()]
        match words:
            case [int(start), int(end), int(flags)] if end > start >= 0 and flags & _BAR_TYPE == _BAR_64_BIT:
                total += end - start + 1
    return 1 << (total - 1).bit_length() if 0 < total <= _LARGEST else 0


def _link(at: str) -> PCILink:
    return PCILink(
        speed_gts=_speed(attribute.find_text(f"{at}/current_link_speed")),
        width=_width(attribute.find_text(f"{at}/current_link_width")),
        max_speed_gts=_speed(attribute.find_text(f"{at}/max_link_speed")),
        max_width=_width(attribute.find_text(f"{at}/max_link_width")),
    )


def _speed(text: str) -> float | None:
    match = _SPEED.fullmatch(text)
    return float(match.group(1)) if match else None


def _width(text: str) -> int | None:
    """Return the lanes; a link that is down has 0, one that is not known 255."""
    found = attribute.parse_number(text)
    return found if found is not None and 0 < found <= 32 else None


def _unreadable(name: str, what: str, error: OSError | ValueError) -> UnreadableFunction:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return UnreadableFunction(address=name, message=f"{name} does not say what it is: {what}: {why}")

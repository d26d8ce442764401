"""Makes up the sysfs of a machine with PCI functions, with the links and files that Linux shows for them.

A function is a folder below /sys/devices, reached from /sys/bus/pci/devices, from its driver and from its IOMMU group,
all by relative links as the kernel makes them.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

KERNEL = "6.19.3-amd64"
VFIO_MAJOR, CDEV_MAJOR, MISC = 511, 510, 10
PORT = "pcieport"
PCI_IDS = """# made up
10de  NVIDIA Corporation
\t22a3  GH100 [H100 NVSwitch]
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  a subsystem
\t2901  GB100 [B200]
15b3  Mellanox Technologies
\t1021  MT2910 Family [ConnectX-7]
"""
ALIASES = """# Aliases extracted from modules themselves.
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci
"""
# What an HGX board shows: module numbers do not follow the order on the bus.
HGX_MODULES = {
    "0000:0f:00.0": 5,
    "0000:10:00.0": 7,
    "0000:41:00.0": 6,
    "0000:44:00.0": 8,
    "0000:86:00.0": 1,
    "0000:87:00.0": 3,
    "0000:b8:00.0": 2,
    "0000:bb:00.0": 4,
}
HGX_SWITCHES = ("0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0")


class Tree:
    """A machine's root folder, to which functions are added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._minor = 0
        for name in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/bus/pci/slots", "sys/kernel/iommu_groups"):
            (root / name).mkdir(parents=True)
        self.write("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
        self.write(f"lib/modules/{KERNEL}/modules.alias", ALIASES)
        self.write("usr/share/misc/pci.ids", PCI_IDS)
        for node, processors in ((0, "0-47"), (1, "48-95"), (2, "")):
            self.write(f"sys/devices/system/node/node{node}/cpulist", f"{processors}\n")

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def node(self, name: str, major: int, minor: int) -> None:
        """Make a character device below /dev."""
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))

    def folder(self, address: str) -> Path:
        """Return a function's folder, by the link on the bus."""
        return self.root / "sys/bus/pci/devices" / address

    def register_driver(self, name: str) -> Path:
        """Register a PCI driver, which then may be bound to."""
        path = self.root / "sys/bus/pci/drivers" / name
        path.mkdir(parents=True, exist_ok=True)
        (self.root / "sys/module" / name.replace("-", "_")).mkdir(parents=True, exist_ok=True)
        return path

    def add(
        self,
        address: str,
        *,
        ids: tuple[int, int],
        pci_class: int,
        above: str = "pci0000:00",
        subsystem: tuple[int, int] = (0x10DE, 0x0000),
        driver: str = "",
        group: int | None = None,
        files: Mapping[str, str | bytes] | None = None,
    ) -> Path:
        """Add a function. Args: above: the way from the root complex.   files: attributes beside those below."""
        folder = self.root / "sys/devices" / above / address
        folder.mkdir(parents=True)
        attributes: dict[str, str | bytes] = {
            "vendor": f"{ids[0]:#06x}\n",
            "device": f"{ids[1]:#06x}\n",
            "subsystem_vendor": f"{subsystem[0]:#06x}\n",
            "subsystem_device": f"{subsystem[1]:#06x}\n",
            "class": f"{pci_class:#08x}\n",
            "numa_node": "0\n",
            "driver_override": "(null)\n",
            "config": config_space(ids, pci_class),
            "reset": "",
            "reset_method": "flr bus\n",
            "current_link_speed": "32.0 GT/s PCIe\n",
            "current_link_width": "16\n",
            "max_link_speed": "32.0 GT/s PCIe\n",
            "max_link_width": "16\n",
            "power_state": "D0\n",
            "power/control": "on\n",
            **(files or {}),
        }
        for name, value in attributes.items():
            self.write(f"{folder.relative_to(self.root)}/{name}", value)
        link(self.folder(address), folder)
        if group is not None:
            self.join(address, group)
        self.bind(address, driver)
        return folder

    def join(self, address: str, group: int) -> None:
        """Put a function into an IOMMU group."""
        place = self.root / "sys/kernel/iommu_groups" / str(group)
        (place / "devices").mkdir(parents=True, exist_ok=True)
        link(place / "devices" / address, self.folder(address).resolve())
        link(self.folder(address).resolve() / "iommu_group", place)

    def bind(self, address: str, driver: str) -> None:
        """Bind a function as the kernel would, or unbind it where the driver is empty; VFIO's nodes come and go."""
        folder = self.folder(address).resolve()
        before = folder / "driver"
        if before.is_symlink():
            (before.resolve() / address).unlink()
            before.unlink()
        for old in (folder / "vfio-dev").glob("vfio*"):
            (self.root / "dev/vfio/devices" / old.name).unlink()
            old.rmdir()
        if not driver:
            return
        place = self.register_driver(driver)
        link(place / address, folder)
        link(before, place)
        if driver.replace("_", "-").endswith("vfio-pci"):
            self._hand_out(folder)

    def _hand_out(self, folder: Path) -> None:
        while (self.root / f"dev/vfio/devices/vfio{self._minor}").exists():  # another process bound it
            self._minor += 1
        name = f"vfio{self._minor}"
        (folder / "vfio-dev" / name).mkdir(parents=True)
        self.node(f"vfio/devices/{name}", CDEV_MAJOR, self._minor)
        self._minor += 1
        group = folder / "iommu_group"
        if group.is_symlink() and not (self.root / "dev/vfio" / group.readlink().name).exists():
            self.node(f"vfio/{group.readlink().name}", VFIO_MAJOR, int(group.readlink().name))
        for shared, minor in (("vfio/vfio", 196), ("iommu", 125)):
            if not (self.root / "dev" / shared).exists():
                self.node(shared, MISC, minor)


def link(place: Path, target: Path) -> None:
    """Make a relative link, as sysfs has them."""
    place.symlink_to(os.path.relpath(target, place.parent))


def config_space(
    ids: tuple[int, int], pci_class: int, *, serial: int | None = None, flr: bool = True, size: int = 4096
) -> bytes:
    """Return a configuration space: memory decoding on, PCI Express, an AER capability, perhaps a serial number."""
    space = bytearray(4096)
    struct.pack_into("<HHHH", space, 0, *ids, 0x0006, 0x0010)
    space[8:12] = bytes([0xA1]) + struct.pack("<I", pci_class)[:3]
    space[0x34] = 0x60
    space[0x60:0x62] = bytes([0x01, 0x70])  # power management
    space[0x70:0x72] = bytes([0x10, 0x00])
    struct.pack_into("<I", space, 0x74, 0x8000 | (1 << 28 if flr else 0))
    struct.pack_into("<I", space, 0x100, 0x0001 | (1 << 16) | ((0x150 if serial is not None else 0) << 20))
    if serial is not None:
        struct.pack_into("<IQ", space, 0x150, 0x0003 | (1 << 16), serial)
    return bytes(space[:size])


def vpd(name: str, **fields: str) -> bytes:
    """Return Vital Product Data of a name and keywords."""
    body = b"".join(key.encode() + bytes([len(value)]) + value.encode() for key, value in fields.items())
    parts = ((0x82, name.encode()), (0x90, body))
    return b"".join(bytes([tag]) + struct.pack("<H", len(data)) + data for tag, data in parts) + b"\x78"


def registers(words: Mapping[int, int], size: int = 16 << 20) -> bytes:
    """Return a memory region with these registers; the rest reads as 0."""
    region = bytearray(size)
    for offset, word in words.items():
        struct.pack_into("<I", region, offset, word)
    return bytes(region)


def module_registers(number: int) -> dict[int, int]:
    """Return what a Hopper module with this number shows where bit 2 is inverted."""
    wired = (number - 1) ^ 4
    return {0: 0x180000A1} | {0x21200 + 4 * gpio: ((wired >> bit) & 1) << 14 for bit, gpio in enumerate((9, 17, 18))}


def add_gpu(tree: Tree, address: str, **changes: object) -> Path:
    """Add an H100 module below a port of its own, in an IOMMU group of its own."""
    number = int(address.split(":")[1], 16)
    ids, kind = (0x10DE, 0x2330), 0x030200
    port = f"{address.rpartition(':')[0][:-2]}{number - 1:02x}:01.0"
    above = f"pci{address.partition(':')[0]}:{number - 1:02x}"
    if not tree.folder(port).is_symlink():
        tree.add(port, ids=(0x8086, 0x352A), pci_class=0x060400, above=above, driver=PORT, group=1000 + number)
    files: dict[str, str | bytes] = {
        "config": config_space(ids, kind, serial=0x48B02D0000000000 + number),
        "sriov_numvfs": "0\n",
        "numa_node": "0\n" if number < 0x80 else "1\n",
    }
    given: dict[str, object] = {
        "ids": ids,
        "pci_class": kind,
        "above": f"{above}/{port}",
        "subsystem": (0x10DE, 0x16C1),
        "driver": "nvidia",
        "group": number,
        **changes,
    }
    given["files"] = {**files, **given.get("files", {})}  # type: ignore[dict-item]
    return tree.add(address, **given)  # type: ignore[arg-type]


def build_hgx(root: Path, *, driver: str = "nvidia", regions: bool = False) -> Tree:
    """Build a machine with an HGX H100 board: eight GPUs, four NVSwitches in one group with a memory controller."""
    tree = Tree(root)
    tree.register_driver("vfio-pci")
    for address, module in HGX_MODULES.items():
        add_gpu(tree, address, driver=driver)
        if regions:
            (tree.folder(address) / "resource0").write_bytes(registers(module_registers(module)))
    # One slot of the board: a root port, a switch on the board, and a port of it for each NVSwitch.
    above = "pci0000:00"
    for port in ("0000:00:05.0", "0000:03:00.0", *(f"0000:04:{place:02x}.0" for place in range(4))):
        tree.add(port, ids=(0x1000, 0xC030), pci_class=0x060400, above=above, driver=PORT, group=30)
        above += f"/{port}" if not port.startswith("0000:04") else ""
    switches = [(one, (0x10DE, 0x22A3), 0x068000, place) for place, one in enumerate(HGX_SWITCHES)]
    for address, ids, kind, place in (*switches, ("0000:08:00.1", (0x11F8, 0x4128), 0x058000, 3)):
        tree.add(address, ids=ids, pci_class=kind, above=f"{above}/0000:04:{place:02x}.0", group=30, driver="")
    return tree

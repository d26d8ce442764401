"""Declares what passthrough is about: PCI functions that a tenant's machine may be given whole, as one scan found them.

Everything here is read from sysfs and configuration space without any driver of the vendor. Addresses, group numbers
and `vfioN` say where a function is now; who it is says its `Identity`.
"""

from __future__ import annotations

import enum
import hashlib
import re
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.driver import DeviceNode
from fairlead.model.gpu import Vendor

_PLAIN: Final = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
_LONGEST_PART: Final = 24
VFIO_PCI: Final = "vfio-pci"
"""The driver that fits every function; vendors' variants end in its name."""
_HARMLESS: Final = frozenset({"pcieport", "pci-stub"})


def is_vfio(driver: str) -> bool:
    """Return whether a driver is VFIO's or a variant of it (`nvgrace_gpu_vfio_pci`). Args: driver: empty: unbound."""
    return driver.replace("_", "-").endswith(VFIO_PCI)


class FunctionKind(enum.Enum):
    """What a PCI function is to passthrough."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    """Of NVLink 4 and earlier."""
    SWITCH_BRIDGE = "switch-bridge"
    """The network function by which NVLink 5's switches are managed: its VPD holds `SW_MNG`."""
    MEMORY_CONTROLLER = "memory-controller"
    """What some boards have beside their NVSwitches, in one IOMMU group with them."""
    AUXILIARY = "auxiliary"
    """Another function of a GPU's board (audio, USB-C), which goes where the GPU goes."""
    VIRTUAL = "virtual-function"
    """A GPU's SR-IOV virtual function: a vGPU's matter; while one exists its board is not passed on."""


SWITCHES: Final = frozenset({FunctionKind.NVSWITCH, FunctionKind.SWITCH_BRIDGE})
"""What programs NVLink's switches, and goes to a Service VM alone."""


class SerialSource(enum.Enum):
    """Where a serial number was read."""

    PCIE = "pcie"
    """The Device Serial Number of the extended configuration space."""
    VPD = "vpd"
    """Field SN of the Vital Product Data: the board's."""


@frozen
class Identity:
    """Who a function is, across rebinding, reboots and other addresses."""

    serial: str = ""
    """Lower case; empty: it has none that can be read."""
    source: SerialSource | None = None
    """None where there is no serial."""
    slot: str = ""
    """Name of the physical slot, as firmware calls it; empty: it tells none."""
    path: str = ""
    """Way through the tree by device and function of each bridge, `pci0000:15/01.0/00.0/00.0`. Bus numbers, which move
    when a card is added elsewhere, are not in it; the root complex is."""
    hardware: str = ""
    """Vendor, device and subsystem, `10de-2330-10de-16c1`: so that without a serial another model is another one."""
    is_certain: bool = True
    """False: nobody could look for a serial, because the function does not answer, or this process may not read it.
    Then `key` may be another one than it was and will be: slot and path say who it is meanwhile."""
    is_shared: bool = False
    """Whether another function of this machine says the same serial: a board of several GPUs, or a lie."""

    @property
    def key(self) -> str:
        """The name to keep things under: the serial, its place too where it is shared, else place and hardware.

        At most 63 of `a-z0-9-.`; never an address, never in the form of an NVML UUID. Two functions of one machine
        never have one key, as long as `path` tells them apart.
        """
        place = f"slot-{_part(self.slot)}" if self.slot else f"path-{_digest(self.path)}"
        if self.source is None or not self.serial:
            return f"{place}-{_digest(f'{self.path} {self.hardware}')}"
        own = f"{self.source.value}-{_part(self.serial)}"
        return f"{own}-{_digest(f'{self.slot} {self.path}')}" if self.is_shared else own


def _part(text: str) -> str:
    low = text.lower()
    return low if low == text and len(low) <= _LONGEST_PART and _PLAIN.fullmatch(low) else _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


@frozen
class GroupMember:
    """One function of an IOMMU group."""

    address: str
    driver: str = ""
    """Empty: it is bound to none."""
    is_bridge: bool = False
    """Whether it is a PCI bridge, which belongs to no user."""

    @property
    def is_in_the_way(self) -> bool:
        """Whether its driver keeps the group closed: VFIO's do not, nor those that do no DMA of their own.

        Source: kernel Documentation/driver-api/vfio.rst; drivers with `driver_managed_dma` (6.0 and later), earlier the
        list of drivers/vfio/vfio.c.
        """
        return bool(self.driver) and self.driver not in _HARMLESS and not is_vfio(self.driver)


@frozen
class PCILink:
    """A function's link; None where sysfs does not say."""

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None

    @property
    def is_degraded(self) -> bool:
        """Whether it is narrower than it could be. Speed does not tell: an idle GPU lowers it."""
        return self.width is not None and self.max_width is not None and self.width < self.max_width


@frozen
class Function:
    """One PCI function that concerns passthrough, as it is now."""

    address: str
    """`DOMAIN:BUS:DEVICE.FUNCTION` in lower case; the domain has four digits or more."""
    kind: FunctionKind
    vendor: int
    device: int
    subsystem_vendor: int | None = None
    subsystem_device: int | None = None
    pci_class: int = 0
    """Class, subclass and programming interface, 0x030200."""
    model: str = ""
    """From the list of PCI ids, `GH100 [H100 SXM5 80GB]`; empty: not in it."""
    identity: Identity = Identity()
    driver: str = ""
    """Empty: it is bound to none."""
    override: str = ""
    """What `driver_override` says; empty: nothing."""
    group: str | None = None
    """Number of its IOMMU group; None: no IOMMU translates for it."""
    members: tuple[GroupMember, ...] = ()
    """All functions of its group, itself among them, in address order."""
    group_node: DeviceNode | None = None
    """`/dev/vfio/GROUP`."""
    device_node: DeviceNode | None = None
    """`/dev/vfio/devices/vfioN`, iommufd's; N moves at every binding."""
    device_name: str = ""
    """`vfioN`, also where its node is not there."""
    numa_node: int | None = None
    """One that has processors; None: sysfs names none, or one of memory alone."""
    pcie_root: str = ""
    """The root complex that it hangs off, `pci0000:15`; empty: sysfs does not show it."""
    addressable_bytes: int = 0
    """Size of its 64-bit memory regions together, as the next power of two; 0: sysfs does not say."""
    link: PCILink = PCILink()
    reset_methods: tuple[str, ...] | None = None
    """What the kernel may use, best first (`flr`, `bus`); empty: nothing resets it; None: this kernel does not say."""
    has_flr: bool | None = None
    """Whether its configuration space says Function Level Reset; None: that cannot be read."""
    bridge: str = ""
    """Address of the bridge right above it; empty: it hangs off the root complex, or sysfs does not show it."""
    neighbours: tuple[str, ...] = ()
    """Every other function below that bridge: what a bus reset there would hit too."""
    board: str = ""
    """Of auxiliary and virtual functions: the address of their GPU."""
    bridge_resets: bool = False
    """Whether that bridge's file `reset_subordinate` resets all below it at once, several functions too."""
    driver_nodes: tuple[DeviceNode, ...] = ()
    """The nodes of its present driver that are its own, `/dev/nvidia0`, `/dev/dri/card1`: who has one open uses it."""
    virtual_functions: int | None = None
    """How many SR-IOV virtual functions exist (`sriov_numvfs`); None: it has no SR-IOV."""
    answers: bool = True
    """False: configuration space reads as ones, as of a device that fell off the bus."""
    is_console: bool = False
    """Whether firmware uses it as the machine's display (`boot_vga`)."""
    problems: tuple[str, ...] = ()
    """What could not be read or contradicts itself, one line each; the rest holds."""

    @property
    def is_bound_to_vfio(self) -> bool:
        """Whether it is on VFIO's driver or a variant."""
        return is_vfio(self.driver)

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        """Its own nodes, the group's first."""
        return tuple(node for node in (self.group_node, self.device_node) if node is not None)

    @property
    def ids(self) -> str:
        """Vendor and device, `10de:2330`."""
        return f"{self.vendor:04x}:{self.device:04x}"


@frozen
class Holder:
    """One process that has a function open, or may have."""

    pid: int
    """On the host; 0: the kernel says that there is one, and it is not seen from here."""
    name: str
    """As the process calls itself."""
    what: str
    """What it has open, `/dev/vfio/15`, or what about it cannot be told from that."""
    is_doubt: bool = False


@frozen
class UnreadableFunction:
    """A function that is there and does not say what it is; it hides no other."""

    address: str
    message: str


@frozen
class VariantDriver:
    """One line of modules.alias that says which VFIO driver suits which functions."""

    pattern: str
    """`v000010DEd00002342sv*sd*bc*sc*i*`, without `vfio_pci:` in front."""
    module: str


@frozen
class PassthroughHost:
    """What passthrough needs of the machine beside the functions."""

    iommu_groups: int = 0
    """How many there are; 0: no IOMMU is on."""
    container_node: DeviceNode | None = None
    """`/dev/vfio/vfio`, which users of groups open first."""
    iommufd_node: DeviceNode | None = None
    """`/dev/iommu`."""
    kernel: str = ""
    """Release, `6.12.48+deb13-amd64`."""
    modules: tuple[str, ...] = ()
    """Loaded or built in, of those that matter: vfio, vfio_pci, iommufd, nouveau, nvidia …; with `_`."""
    drivers: tuple[str, ...] = ()
    """Names of PCI drivers that are VFIO's and registered now: only to these can be bound at once."""
    variants: tuple[VariantDriver, ...] | None = ()
    """What modules.alias of this kernel lists; None: it cannot be read."""
    processor: Vendor | None = None
    """Whose processor it is, AMD's or Intel's: it says which option turns the IOMMU on. None: another's."""


@frozen
class Snapshot:
    """One scan of a machine for passthrough."""

    host: PassthroughHost = PassthroughHost()
    functions: tuple[Function, ...] = ()
    """In address order, domains by number."""
    unreadable: tuple[UnreadableFunction, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read of the machine itself."""

    def find(self, address: str) -> Function | None:
        """Return the function at an address."""
        return next((one for one in self.functions if one.address == address), None)

    @property
    def gpus(self) -> tuple[Function, ...]:
        """The GPUs alone."""
        return tuple(one for one in self.functions if one.kind is FunctionKind.GPU)


class ModuleUnknown(enum.Enum):
    """Why a GPU's module number is not known."""

    NOT_SXM = "the board is no SXM module"
    GENERATION = "no register is known that says it for this generation"
    BOARD = "the board's subsystem is not in the list of those whose wiring is known"
    UNREADABLE = "its registers cannot be read"
    SILENT = "its registers read as ones"


@frozen
class ModuleReading:
    """A GPU's module number, its place on the baseboard, as its registers say it; partitions of NVLink name it so."""

    number: int | None = None
    """1 to 8."""
    why: ModuleUnknown | None = None
    """Why there is none."""
    detail: str = ""
    """The system's own word, where there is one."""

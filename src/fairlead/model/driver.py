"""Declares the driver as files: device nodes, kernel modules, libraries, and what else a container needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID

SHARED_NODES: Final[Mapping[Vendor, tuple[str, ...]]] = {
    Vendor.NVIDIA: ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"),
    Vendor.AMD: ("/dev/kfd",),
    Vendor.INTEL: (),
}
"""Device nodes beside the GPUs' own, by container path."""


@frozen
class DeviceNode:
    """One character device below the silicon root."""

    path: str
    """As a container sees it, `/dev/nvidiactl`."""
    host_path: str
    """Where it is on this host; differs from `path` under a root that is not `/`."""
    major: int
    minor: int
    mode: int
    """Permission bits."""
    uid: int = 0
    gid: int = 0


MACHINES: Final = {62: "x86_64", 183: "aarch64"}
"""Processors by e_machine, as uname calls them. Source: the ELF specification's supplements."""


@frozen
class HostFile:
    """One file of the driver's user space (library, tool, firmware, configuration)."""

    path: str
    """Where a container should see it, `/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01`."""
    host_path: str
    kind: str
    """`library`, `library32`, `explicit` (vendor-neutral dispatch), `binary`, `firmware`, `config`, `socket`."""
    soname: str | None = None
    """For libraries: DT_SONAME's link name where the ldcache has it, `libcuda.so.1`."""
    links: tuple[str, ...] = ()
    """Symbolic links on the host that lead to it, relative to its folder, by file name where they stand beside it."""
    machine: str = ""
    """For 64-bit libraries: what they run on, a value of `MACHINES`; empty: something else."""


@frozen
class Module:
    """One kernel module the driver consists of."""

    name: str
    is_loaded: bool
    version: str | None = None


@frozen
class VGPU:
    """One virtual GPU that this machine lends to a guest, as VFIO hands it out."""

    id: str
    """UUID of a mediated device, or PCI address of an SR-IOV virtual function."""
    parent: str
    """PCI address of the physical GPU."""
    type: str = ""
    """`NVIDIA L40S-12Q`; empty: no file says it, and NVML may (`GPU.vgpu_types`)."""
    type_id: int | None = None
    """NVML's number of the type, which means something on its own GPU only."""
    group: str = ""
    """IOMMU group; empty: it has none."""
    numa_node: int | None = None
    nodes: tuple[DeviceNode, ...] = ()
    """Its own nodes; `/dev/vfio/vfio` is needed beside those of a group."""
    problem: str = ""
    """Why it cannot be handed out, and what mends it; empty: it can."""


@frozen
class VGPULender:
    """A physical GPU that can lend vGPUs: what it may still create, and its virtual functions."""

    address: str
    """PCI address."""
    functions: int | None = None
    """SR-IOV virtual functions that exist; None: it has no SR-IOV."""
    most_functions: int | None = None
    creatable: tuple[tuple[str, int | None], ...] = ()
    """Types by name, each with how many more can be created; None: the driver does not count."""


@frozen
class PassthroughGPU:
    """One GPU that is bound to a VFIO driver and given to tenants' machines whole, as it is now."""

    key: GPUUUID
    """Who it is, by serial number or place and never by its address: the ledger's key."""
    vendor: Vendor
    address: str
    """PCI address now; it may be another after a firmware update."""
    model: str = ""
    """`GH100 [H100 SXM5 80GB]`, from the list of PCI ids; empty: not in it."""
    module: int | None = None
    """Its place on the baseboard, by which NVLink's partitions name it; None: it is no module, or it cannot be read."""
    group: str = ""
    """Number of its IOMMU group."""
    members: tuple[str, ...] = ()
    """Addresses of the other functions that go with it."""
    group_nodes: tuple[DeviceNode, ...] = ()
    """Nodes of who uses it by its IOMMU group: `/dev/vfio/vfio`, `/dev/vfio/GROUP`; empty: the kernel has no groups."""
    iommufd_nodes: tuple[DeviceNode, ...] = ()
    """Nodes of who uses it by iommufd: `/dev/iommu`, `/dev/vfio/devices/vfioN`; empty: the kernel has none."""
    numa_node: int | None = None
    """One that has processors; None: sysfs names none."""
    is_card: bool = False
    """Whether it can be no module of a board with NVSwitches, by its chip or as a PCIe card; else it may be one."""
    is_nvlink5: bool = False
    """Whether its NVLink is of the generation whose GPUs keep a partition's data until they are reset."""
    driver: str = ""
    """`vfio-pci`, or a variant of it."""
    problem: str = ""
    """Why it cannot be handed out, and what mends it; empty: it can."""
    is_lost: bool = False
    """Whether it is off the bus, or reads as ones."""
    number: int | None = None
    """By which claims' devices are named (`gpu-vfio-3`), kept for as long as the node lives; None: it has none."""
    vendor_id: int = 0
    """PCI vendor, 0x10de; 0: not known."""
    device_id: int = 0
    """PCI device, 0x2330; 0: not known."""
    pcie_root: str = ""
    """Its PCIe root complex, `pci0000:15`; empty: sysfs does not show it."""
    addressable_bytes: int = 0
    """Size of its 64-bit memory regions together, as the next power of two; 0: sysfs does not say."""


@frozen
class PassthroughSwitch:
    """One NVSwitch, or function by which NVLink 5's switches are managed: what a Service VM is given."""

    key: str
    """Who it is, by serial number or place."""
    address: str
    group_nodes: tuple[DeviceNode, ...] = ()
    """As of `PassthroughGPU`; several of one IOMMU group have the same."""
    iommufd_nodes: tuple[DeviceNode, ...] = ()
    numa_node: int | None = None
    problem: str = ""
    """Why it cannot be handed out, and what mends it; empty: it can."""


@frozen
class DriverFiles:
    """Everything of one vendor's driver that lies on disk."""

    vendor: Vendor
    version: str | None
    nodes: tuple[DeviceNode, ...] = ()
    """GPU and control nodes, in path order."""
    files: tuple[HostFile, ...] = ()
    modules: tuple[Module, ...] = ()
    majors: tuple[tuple[str, int], ...] = ()
    """`/proc/devices` entries of this driver: (name, major)."""
    mig_minors: tuple[tuple[str, int], ...] = ()
    """`/proc/driver/nvidia-caps/mig-minors`: (`gpu0/gi1/access`, minor)."""
    vgpus: tuple[VGPU, ...] = ()
    """Virtual GPUs that this machine lends."""
    lenders: tuple[VGPULender, ...] = ()
    """GPUs that can lend some."""
    partitions: tuple[tuple[int, ...], ...] = ()
    """Module numbers of each set of several GPUs between which NVLink can be switched on, as the fabric offers them."""
    partition_ids: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Id and module numbers of every NVLink partition, those of one GPU too."""
    vfio_nodes: tuple[DeviceNode, ...] = ()
    """What every user of a vGPU needs beside its own nodes; empty where none is lent."""
    passthrough: tuple[PassthroughGPU, ...] = ()
    """GPUs that have no driver of their vendor here; the silicon's inventory has none of them."""
    switches: tuple[PassthroughSwitch, ...] = ()
    """What a Service VM's pod may be given, where the settings name its namespace."""
    companions: tuple[tuple[str, ModeFiles], ...] = ()
    """What containers may get beside their GPUs, by CDI mode: gdrcopy, gds, mofed, imex. Those that are there."""
    problems: tuple[str, ...] = ()
    """What is missing and how to mend it, for doctor; empty when complete."""


@frozen
class ModeDevice:
    """One device of a CDI mode that is not a GPU: a channel, an IOMMU group, a board behind a list of mounts."""

    names: tuple[str, ...]
    nodes: tuple[DeviceNode, ...]


@frozen
class ModeFiles:
    """What one CDI mode finds on a machine."""

    version: str | None = None
    """Of the driver, where the mode brings its user space."""
    devices: tuple[ModeDevice, ...] = ()
    shared: tuple[DeviceNode, ...] = ()
    """Nodes that every container of the mode gets."""
    files: tuple[HostFile, ...] = ()
    problems: tuple[str, ...] = ()
    """What is left out and why, one line each."""

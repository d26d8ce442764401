"""Declares GPUs as hardware: what one scan of a machine found, without vendors' structs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.ids import GPUUUID, MIGUUID


class Vendor(enum.Enum):
    """Who made the silicon."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"


class ComputeMode(enum.Enum):
    """Who may have a CUDA context on a GPU, in the words of `nvidia-smi -c`."""

    DEFAULT = "DEFAULT"
    EXCLUSIVE_THREAD = "EXCLUSIVE_THREAD"
    PROHIBITED = "PROHIBITED"
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"


class LinkKind(enum.Enum):
    """The closest way between two GPUs, as `nvidia-smi topo -m` names it."""

    NVLINK = "NV"
    """Direct NVLinks between the two."""
    NVSWITCH = "NVS"
    """Both reach the same NVSwitch fabric."""
    XGMI = "XGMI"
    """AMD's direct link."""
    SAME_BOARD = "PSB"
    SINGLE_SWITCH = "PIX"
    """One PCIe switch."""
    MULTI_SWITCH = "PXB"
    """Several PCIe switches, one host bridge."""
    HOST_BRIDGE = "PHB"
    SAME_NODE = "NODE"
    """Several host bridges of one NUMA node."""
    SYSTEM = "SYS"
    """Across the sockets."""


@frozen
class Link:
    """How two GPUs of one machine reach each other; kept once a pair, `a` before `b` in index order."""

    a: GPUUUID
    b: GPUUUID
    kind: LinkKind
    lanes: int = 0
    """NVLinks (or XGMI links) of the pair; through an NVSwitch the smaller side's count; 0 for PCIe."""


@frozen
class MIGEngines:
    """What a MIG device computes with, as its driver counts it."""

    multiprocessors: int = 0
    instance_slices: int = 0
    """Compute slices of its GPU instance."""
    slices: int = 0
    """Its own compute slices."""
    copy: int = 0
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0


@frozen
class MIGDevice:
    """One compute instance in one GPU instance, as an allocatable device."""

    uuid: MIGUUID
    index: int
    """Position below its GPU, the `j` of NVML's `i:j`."""
    profile: str
    """Canonical name, `1g.10gb`, `1g.10gb+me`, `1c.3g.40gb`."""
    gpu_instance: int
    compute_instance: int
    placement_start: int | None
    """First memory slice; None where the driver does not report it."""
    placement_size: int | None
    """Memory slices occupied."""
    memory_bytes: int
    engines: MIGEngines | None = None
    """None where the driver does not report it."""


@frozen
class GPUHealth:
    """The readings that decide about health; None where the device or driver does not report one."""

    temperature_c: int | None = None
    limit_c: int | None = None
    """The temperature that the device itself calls critical."""
    power_mw: int | None = None
    ecc_uncorrected: int | None = None
    """Volatile uncorrected ECC errors since the driver was loaded."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    """NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0 none, 1 reset, 2 reboot; more in `plan.gpu.health.RECOVERY_ACTIONS`."""
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None


@frozen
class HostDriver:
    """The driver below a virtual GPU, of the hypervisor that this machine runs on."""

    version: str
    branch: str


@frozen
class Licence:
    """What a driver says of one licensable feature of a GPU that a hypervisor lends."""

    product: str
    """`NVIDIA Virtual Compute Server`."""
    is_licensed: bool
    expires: str = ""
    """`permanent`, or `2027-01-31 12:00:00` in UTC; empty: the driver does not say."""


@frozen
class GPU:
    """One physical GPU that answered."""

    uuid: GPUUUID
    vendor: Vendor = Vendor.NVIDIA
    index: int
    """Position in the driver's enumeration (PCI order); may change at a reboot."""
    minor: int
    """`/dev/nvidia<minor>`; not always the index. For AMD and Intel the render node's minor."""
    pci_bus_id: str
    """`domain:bus:device.function` in lower case, four-digit domain."""
    name: str
    """Product name, `NVIDIA H100 80GB HBM3`."""
    memory_bytes: int
    serial: str | None = None
    compute_capability: tuple[int, int] | None = None
    brand: str | None = None
    """NVML's brand in the word that images require, `nvidia`, `tesla`, `geforce`; `unknown` is a brand, too."""
    numa_node: int | None = None
    """None where the machine has no NUMA or does not report it."""
    pcie_root: str = ""
    """The PCIe root complex that it hangs off, `pci0000:00`; empty: sysfs does not show it."""
    addressing_mode: str | None = None
    """How it reaches the memory of processes: `HMM`, `ATS` or `None`; None where the driver does not report it."""
    nics: tuple[str, ...] = ()
    """RDMA devices on its PCIe switch, `mlx5_0`."""
    kernel_driver: str = ""
    """The module that the GPU is bound to, `xe`; read only of Intel's, which have two."""
    mig_enabled: bool = False
    mig_capable: bool = False
    mig_devices: tuple[MIGDevice, ...] = ()
    device_nodes: tuple[str, ...] = ()
    """This GPU's own nodes below the silicon root, `/dev/nvidia0`, `/dev/dri/renderD128`; not the shared ones."""
    nvswitch_links: int = 0
    """Active NVLinks whose far end is an NVSwitch."""
    clique: str = ""
    """`CLUSTER-UUID.CLIQUE`: the GPUs of several machines that one NVLink fabric joins; empty: it is in none."""
    compute_mode: ComputeMode | None = None
    """None where the driver does not tell."""
    pci_class: int | None = None
    """PCI class, subclass and programming interface: 0x030200 is a 3D controller, 0x030000 one with a display."""
    is_virtual: bool | None = None
    """Whether it is a vGPU that a hypervisor hands this machine; None where the machine does not show it."""
    host_driver: HostDriver | None = None
    """Of a vGPU, where it reports one."""
    licences: tuple[Licence, ...] | None = None
    """Of a vGPU: what its driver has a licence for; None: none is needed, or the driver does not say."""
    vgpu_types: tuple[tuple[int, str], ...] = ()
    """Types of vGPUs that it can lend, by NVML's number and name; empty: its driver lends none."""
    health: GPUHealth = GPUHealth()


@frozen
class UnreadableGPU:
    """A GPU that is there but did not answer; it hides no other."""

    index: int
    pci_bus_id: str | None
    uuid: GPUUUID | None
    """Known from an earlier scan, else None."""
    reason: str
    """Stable token: `Lost`, `Timeout`, `Unreadable`."""
    message: str


@frozen
class Driver:
    """The kernel driver that answered."""

    vendor: Vendor
    version: str
    cuda_version: tuple[int, int] | None = None
    """Newest CUDA the driver supports, (12, 4)."""


@frozen
class Inventory:
    """One scan of a machine."""

    gpus: tuple[GPU, ...] = ()
    """In index order, vendor by vendor."""
    unreadable: tuple[UnreadableGPU, ...] = ()
    links: tuple[Link, ...] = ()
    drivers: tuple[Driver, ...] = ()
    is_simulated: bool = False


class EventKind(enum.Enum):
    """What a driver reports without being asked."""

    XID = "xid"
    ECC_DOUBLE_BIT = "ecc-double-bit"
    LOST = "lost"
    RECOVERED = "recovered"
    CHANGED = "changed"
    """The inventory may differ (MIG change, hot-plug, temperature limit): scan again."""


class Action(enum.Enum):
    """What an XID asks for. Source: NVIDIA XID catalog, resolution buckets."""

    IGNORE = "ignore"
    APP = "restart the application"
    RESET = "reset the GPU"
    REBOOT = "reboot the node"


XIDS: Final[Mapping[int, tuple[Action, str]]] = {
    8: (Action.APP, "GPU stopped processing"),
    11: (Action.APP, "invalid push buffer"),
    13: (Action.APP, "graphics engine exception"),
    31: (Action.APP, "memory page fault"),
    32: (Action.APP, "invalid push buffer"),
    41: (Action.APP, "copy engine exception"),
    43: (Action.APP, "GPU stopped processing"),
    45: (Action.APP, "preemptive cleanup"),
    48: (Action.RESET, "double bit ECC error"),
    62: (Action.RESET, "micro-controller halt"),
    63: (Action.IGNORE, "row remapping recorded"),
    64: (Action.RESET, "row remapping failed to record"),
    68: (Action.APP, "video processor exception"),
    69: (Action.APP, "graphics engine class error"),
    74: (Action.RESET, "NVLink error"),
    79: (Action.REBOOT, "GPU has fallen off the bus"),
    92: (Action.IGNORE, "high single bit ECC error rate"),
    94: (Action.APP, "contained memory error"),
    95: (Action.RESET, "uncontained memory error"),
    109: (Action.RESET, "context switch timeout"),
    119: (Action.RESET, "GSP call timeout"),
    120: (Action.RESET, "GSP error"),
    121: (Action.IGNORE, "corrected C2C link error"),
    140: (Action.RESET, "unrecovered memory error"),
    154: (Action.IGNORE, "recovery action changed"),  # the reading of the action decides
}
SPARED: Final = frozenset({Action.IGNORE, Action.APP})
"""Actions that leave the GPU offered."""
UNKNOWN_XID: Final = (Action.RESET, "unlisted error")
"""What is not in the table takes the GPU out: wrong by one GPU is better than wrong by one tenant."""


@frozen
class GPUEvent:
    """One event of one GPU, or of one MIG device on it."""

    kind: EventKind
    uuid: GPUUUID | None
    """None: the whole machine (CHANGED only)."""
    xid: int | None = None
    gpu_instance: int | None = None
    """None: the whole GPU."""
    compute_instance: int | None = None
    message: str = ""

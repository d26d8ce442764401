"""Lists the CDI kinds of this program: a vendor and a class for each mode, and those of allocations.

Two families that never meet. The vendors' own kinds (`nvidia.com/gpu`) are what `fairlead cdi generate` writes and what
people, images and the vendors' tools ask for. What the agent hands out is of kinds of our own, so that no other tool's
file can define the same device a second time, which would make every engine refuse both. Each vendor has its own there,
because one machine may hold GPUs of several, and an index would then mean two devices.

The runtime shim reads this at every container's start, so nothing is imported here.
Source: CDI SPEC.md, "kind"; NVIDIA container toolkit documentation, the kinds of nvidia-ctk.
"""

KINDS = {
    "nvml": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "intel.com/gpu",
    "wsl": "nvidia.com/gpu",
    "csv": "nvidia.com/gpu",
    "management": "management.nvidia.com/gpu",
    "imex": "nvidia.com/imex-channel",
    "gds": "nvidia.com/gds",
    "mofed": "nvidia.com/mofed",
    "gdrcopy": "nvidia.com/gdrcopy",
    "nvswitch": "nvidia.com/nvswitch",
    "vgpu": "nvidia.com/vgpu",
    "vfio": "nvidia.com/pgpu",
    "vfio-amd": "amd.com/pgpu",
    "vfio-intel": "intel.com/pgpu",
}
"""Kind of the specs of each mode of the generator."""
SWITCHES = KINDS["nvswitch"]
"""Kind and resource of NVSwitches that are passed through, where `node.vfio_switch_alias` says no other."""
SWITCH_WORD = "nvswitch"
"""Is in the class of every such resource, so that what refuses tenants the switches needs no node's settings."""
GPUS = {"nvidia": KINDS["nvml"], "amd": KINDS["amd"], "intel": KINDS["intel"]}
"""Vendors' own kinds of GPUs, by value of `model.gpu.Vendor`."""
ALLOCATED = {"nvidia": "fairlead.dev/gpu", "amd": "amd.fairlead.dev/gpu", "intel": "intel.fairlead.dev/gpu"}
"""Kinds of what the agent allocates, by value of `model.gpu.Vendor`."""
LENT = "fairlead.dev/vgpu"
"""Kind of the vGPUs that the agent allocates: its devices bring VFIO's nodes and nothing of a driver."""
COMPANIONS = {
    "gdrcopy": "fairlead.dev/gdrcopy",
    "gds": "fairlead.dev/gds",
    "mofed": "fairlead.dev/mofed",
    "imex": "fairlead.dev/imex-channel",
}
"""Kinds of what the agent gives containers beside their GPUs, by mode."""


def qualified(kind: str, device: str) -> str:
    """Return the fully qualified name of a device."""
    return f"{kind}={device}"


def device_of(name: str) -> str:
    """Return the device part of a fully qualified name."""
    return name.partition("=")[2]


def kind_of(name: str) -> str:
    """Return the kind of a fully qualified name."""
    return name.partition("=")[0]


def is_of_switches(kind: str) -> bool:
    """Return whether a kind is NVSwitches', under whichever name."""
    return SWITCH_WORD in class_of(kind).lower()


def class_of(kind: str) -> str:
    """Return the class of a kind."""
    return kind.partition("/")[2]

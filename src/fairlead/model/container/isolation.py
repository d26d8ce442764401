"""Names what stands between a container and its machine, and the RuntimeClass of each on a cluster.

`none` is the kernel's own namespaces and cgroups. `gvisor` runs the container on a kernel in user space; GPUs are still
driven by the host's driver. `vm` is a virtual machine with a kernel and a driver of its own.
"""

from __future__ import annotations

from typing import Final

NONE: Final = "none"
GVISOR: Final = "gvisor"
VM: Final = "vm"
WORDS: Final = (NONE, GVISOR, VM)

LIMITS: Final = (
    "gVisor keeps the container from the node's kernel, not from the driver of its GPUs: calls reach the node's "
    "driver, and no IOMMU keeps a GPU from the node's memory"
)
"""What is said where gVisor is chosen for a container with GPUs."""

GVISOR_CLASS: Final = "gvisor"
"""RuntimeClass of gVisor, as its documentation and GKE name it; the handler's name too."""
KATA_CLASS: Final = "kata-qemu-nvidia-gpu"
"""RuntimeClass of Kata's machines with GPUs, as Kata's own installer names it; the handler's name too."""
_KATA: Final = "kata-"


def class_of(word: str) -> str:
    """Return the RuntimeClass of an isolation; empty: none is needed."""
    return {GVISOR: GVISOR_CLASS, VM: KATA_CLASS}.get(word, "")


def of_class(runtime_class: str) -> str:
    """Return the isolation that pods of a RuntimeClass have; a class that says nothing of it is its own name."""
    if runtime_class.startswith(_KATA):
        return VM
    return {"": NONE, GVISOR_CLASS: GVISOR}.get(runtime_class, runtime_class)

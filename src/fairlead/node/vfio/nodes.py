"""Takes the nodes of one GPU that is passed through: its group's, or its own where the kernel has no groups."""

from __future__ import annotations

from pathlib import Path

from fairlead import errors
from fairlead.kernel import vfionode
from fairlead.model.driver import PassthroughGPU


def take_hold(gpu: PassthroughGPU) -> vfionode.Hold:
    """Hold a GPU, against users of either way. Raises: Conflict: somebody has it; FairleadError: it cannot be held."""
    if gpu.group_nodes:
        return vfionode.hold_group(Path(gpu.group_nodes[-1].host_path))
    if gpu.iommufd_nodes:
        iommu, *own = (Path(node.host_path) for node in gpu.iommufd_nodes)
        return vfionode.hold_devices(own, iommu)
    message, hint = f"{gpu.address} has no node below /dev/vfio", "is vfio-pci loaded, and is udev running?"
    raise errors.NotFound(message, reason=vfionode.GONE, hint=hint)

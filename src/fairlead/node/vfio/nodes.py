"""Takes the nodes of one GPU that is passed through: its group's, or its own where the kernel has no groups."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel import vfionode
from fairlead.model.driver import PassthroughGPU

_GROUP: Final = re.compile(r".*/vfio/[0-9]+")
_IOMMU: Final = "/dev/iommu"


def take_hold(gpu: PassthroughGPU) -> vfionode.Hold:
    """Hold a GPU. Raises: Conflict: somebody has it; FairleadError: it cannot be held."""
    if not gpu.nodes:
        message, hint = f"{gpu.address} has no node below /dev/vfio", "is vfio-pci loaded, and is udev running?"
        raise errors.NotFound(message, reason=vfionode.GONE, hint=hint)
    group = next((node for node in gpu.nodes if _GROUP.fullmatch(node.path)), None)
    if group is not None:
        return vfionode.hold_group(Path(group.host_path))
    iommu = next((node for node in gpu.shared_nodes if node.path == _IOMMU), None)
    if iommu is None:
        message = f"{gpu.address} has a node of its own alone, and there is no {_IOMMU} to bind it to"
        raise errors.Unavailable(message, reason=vfionode.FAILED, hint="load the module iommufd")
    return vfionode.hold_devices([Path(node.host_path) for node in gpu.nodes], Path(iommu.host_path))

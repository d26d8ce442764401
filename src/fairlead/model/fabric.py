"""Declares what a Fabric Manager says of its NVLink fabric: partitions, their GPUs, links that failed.

A GPU is named by its physical id, which is the module number of its board. NVIDIA's UUIDs and PCI addresses are empty
where the Manager runs in a Service VM on Hopper and later: that machine has no GPU.
"""

from __future__ import annotations

from typing import Final

from fairlead.frozen import frozen

AGENT_PORT: Final = 6667
"""Of vsock, on which the agent in a Service VM of ours listens: one above the Manager's own."""
VERSION: Final = r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,3}"
"""Form of a version of NVIDIA's driver and of the Manager, which has the same numbers: 580.95.05."""


@frozen
class FabricGPU:
    """One GPU of a partition."""

    module: int
    """Its physical id, 1 to 16."""
    uuid: str = ""
    """Empty: the Manager does not see the GPU."""
    pci: str = ""
    """PCI address where the Manager runs; empty: as `uuid`."""
    links: int = 0
    """NVLinks that it has in this partition; 0 in a partition of one GPU."""
    most_links: int = 0
    """NVLinks that it could have."""
    link_mbps: int = 0
    """Rate of one link, in MB/s."""


@frozen
class Partition:
    """A set of GPUs that may talk over NVLink among themselves and to no other GPU, once it is active."""

    id: int
    gpus: tuple[FabricGPU, ...]
    is_active: bool = False

    @property
    def modules(self) -> tuple[int, ...]:
        """Return the module numbers of its GPUs, in the Manager's order."""
        return tuple(gpu.module for gpu in self.gpus)

    @property
    def links(self) -> int:
        """Return the NVLinks of all its GPUs together."""
        return sum(gpu.links for gpu in self.gpus)


@frozen
class ManagerIdentity:
    """Which start of a Manager answers, and of which version it is."""

    start: str
    """Another text after each start of the Manager; where nothing tells a start, after each connection to it."""
    machine: str = ""
    """Boot id of the Service VM that the Manager runs in; empty: no agent in it tells."""
    version: str = ""
    """`580.95.05`; empty: nothing tells it."""


@frozen
class FailedDevice:
    """A GPU or NVSwitch whose NVLinks failed to train."""

    is_switch: bool
    uuid: str
    pci: str
    ports: tuple[int, ...]


@frozen
class UnsupportedPartition:
    """A partition that the Manager cannot offer, because links of its GPUs failed."""

    id: int
    modules: tuple[int, ...]

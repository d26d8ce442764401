"""Declares what a Fabric Manager can do. Each call blocks: `connection` runs it in a thread and ends the wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fairlead.model.fabric import FailedDevice, ManagerIdentity, Partition, UnsupportedPartition


class FabricManager(Protocol):
    """One connection to a Fabric Manager."""

    def identify(self) -> ManagerIdentity:
        """Return which start of the Manager this is. It asks the Manager nothing: a list says whether it answers."""
        ...

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return the fabric's partitions and which are active. Raises: FairleadError."""
        ...

    def activate(self, partition: int) -> None:
        """Activate a partition; one that is active stays so. Raises: Conflict: a GPU of it is in another one."""
        ...

    def deactivate(self, partition: int) -> None:
        """Deactivate a partition; one that is not active stays so."""
        ...

    def set_active(self, partitions: Collection[int]) -> None:
        """Say which partitions were active before the Manager started again; due within 60 s of such a start."""
        ...

    def list_failed(self) -> tuple[FailedDevice, ...]:
        """Return devices whose links failed; always empty from Hopper on."""
        ...

    def list_unsupported(self) -> tuple[UnsupportedPartition, ...]:
        """Return partitions that cannot be offered; always empty from Hopper on."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...

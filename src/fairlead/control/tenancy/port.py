"""Declares what the tenancy controller needs of the place where containers run: one machine, or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairlead.wire.fairlead.tenancy import NetworkStatus, Tenancy
from fairlead.wire.kubernetes import core


class Network(Protocol):
    """Isolation of tenancies' packets from each other and from the host."""

    async def ensure(self, item: Tenancy, every: Sequence[Tenancy]) -> NetworkStatus:
        """Make a tenancy's network, and bring the rules that isolate it into force. Idempotent.

        Args:    every: all tenancies there are, this one among them.
        Raises:  FairleadError: it is not isolated, and why.
        """
        ...

    async def remove(self, uid: str, every: Sequence[Tenancy]) -> None:
        """End a tenancy's network and its rules. Idempotent. Raises: Conflict: a container is still in it."""
        ...

    async def sweep(self, every: Sequence[Tenancy]) -> None:
        """Remove the networks and rules of this service that belong to no tenancy.

        Raises: FairleadError: one could not be removed, for example because a container is in it; it stays isolated.
        """
        ...


class Possessions(Protocol):
    """What a tenancy holds beside objects of the store."""

    async def mount_volumes(self, item: Tenancy) -> str:
        """Mount the export that has the tenancy's volumes, or have it mounted with its pods. Idempotent.

        Returns: `Mounted`, or `Bound` where kubelets mount it.
        Raises:  FairleadError: its volumes cannot be had, and why.
        """
        ...

    async def reach_volumes(self, item: Tenancy) -> None:
        """Check that the files which `remove_volumes` removes can be reached. Raises: FairleadError: they cannot."""
        ...

    async def unmount_volumes(self, namespace: str) -> None:
        """Take a namespace's export away again; files on the server are not touched. Idempotent.

        Raises: FairleadError: it is not away yet.
        """
        ...

    async def remove_volumes(self, namespace: str) -> None:
        """Remove the namespace's volumes with their files. Raises: Conflict: a container still mounts one."""
        ...

    async def forget_credentials(self, uid: str) -> None:
        """Remove the tenancy's registry credentials. Idempotent."""
        ...

    async def stop(self, pod: core.Pod) -> None:
        """End a pod's processes; its record stays where the place keeps records. Raises: NotFound: it is gone."""
        ...

    async def held_gpus(self, namespace: str) -> tuple[str, ...]:
        """Return the GPUs that the namespace's containers have or had, and that are not known to be clean yet."""
        ...

"""Declares what makes pods for workloads: the door that every other container comes through too."""

from __future__ import annotations

from typing import Protocol

from fairlead.wire.kubernetes import core, meta


class PodMaker(Protocol):
    """Stores pods that a workload asks for, judged as its maker's own."""

    async def make(self, pod: core.Pod, owner: meta.Object) -> core.Pod:
        """Store a pod.

        Args:   owner: the object that a person made: what it says of its maker counts.
        Raises: Invalid, Denied: a rule, a quota, a budget; Conflict (`AlreadyExists`): its name.
        """
        ...

    async def make_claim(self, claim: core.PersistentVolumeClaim, owner: meta.Object) -> None:
        """Make a volume; one of that name stays as it is. Raises: as `make`."""
        ...

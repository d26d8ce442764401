"""The port to where containers run: one machine, or a cluster seen through its API server.

Objects are read from the store wherever they are; what differs between the two homes is behind this port: which GPUs
there are, what containers wrote, how the service describes itself, and what only a machine of our own can do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from fairlead.engine.port import Engine, Images
from fairlead.model.gpu import Inventory
from fairlead.serve.v1 import machineview
from fairlead.silicon.port import Faults
from fairlead.wire.kubernetes import core


class Machine(Protocol):
    """What a machine of our own has beside objects."""

    @property
    def engine(self) -> Engine:
        """What runs its containers."""
        ...

    @property
    def images(self) -> Images:
        """What they are run from."""
        ...

    @property
    def faults(self) -> Faults | None:
        """None where the silicon is real: it cannot be broken on command."""
        ...

    def inventory(self) -> Inventory:
        """Return the latest scan."""
        ...


class Backend(Protocol):
    """Where containers run."""

    @property
    def is_own(self) -> bool:
        """Whether the kubelet and the admission of pods are Fairlead's own, so that they heed its annotations."""
        ...

    def machine(self, asked: str, *, instead: str) -> Machine:
        """Return the machine.

        Args:    asked: what is wanted of it, for the refusal.   instead: what does it where there is no machine.
        Raises:  RequestError (`NotOnCluster`): this home is none.
        """
        ...

    async def list_gpus(self) -> machineview.GPUListing:
        """Return every GPU with its health and holders. Raises: NotFound: the cluster knows no GPUDevices."""
        ...

    async def list_topologies(self) -> machineview.TopologyList:
        """Return, node by node, how its GPUs reach each other. Raises: as `list_gpus`."""
        ...

    async def describe(self) -> machineview.HomeStatus:
        """Return how this home is; what is broken is described, not raised."""
        ...

    async def latest_logs(
        self, pod: core.Pod, container: str, *, tail: int | None, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """Return what a container wrote so far. Raises: Conflict (`ContainerNotStarted`)."""
        ...

    def follow_logs(
        self, pod: core.Pod, container: str, *, tail: int | None, timestamps: bool, once: bool
    ) -> AsyncIterator[bytes]:
        """Yield output from the newest attempt on, waiting for the first start, until the pod has ended or is gone.

        Args: once: end with the first attempt that is followed, also where it will be started again.
        """
        ...

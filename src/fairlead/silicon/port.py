"""Declares the port to hardware; real NVML, sysfs of other vendors and simulated silicon pass one contract suite.

Nothing above this room reads /dev, /proc/driver or /sys. Every method may be called from the event loop: blocking
driver calls run in threads of the implementation, and a call that hangs turns into an unreadable GPU, never into a
hanging service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fairlead.model.driver import DriverFiles
from fairlead.model.evidence import Evidence
from fairlead.model.gpu import ComputeMode, GPUEvent, Inventory
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Partition, Slot
from fairlead.model.neighbour import GPUProcess
from fairlead.model.sample import Sample


class Silicon(Protocol):
    """One machine's GPUs."""

    async def scan(self) -> Inventory:
        """Read everything now. A lost GPU is listed as unreadable; no driver at all gives an empty inventory.

        Raises: Unavailable: a driver is installed but its library refuses to start (reason `DriverNotLoaded`, …).
        """
        ...

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read device nodes, majors, modules and user-space files, one value for each vendor found."""
        ...

    def watch_events(self) -> AsyncIterator[GPUEvent]:
        """Yield driver events for ever; errors of the event source back off inside and never end the iterator."""
        ...

    async def close(self) -> None:
        """Stop threads and release the driver; idempotent."""
        ...


class Sampler(Protocol):
    """What can be asked for load, clocks, power and memory as often as a client asks."""

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Read the counters of every GPU that answers in time, each GPU before its MIG devices.

        A GPU that is lost or hangs is left out, and delays the others by `within_s` at most; no driver at all gives
        nothing.
        """
        ...


class SampledSilicon(Silicon, Sampler, Protocol):
    """What every vendor's silicon is."""


@runtime_checkable
class Workloads(Protocol):
    """What only simulated silicon must be given: the users of its GPUs, which real GPUs notice by themselves."""

    def hold(self, holders: Mapping[str, tuple[str, ...]]) -> None:
        """Say who holds what, by UUID of the GPU or MIG device; whatever is not named is idle."""
        ...


class Partitioner(Protocol):
    """MIG: reads partitions and makes one change at a time. Decides nothing and undoes nothing.

    Every change raises Conflict (`MIGInUse`) where a process uses what it would end, Insufficient (`MIGNoPlacement`)
    where the place is taken, Invalid (`MIGNotSupported`), NotFound (`MIGInstanceGone`), Unavailable
    (`DriverNoPermission`, …) and DeviceFault where the GPU does not answer.
    """

    async def list_partitions(self) -> tuple[Partition, ...]:
        """Read every GPU of the driver, in index order; one that does not answer has its `problem` and nothing else.

        Raises: Unavailable: no driver answers.
        """
        ...

    async def read_partition(self, gpu: GPUUUID) -> Partition:
        """Read one GPU alone. Raises: Unavailable, DeviceFault: it does not answer."""
        ...

    async def set_mode(self, gpu: GPUUUID, *, is_enabled: bool) -> bool:
        """Switch MIG; returns whether the GPU must be reset before the mode counts."""
        ...

    async def reset(self, gpu: GPUUUID) -> None:
        """Reset one GPU, and let go of it meanwhile; its GPU instances are gone afterwards."""
        ...

    async def create_instance(self, gpu: GPUUUID, slot: Slot) -> int:
        """Create a GPU instance at a place; returns its id."""
        ...

    async def create_compute(self, gpu: GPUUUID, instance: int, slices: int) -> None:
        """Create a compute instance, which is a MIG device, in a GPU instance."""
        ...

    async def destroy_instance(self, gpu: GPUUUID, instance: int) -> None:
        """Destroy a GPU instance that has no compute instances."""
        ...

    async def destroy_compute(self, gpu: GPUUUID, instance: int, compute: int) -> None:
        """Destroy a compute instance."""
        ...


@runtime_checkable
class Partitionable(Protocol):
    """Silicon some of whose GPUs may be partitioned."""

    def partitioner(self) -> Partitioner | None:
        """Return who partitions them; None: they cannot be partitioned."""
        ...


class ComputeModes(Protocol):
    """Reads and sets who may have a CUDA context on a GPU.

    Both raise NotFound (`GPUGone`) where no GPU has the UUID, DeviceFault where it does not answer; reading raises
    Unavailable (`ComputeModeUnknown`) as well, setting Unavailable (`DriverNoPermission`) and Invalid
    (`ComputeModeNotSupported`).
    """

    async def read_mode(self, gpu: GPUUUID) -> ComputeMode:
        """Read the mode in force now."""
        ...

    async def set_mode(self, gpu: GPUUUID, mode: ComputeMode) -> None:
        """Set the mode; it is in force at once, until it is set anew or the driver is loaded anew."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MPSProgram:
    """The driver's `nvidia-cuda-mps-control`."""

    argv: tuple[str, ...]
    """How it is called, as seen from `root`."""
    root: str = "/"
    """The root that it must run in: of the node, where this process is in a container."""
    has_own_memory: bool = True
    """Whether /dev/shm is to be a folder that the daemon shares with its clients alone; a stand-in needs none."""


@runtime_checkable
class MPSSilicon(Protocol):
    """Silicon whose GPUs several processes may share by MPS."""

    def compute_modes(self) -> ComputeModes | None:
        """Return who sets compute modes; None: no GPU of this silicon has any."""
        ...

    def mps_program(self) -> MPSProgram | None:
        """Return the driver's MPS control program; None: it is not installed."""
        ...


@runtime_checkable
class TimeSlices(Protocol):
    """Sets how long a program has a GPU before the next one gets it.

    Raises: Unavailable: the driver's program refuses or does not answer.   NotFound: no such GPU.
    """

    async def set_time_slice(self, gpu: GPUUUID, interval: int) -> None:
        """Set the interval: 0 the driver's default, 1 short, 2 medium, 3 long."""
        ...


@runtime_checkable
class TimeSliced(Protocol):
    """Silicon whose driver lets the time slices of a GPU be set."""

    def time_slices(self) -> TimeSlices | None:
        """Return who sets them; None: the driver's program for it is not installed."""
        ...


@runtime_checkable
class Programs(Protocol):
    """Silicon whose driver tells which programs are on a GPU."""

    async def list_programs(self, gpus: Collection[GPUUUID]) -> Mapping[GPUUUID, tuple[GPUProcess, ...]]:
        """Return the programs that calculate or draw on these GPUs, by pid, none for a GPU that has none.

        A GPU that does not answer in time is left out: whether it is well, its health says.
        """
        ...


class Inspector(Protocol):
    """Reads what a GPU says of its board and firmware, and cleans it between two tenants.

    Every method raises NotFound (`GPUGone`) or DeviceFault where the GPU does not answer. None of them has a limit that
    the caller should trust: a verifier sets its own.
    """

    async def inspect(self, gpu: GPUUUID) -> Evidence:
        """Read it now."""
        ...

    async def reset(self, gpu: GPUUUID) -> None:
        """Reset it; its MIG instances are gone. Raises: Conflict: a program has it open."""
        ...

    async def scrub(self, gpu: GPUUUID) -> None:
        """Overwrite all memory that a program can have, and read back.

        Raises: DeviceFault (`ScrubFailed`); Unavailable (`ScrubNotOffered`): nothing here can.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """Silicon whose GPUs can be verified between two tenants."""

    def inspector(self) -> Inspector | None:
        """Return who does; None: no GPU of this silicon can be."""
        ...


class Faults(Protocol):
    """What only simulated silicon can do: break on command."""

    def inject(self, fault: str, *, gpu: int | None, value: str | None) -> str:
        """Apply one fault and return a line saying what was done.

        Args:    fault: `xid`, `lost`, `recover`, `temperature`, `ecc`, `slow`, `mig-create`, `mig-destroy`, ….
                 gpu: index; None where the fault concerns the machine.   value: the fault's argument, as text.
        Raises:  Invalid: unknown fault, GPU or value; the message lists what is offered.
        """
        ...

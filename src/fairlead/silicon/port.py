"""Declares the port to hardware; real NVML, sysfs of other vendors and simulated silicon pass one contract suite.

Nothing above this room reads /dev, /proc/driver or /sys. Every method may be called from the event loop: blocking
driver calls run in threads of the implementation, and a call that hangs turns into an unreadable GPU, never into a
hanging service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol, runtime_checkable

from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPUEvent, Inventory
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
    """What can be asked for load, clocks, power and memory as often as somebody looks."""

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        """Read the counters of every GPU that answers in time, each GPU before its MIG devices.

        A GPU that is lost or hangs is left out, and delays the others by `within_s` at most; no driver at all gives
        nothing.
        """
        ...


@runtime_checkable
class Workloads(Protocol):
    """What only simulated silicon needs to be told: real GPUs notice by themselves that somebody uses them."""

    def hold(self, holders: Mapping[str, tuple[str, ...]]) -> None:
        """Say who holds what, by UUID of the GPU or MIG device; whatever is not named is idle."""
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

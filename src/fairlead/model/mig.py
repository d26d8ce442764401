"""Declares a GPU's MIG partition: the profiles it offers, and the instances that stand on it now.

Memory is a row of slices. A GPU instance of a profile may begin only at that profile's starts and occupies `size` of
them. Compute instances divide the compute slices of one GPU instance; each of them is one MIG device.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.model.gpu import MIGEngines
from fairlead.model.ids import GPUUUID, MIGUUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MIGProfile:
    """One GPU instance profile of one GPU."""

    id: int
    """What NVML's create call and `nvidia-smi mig` take."""
    name: str
    """`1g.10gb`, `1g.10gb+me`."""
    slices: int
    """Compute slices."""
    size: int
    """Memory slices."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin, ascending."""
    limit: int
    """Instances of this profile at once."""
    memory_mib: int = 0
    takes_media: bool = False
    """Takes engines that the GPU has once: one such instance at a time."""
    engines: MIGEngines | None = None
    """What one whole instance computes with; None where the driver does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """One MIG device."""

    id: int
    slices: int
    uuid: MIGUUID | None = None
    """None where the driver does not list it as a device."""
    is_busy: bool = False
    """The driver counts processes on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUInstance:
    """A part of one GPU's memory with its engines."""

    id: int
    profile: str
    start: int
    computes: tuple[ComputeInstance, ...] = ()

    @property
    def slot(self) -> Slot:
        """Where it stands."""
        return Slot(profile=self.profile, start=self.start)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Slot:
    """A profile at a place."""

    profile: str
    start: int

    def __str__(self) -> str:
        """Return the form that people read and `simulate fault mig-create` takes."""
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One GPU as far as MIG is concerned."""

    gpu: GPUUUID
    index: int
    name: str
    pci_bus_id: str
    device_filter: str
    """PCI device and vendor as mig-parted's files have them, `0x233010DE`; with the subsystem where it is known."""
    profiles: tuple[MIGProfile, ...] = ()
    """Empty: the GPU cannot be partitioned."""
    is_enabled: bool = False
    is_pending: bool = False
    """The mode after the next reset; equal to `is_enabled` where none is due."""
    instances: tuple[GPUInstance, ...] = ()
    is_busy: bool = False
    """The driver counts processes on the GPU as a whole."""
    problem: str = ""
    """Why the GPU does not answer; then nothing else is known of it."""

    def find_profile(self, name: str) -> MIGProfile | None:
        """Return the profile of this name."""
        return next((one for one in self.profiles if one.name == name), None)


def device_name(profile: MIGProfile, slices: int) -> str:
    """Return the name of a MIG device: of its GPU instance, `1c.3g.40gb` where it is a part of one."""
    return profile.name if slices == profile.slices else f"{slices}c.{profile.name}"

"""Declares devices: what a node advertises and a scheduler counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.model import cdikind, replica
from fairlead.model.gpu import GPU
from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One allocatable device of one resource: a GPU, a MIG device, a vGPU, a slot of GPUs, or a replica.

    Which device it is, which GPU it lives on and what it is a part or a replica of are fields of their own. A value
    whose fields contradict each other cannot be made, so a MIG device is never answered as its GPU.
    """

    id: DeviceID
    """As the kubelet knows it."""
    cdi_name: str
    """Its own fully qualified name; replicas of one device share that device's."""
    gpu: GPUUUID
    """The physical GPU it is, or lives on."""
    mig: MIGUUID | None = None
    """The MIG device it is, or is a replica of; None: it is the whole GPU."""
    vgpu: str = ""
    """The vGPU that it is, by UUID or PCI address; empty: it is none."""
    slot: str = ""
    """The GPU that is passed through whole, by the slot's id in its resource; empty: it is none."""
    replica_of: DeviceID | None = None
    """The device it is a replica of; None: it is the device itself."""
    is_healthy: bool = True
    reason: str = ""
    """Why not healthy, a stable token; empty while healthy."""
    numa_node: int | None = None
    index: str = ""
    """Its place in the driver's enumeration, `0`, for a MIG device `0:1`; empty: not known."""
    nodes: tuple[str, ...] = ()
    """Its own device nodes as a container sees them, not those that all share."""
    slot_gpus: tuple[GPUUUID, ...] = ()
    """Every GPU of a slot of several, `gpu` first; empty: `gpu` alone."""

    def __post_init__(self) -> None:
        """Refuse what would hand out another device than the id says. Raises: ValueError: a bug of the caller."""
        own = self.slot or self.part or self.gpu
        stands_for = replica.origin(self.id)
        is_consistent = (
            stands_for == own == cdikind.device_of(self.cdi_name)
            and self.replica_of == (stands_for if stands_for != self.id else None)
            and own != (self.gpu if self.part else None)
            and sum(map(bool, (self.mig, self.vgpu, self.slot))) <= 1
            and not (self.slot and self.replica_of)
            and (not self.slot_gpus or (bool(self.slot) and self.slot_gpus[0] == self.gpu))
        )
        if not is_consistent:
            raise ValueError(f"device {self!r} is not one device")

    @property
    def gpus(self) -> tuple[GPUUUID, ...]:
        """Every physical GPU that whoever has it has something of."""
        return self.slot_gpus or (self.gpu,)

    @property
    def part(self) -> str | None:
        """The part of a GPU that it is, a MIG device or a vGPU; None: it is the whole GPU."""
        return self.mig or self.vgpu or None

    @property
    def name(self) -> str:
        """What a container gets with it: the GPU's or MIG device's UUID, or the vGPU's or slot's name."""
        return self.slot or self.part or self.gpu


def gpus_by_device(gpus: Iterable[GPU]) -> dict[str, GPUUUID]:
    """Return the GPU that each device lives on, by UUID of the GPU or MIG device."""
    found: dict[str, GPUUUID] = {}
    for gpu in gpus:
        found[gpu.uuid] = gpu.uuid
        found.update((str(mig.uuid), gpu.uuid) for mig in gpu.mig_devices)
    return found

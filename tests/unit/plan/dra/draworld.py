"""Makes GPUs, their MIG profiles and snapshots for the tests of what claims are offered."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from fairlead.model.gpu import GPU, Driver, Inventory, MIGDevice, MIGEngines, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.mig import MIGProfile, Partition
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.mig import table

_H100: Final = {
    "1g.10gb": (9984, 16, 1, 1, 1, 0),
    "1g.10gb+me": (9984, 16, 1, 1, 1, 1),
    "1g.20gb": (20096, 26, 1, 1, 1, 0),
    "2g.20gb": (20096, 32, 2, 2, 2, 0),
    "3g.40gb": (40448, 60, 3, 3, 3, 0),
    "4g.40gb": (40448, 64, 4, 4, 4, 0),
    "7g.80gb": (81152, 132, 8, 7, 7, 1),
}
"""MiB, multiprocessors, copy engines, decoders, JPEG engines and optical flow engines of an H100's profiles."""


def h100_profiles() -> tuple[MIGProfile, ...]:
    """Return the profiles of an H100 with the engines that NVML reports."""
    return tuple(_with_figures(one) for one in table.MODELS["h100-80"].profiles)


def _with_figures(profile: MIGProfile) -> MIGProfile:
    memory, multiprocessors, copy, decoder, jpeg, ofa = _H100[profile.name]
    engines = MIGEngines(
        multiprocessors=multiprocessors,
        instance_slices=profile.slices,
        slices=profile.slices,
        copy=copy,
        decoder=decoder,
        jpeg=jpeg,
        ofa=ofa,
    )
    return dataclasses.replace(profile, memory_mib=memory, engines=engines)


def h100(index: int = 0, **changed: Any) -> GPU:
    """Return an H100, whose minor number is its index."""
    found = GPU(
        uuid=GPUUUID(f"GPU-0000000{index}-0000-0000-0000-000000000000"),
        index=index,
        minor=index,
        pci_bus_id=f"0000:{index + 16:02x}:00.0",
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 << 20,
        compute_capability=(9, 0),
        brand="nvidia",
        numa_node=index // 4,
        pcie_root=f"pci0000:{index + 15:02x}",
        mig_capable=True,
        addressing_mode="HMM",
    )
    return dataclasses.replace(found, **changed)


def partition_of(gpu: GPU, profiles: Iterable[MIGProfile] | None = None) -> Partition:
    """Return the MIG partition of a GPU without instances."""
    return Partition(
        gpu=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        pci_bus_id=gpu.pci_bus_id,
        device_filter="0x233010DE",
        profiles=h100_profiles() if profiles is None else tuple(profiles),
        is_enabled=gpu.mig_enabled,
        is_pending=gpu.mig_enabled,
    )


def snapshot_of(*gpus: GPU, version: str = "580.126.20") -> Snapshot:
    """Return what is known of a machine with these GPUs."""
    driver = Driver(vendor=Vendor.NVIDIA, version=version, cuda_version=(13, 0))
    return Snapshot(
        inventory=Inventory(gpus=gpus, drivers=(driver,)), known={gpu.uuid: gpu for gpu in gpus}, is_scanned=True
    )


def mig(start: int = 4, profile: str = "1g.10gb", uuid: str = "MIG-1", size: int = 1) -> MIGDevice:
    """Return a MIG device that stands."""
    return MIGDevice(
        uuid=MIGUUID(uuid),
        index=0,
        profile=profile,
        gpu_instance=9,
        compute_instance=0,
        placement_start=start,
        placement_size=size,
        memory_bytes=9 << 30,
    )

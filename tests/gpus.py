"""Makes GPUs and GPUDevices for tests: unremarkable ones, in which a test names only what it is about."""

from __future__ import annotations

from typing import Any

from fairlead.model.driver import DeviceNode, DriverFiles
from fairlead.model.gpu import GPU, Inventory, MIGDevice, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.wire.kubernetes import gpudevice


def gpu(index: int, **more: Any) -> GPU:
    """Return the GPU at an index. Args: more: fields of `GPU` that matter to the test."""
    usual = {"uuid": GPUUUID(f"GPU-{index}"), "minor": index, "pci_bus_id": f"0000:{index:02}:00.0"}
    return GPU(**{"index": index, "name": "X", "memory_bytes": 1, **usual, **more})


def part(index: int, profile: str = "1g.10gb", **more: Any) -> MIGDevice:
    """Return the MIG device at an index of its GPU. Args: more: fields of `MIGDevice` that matter to the test."""
    usual = {"uuid": MIGUUID(f"MIG-{index}"), "gpu_instance": index, "compute_instance": 0, "memory_bytes": 1}
    where = {"placement_start": None, "placement_size": None}
    return MIGDevice(**{"index": index, "profile": profile, **usual, **where, **more})


def driven(count: int) -> tuple[Inventory, tuple[DriverFiles, ...]]:
    """Return a machine with so many GPUs and a driver that has a node for each."""
    nodes = tuple(
        DeviceNode(path=f"/dev/nvidia{i}", host_path=f"/dev/nvidia{i}", major=195, minor=i, mode=0o666)
        for i in range(count)
    )
    found = DriverFiles(vendor=Vendor.NVIDIA, version="550.163.01", nodes=nodes)
    return Inventory(gpus=tuple(gpu(i) for i in range(count))), (found,)


def spec(node: str, index: int, **more: Any) -> gpudevice.GPUDeviceSpec:
    """Return the spec of the GPUDevice at an index. Args: more: fields that matter to the test."""
    usual = {"node_name": node, "minor": index, "uuid": f"GPU-{index}", "vendor": "nvidia", "memory": "81559Mi"}
    return gpudevice.GPUDeviceSpec(**{"index": index, "product": "H100", "simulated": True, **usual, **more})

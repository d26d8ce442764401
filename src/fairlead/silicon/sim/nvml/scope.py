"""Resolves handles to simulated state: which GPU, MIG device or instance a call is about, and whether it answers.

A lost GPU answers GPU_IS_LOST to every call about it, a slow one after its time; a handle of an instance that was
destroyed names nothing any more. Functions of this package take the machine first, then the C arguments.
"""

from __future__ import annotations

from typing import Any

from fairlead.silicon.sim import machine, partition
from fairlead.silicon.sim.nvml import abi


def touch(host: machine.Machine, index: int) -> machine.GPUState:
    """Return one GPU, as slow as it is.

    Raises:  RefusedError: no such index, or the GPU is lost.
    """
    if not 0 <= index < len(host.gpus):
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    gpu = host.gpus[index]
    host.stall(gpu)
    if gpu.is_lost:
        raise abi.RefusedError(abi.GPU_IS_LOST)
    return gpu


def gpu_of(host: machine.Machine, handle: Any) -> machine.GPUState:
    """Return the GPU of a GPU's or MIG device's handle."""
    kind, index, _, _ = abi.parts_of(handle)
    if kind not in (abi.Kind.GPU, abi.Kind.MIG):
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    return touch(host, index)


def whole_gpu_of(host: machine.Machine, handle: Any) -> machine.GPUState:
    """Return the GPU of a GPU's handle; a MIG device's is refused, as for board-level calls."""
    if abi.parts_of(handle)[0] is abi.Kind.MIG:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    return gpu_of(host, handle)


def mig_of(
    host: machine.Machine, handle: Any
) -> tuple[machine.GPUState, partition.GPUInstance, partition.ComputeInstance] | None:
    """Return a MIG device, or None where the handle is a whole GPU's."""
    kind, index, instance, compute = abi.parts_of(handle)
    if kind is not abi.Kind.MIG:
        return None
    gpu = touch(host, index)
    found = gpu.partition.instances.get(instance)
    if found is None or compute not in found.computes:
        raise abi.RefusedError(abi.NOT_FOUND)
    return gpu, found, found.computes[compute]


def instance_of(host: machine.Machine, handle: Any) -> tuple[machine.GPUState, partition.GPUInstance]:
    """Return the GPU instance a handle names, or that holds the compute instance it names."""
    kind, index, instance, _ = abi.parts_of(handle)
    if kind not in (abi.Kind.GPU_INSTANCE, abi.Kind.COMPUTE_INSTANCE):
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    gpu = touch(host, index)
    if instance not in gpu.partition.instances:
        raise abi.RefusedError(abi.NOT_FOUND)
    return gpu, gpu.partition.instances[instance]


def compute_of(
    host: machine.Machine, handle: Any
) -> tuple[machine.GPUState, partition.GPUInstance, partition.ComputeInstance]:
    """Return the compute instance a handle names."""
    kind, _, _, compute = abi.parts_of(handle)
    if kind is not abi.Kind.COMPUTE_INSTANCE:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    gpu, instance = instance_of(host, handle)
    if compute not in instance.computes:
        raise abi.RefusedError(abi.NOT_FOUND)
    return gpu, instance, instance.computes[compute]


def needs_mig(gpu: machine.GPUState) -> None:
    """Refuse as NVML does where MIG is not offered, or not on."""
    if not gpu.board.part.mig or not gpu.mig_enabled:
        raise abi.RefusedError(abi.NOT_SUPPORTED)


def list_mig(gpu: machine.GPUState) -> list[tuple[int, int]]:
    """Return (GPU instance, compute instance) of every MIG device, in index order."""
    return [
        (instance.id, compute)
        for _, instance in sorted(gpu.partition.instances.items())
        for compute in sorted(instance.computes)
    ]

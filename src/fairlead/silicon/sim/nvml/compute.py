"""Simulates NVML's calls that divide a GPU instance into compute instances."""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import machine, partition
from fairlead.silicon.sim.nvml import abi, mig, scope

_PROFILE_V2: Final = 0x2000088


def _kind(item: partition.GPUInstance, argument: Any) -> int:
    """The compute profile asked for; enum and id are the same numbers here."""
    if abi.number(argument) not in item.list_compute_profiles():
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    return abi.number(argument)


def _fill_profile(info: Any, item: partition.GPUInstance, kind: int) -> None:
    slices = partition.CI_PROFILES[kind]
    abi.fill(
        info,
        id=kind,
        sliceCount=slices,
        instanceCount=item.row.slices // slices,
        multiprocessorCount=item.row.multiprocessors * slices // item.row.slices,
        sharedCopyEngineCount=item.row.slices,
        sharedDecoderCount=item.row.size // 2,
        sharedEncoderCount=0,
        sharedJpegCount=int(item.row.takes_media),
        sharedOfaCount=int(item.row.takes_media),
    )


def _check_engine(engine: Any) -> None:
    if abi.number(engine) != 0:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)


def nvmlGpuInstanceGetComputeInstanceProfileInfo(
    host: machine.Machine, handle: Any, kind: Any, engine: Any, info: Any
) -> None:
    _check_engine(engine)
    _, item = scope.instance_of(host, handle)
    _fill_profile(info, item, _kind(item, kind))


def nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    host: machine.Machine, handle: Any, kind: Any, engine: Any, info: Any
) -> None:
    _check_engine(engine)
    _, item = scope.instance_of(host, handle)
    if abi.target(info).version != _PROFILE_V2:
        raise abi.RefusedError(abi.ARGUMENT_VERSION_MISMATCH)
    chosen = _kind(item, kind)
    _fill_profile(info, item, chosen)
    slices = partition.CI_PROFILES[chosen]
    name = item.row.name if slices == item.row.slices else f"{slices}c.{item.row.name}"
    abi.fill(info, name=f"MIG {name}".encode())


def nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    host: machine.Machine, handle: Any, kind: Any, count: Any
) -> None:
    _, item = scope.instance_of(host, handle)
    abi.put(count, len(item.list_free_compute_starts(_kind(item, kind))))


def nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    host: machine.Machine, handle: Any, kind: Any, placements: Any, count: Any
) -> None:
    _, item = scope.instance_of(host, handle)
    chosen = _kind(item, kind)
    mig.put_placements(placements, count, item.list_compute_starts(chosen), partition.CI_PROFILES[chosen])


def nvmlGpuInstanceCreateComputeInstance(host: machine.Machine, handle: Any, kind: Any, instance: Any) -> None:
    _create(host, handle, kind, None, instance)


def nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    host: machine.Machine, handle: Any, kind: Any, placement: Any, instance: Any
) -> None:
    _, item = scope.instance_of(host, handle)
    wanted, chosen = abi.target(placement), _kind(item, kind)
    if wanted.size != partition.CI_PROFILES[chosen] or wanted.start not in item.list_compute_starts(chosen):
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    _create(host, handle, kind, int(wanted.start), instance)


def _create(host: machine.Machine, handle: Any, kind: Any, start: int | None, instance: Any) -> None:
    gpu, item = scope.instance_of(host, handle)
    try:
        made = item.create_compute(_kind(item, kind), start)
    except partition.NoRoomError:
        raise abi.RefusedError(abi.INSUFFICIENT_RESOURCES) from None
    abi.put_handle(instance, abi.Kind.COMPUTE_INSTANCE, gpu.board.index, item.id, made.id)
    host.layout_changed(gpu)


def nvmlComputeInstanceDestroy(host: machine.Machine, handle: Any) -> None:
    gpu, item, made = scope.compute_of(host, handle)
    if host.is_busy(gpu, item.id, made.id):
        raise abi.RefusedError(abi.IN_USE)
    del item.computes[made.id]
    host.layout_changed(gpu)


def nvmlGpuInstanceGetComputeInstances(host: machine.Machine, handle: Any, kind: Any, array: Any, count: Any) -> None:
    gpu, item = scope.instance_of(host, handle)
    wanted = _kind(item, kind)
    found = [number for number, made in sorted(item.computes.items()) if made.profile == wanted]
    for place, number in enumerate(found):
        abi.put_handle_at(array, place, abi.Kind.COMPUTE_INSTANCE, gpu.board.index, item.id, number)
    abi.put(count, len(found))


def nvmlGpuInstanceGetComputeInstanceById(host: machine.Machine, handle: Any, number: Any, instance: Any) -> None:
    gpu, item = scope.instance_of(host, handle)
    if abi.number(number) not in item.computes:
        raise abi.RefusedError(abi.NOT_FOUND)
    abi.put_handle(instance, abi.Kind.COMPUTE_INSTANCE, gpu.board.index, item.id, abi.number(number))


def nvmlComputeInstanceGetInfo_v2(host: machine.Machine, handle: Any, info: Any) -> None:
    gpu, item, made = scope.compute_of(host, handle)
    abi.fill_handle(info, "device", abi.Kind.GPU, gpu.board.index)
    abi.fill_handle(info, "gpuInstance", abi.Kind.GPU_INSTANCE, gpu.board.index, item.id)
    abi.fill(info, id=made.id, profileId=made.profile)
    placement = abi.target(info).placement
    placement.start, placement.size = made.start, made.slices

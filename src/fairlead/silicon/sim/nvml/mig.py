"""Simulates NVML's calls that partition a GPU: mode, GPU instances, and the devices programs see.

Rules of placement live in `sim.partition`; compute instances have their own module.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import machine, partition, profile
from fairlead.silicon.sim.nvml import abi, scope

_PROFILE_V2: Final = 0x2000098
_MAX_DEVICES: Final = 7
_FIRST_WITHOUT_RESET: Final = (9, 0)
"""Compute capability from which a mode counts without a reset. Source: NVIDIA MIG User Guide, "Enable MIG Mode"."""
_WHOLE: Final = 7
"""Compute slices of a profile that takes the whole GPU."""


def nvmlDeviceGetMigMode(host: machine.Machine, device: Any, current: Any, pending: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    if not gpu.board.part.mig:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    abi.put(current, int(gpu.mig_enabled))
    abi.put(pending, int(gpu.mig_enabled if gpu.mig_pending is None else gpu.mig_pending))


def nvmlDeviceSetMigMode(host: machine.Machine, device: Any, mode: Any, activation: Any) -> None:
    """Switch at once from Hopper on; before, and under processes, the mode is pending until a reset."""
    gpu = scope.whole_gpu_of(host, device)
    if not gpu.board.part.mig:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    if abi.number(mode) not in (0, 1):
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    wanted = bool(abi.number(mode))
    if gpu.partition.instances and not wanted:
        raise abi.RefusedError(abi.IN_USE)
    before = gpu.mig_enabled, gpu.mig_pending
    code = abi.SUCCESS
    gpu.mig_pending = None
    if wanted != gpu.mig_enabled:
        if host.is_busy(gpu):
            code, gpu.mig_pending = abi.IN_USE, wanted
        elif gpu.board.part.compute_capability < _FIRST_WITHOUT_RESET:
            code, gpu.mig_pending = abi.RESET_REQUIRED, wanted
        else:
            gpu.mig_enabled = wanted
    abi.put(activation, code)
    if (gpu.mig_enabled, gpu.mig_pending) != before:
        host.layout_changed(gpu)


def _row(gpu: machine.GPUState, *, enum: int | None = None, row_id: int | None = None) -> profile.MIGRow:
    for row in gpu.board.part.mig:
        if enum in (None, row.enum) and row_id in (None, row.id):
            return row
    raise abi.RefusedError(abi.NOT_SUPPORTED)


def _engines(row: profile.MIGRow, part: profile.Part) -> dict[str, int]:
    """Return how many engines a GPU instance has.

    Source: for Hopper what an H100 said (tests/data/gpu); for Ampere NVIDIA MIG User Guide, "Supported MIG Profiles".
    """
    if part.compute_capability < _FIRST_WITHOUT_RESET:
        media = int(row.takes_media)
        decoders = row.size // 2 if row.size > 1 else media
        return {"copyEngineCount": row.slices, "decoderCount": decoders, "jpegCount": media, "ofaCount": media}
    is_whole = row.slices == _WHOLE
    return {
        "copyEngineCount": row.slices + is_whole,
        "decoderCount": row.slices,
        "jpegCount": row.slices,
        "ofaCount": int(is_whole or row.takes_media),
    }


def _fill_profile(info: Any, row: profile.MIGRow, part: profile.Part) -> None:
    abi.fill(
        info,
        id=row.id,
        isP2pSupported=0,
        sliceCount=row.slices,
        instanceCount=row.limit,
        multiprocessorCount=row.multiprocessors,
        encoderCount=0,
        **_engines(row, part),
        memorySizeMB=row.memory_mib,
    )


def nvmlDeviceGetGpuInstanceProfileInfo(host: machine.Machine, device: Any, kind: Any, info: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    _fill_profile(info, _row(gpu, enum=abi.number(kind)), gpu.board.part)


def _fill_profile_v2(info: Any, row: profile.MIGRow, part: profile.Part) -> None:
    if abi.target(info).version != _PROFILE_V2:
        raise abi.RefusedError(abi.ARGUMENT_VERSION_MISMATCH)
    _fill_profile(info, row, part)
    abi.fill(info, name=f"MIG {row.name}".encode())


def nvmlDeviceGetGpuInstanceProfileInfoV(host: machine.Machine, device: Any, kind: Any, info: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    _fill_profile_v2(info, _row(gpu, enum=abi.number(kind)), gpu.board.part)


def nvmlDeviceGetGpuInstanceProfileInfoByIdV(host: machine.Machine, device: Any, row_id: Any, info: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    _fill_profile_v2(info, _row(gpu, row_id=abi.number(row_id)), gpu.board.part)


def nvmlDeviceGetGpuInstanceRemainingCapacity(host: machine.Machine, device: Any, row_id: Any, count: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    scope.needs_mig(gpu)
    abi.put(count, gpu.partition.remaining(_row(gpu, row_id=abi.number(row_id))))


def nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    host: machine.Machine, device: Any, row_id: Any, placements: Any, count: Any
) -> None:
    """All placements of the profile on this part, taken or not; with a NULL array only their number."""
    row = _row(scope.whole_gpu_of(host, device), row_id=abi.number(row_id))
    put_placements(placements, count, list(row.starts), row.size)


def put_placements(placements: Any, count: Any, starts: list[int], size: int) -> None:
    """Store placements and their number; the array must be long enough, or NULL to ask for the number."""
    if placements is not None:
        if abi.target(count).value < len(starts):
            raise abi.RefusedError(abi.INSUFFICIENT_SIZE)
        array = abi.target(placements)
        for place, start in enumerate(starts):
            array[place].start, array[place].size = start, size
    abi.put(count, len(starts))


def nvmlDeviceCreateGpuInstance(host: machine.Machine, device: Any, row_id: Any, instance: Any) -> None:
    _create(host, device, row_id, None, instance)


def nvmlDeviceCreateGpuInstanceWithPlacement(
    host: machine.Machine, device: Any, row_id: Any, placement: Any, instance: Any
) -> None:
    wanted = abi.target(placement)
    row = _row(scope.whole_gpu_of(host, device), row_id=abi.number(row_id))
    if wanted.size != row.size or wanted.start not in row.starts:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    _create(host, device, row_id, int(wanted.start), instance)


def _create(host: machine.Machine, device: Any, row_id: Any, start: int | None, instance: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    scope.needs_mig(gpu)
    try:
        item = gpu.partition.create(_row(gpu, row_id=abi.number(row_id)), start)
    except partition.NoRoomError:
        raise abi.RefusedError(abi.INSUFFICIENT_RESOURCES) from None
    abi.put_handle(instance, abi.Kind.GPU_INSTANCE, gpu.board.index, item.id)
    host.layout_changed(gpu)


def nvmlGpuInstanceDestroy(host: machine.Machine, handle: Any) -> None:
    gpu, item = scope.instance_of(host, handle)
    try:
        gpu.partition.destroy(item.id)
    except partition.InUseError:
        raise abi.RefusedError(abi.IN_USE) from None
    host.layout_changed(gpu)


def nvmlDeviceGetGpuInstances(host: machine.Machine, device: Any, row_id: Any, array: Any, count: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    scope.needs_mig(gpu)
    wanted = _row(gpu, row_id=abi.number(row_id)).id
    found = [item.id for _, item in sorted(gpu.partition.instances.items()) if item.row.id == wanted]
    for place, number in enumerate(found):
        abi.put_handle_at(array, place, abi.Kind.GPU_INSTANCE, gpu.board.index, number)
    abi.put(count, len(found))


def nvmlDeviceGetGpuInstanceById(host: machine.Machine, device: Any, number: Any, instance: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    scope.needs_mig(gpu)
    if abi.number(number) not in gpu.partition.instances:
        raise abi.RefusedError(abi.NOT_FOUND)
    abi.put_handle(instance, abi.Kind.GPU_INSTANCE, gpu.board.index, abi.number(number))


def nvmlGpuInstanceGetInfo(host: machine.Machine, handle: Any, info: Any) -> None:
    gpu, item = scope.instance_of(host, handle)
    abi.fill_handle(info, "device", abi.Kind.GPU, gpu.board.index)
    abi.fill(info, id=item.id, profileId=item.row.id)
    placement = abi.target(info).placement
    placement.start, placement.size = item.start, item.row.size


def nvmlDeviceGetComputeRunningProcesses_v3(host: machine.Machine, device: Any, count: Any, array: Any) -> None:
    """Say that one process runs on a device that is held; with a NULL array only their number."""
    gpu, found = scope.gpu_of(host, device), scope.mig_of(host, device)
    is_busy = host.is_busy(gpu, found[1].id, found[2].id) if found else host.is_busy(gpu)
    if not is_busy:
        abi.put(count, 0)
        return
    if array is None:
        abi.put(count, 1)
        raise abi.RefusedError(abi.INSUFFICIENT_SIZE)
    entry = abi.target(array)[0]
    entry.pid, entry.usedGpuMemory = 1, 0
    entry.gpuInstanceId = found[1].id if found else machine.WHOLE_GPU
    entry.computeInstanceId = found[2].id if found else machine.WHOLE_GPU
    abi.put(count, 1)


def nvmlDeviceGetGraphicsRunningProcesses_v3(host: machine.Machine, device: Any, count: Any, _array: Any) -> None:
    """Nothing draws on a simulated GPU."""
    scope.gpu_of(host, device)
    abi.put(count, 0)


def nvmlDeviceIsMigDeviceHandle(_host: machine.Machine, device: Any, answer: Any) -> None:
    abi.put(answer, int(abi.parts_of(device)[0] is abi.Kind.MIG))


def nvmlDeviceGetMaxMigDeviceCount(host: machine.Machine, device: Any, count: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    abi.put(count, _MAX_DEVICES if gpu.board.part.mig else 0)


def nvmlDeviceGetMigDeviceHandleByIndex(host: machine.Machine, device: Any, index: Any, handle: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    scope.needs_mig(gpu)
    devices = scope.list_mig(gpu)
    if not 0 <= abi.number(index) < len(devices):
        raise abi.RefusedError(abi.NOT_FOUND)
    abi.put_handle(handle, abi.Kind.MIG, gpu.board.index, *devices[abi.number(index)])


def _mig(
    host: machine.Machine, device: Any
) -> tuple[machine.GPUState, partition.GPUInstance, partition.ComputeInstance]:
    found = scope.mig_of(host, device)
    if found is None:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    return found


def nvmlDeviceGetGpuInstanceId(host: machine.Machine, device: Any, number: Any) -> None:
    abi.put(number, _mig(host, device)[1].id)


def nvmlDeviceGetComputeInstanceId(host: machine.Machine, device: Any, number: Any) -> None:
    abi.put(number, _mig(host, device)[2].id)


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(host: machine.Machine, device: Any, parent: Any) -> None:
    abi.put_handle(parent, abi.Kind.GPU, _mig(host, device)[0].board.index)


def nvmlDeviceGetAttributes_v2(host: machine.Machine, device: Any, attributes: Any) -> None:
    _, instance, compute = _mig(host, device)
    row = instance.row
    abi.fill(
        attributes,
        multiprocessorCount=row.multiprocessors * compute.slices // row.slices,
        sharedCopyEngineCount=row.slices,
        sharedDecoderCount=row.size // 2 if row.size > 1 else int(row.takes_media),
        sharedEncoderCount=0,
        sharedJpegCount=int(row.takes_media),
        sharedOfaCount=int(row.takes_media),
        gpuInstanceSliceCount=row.slices,
        computeInstanceSliceCount=compute.slices,
        memorySizeMB=row.memory_mib,
    )

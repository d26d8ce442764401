"""Implements the Partitioner port through NVML: MIG mode, GPU instances, compute instances.

Profiles and placements are what NVML says of this GPU, with MIG on or off; names come from NVML where its release gives
them and are composed of slices and memory where it does not. NVML resets nothing: that is nvidia-smi's, and it refuses
while any program has the GPU's files open, ours too, so the caller's `reset` lets go of the library first.
Source: nvml.h, "Multi Instance GPU Management".
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from fairlead import command, errors
from fairlead.model.gpu import MIGEngines
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.mig import ComputeInstance, GPUInstance, MIGProfile, Partition, Slot
from fairlead.silicon.nvidia import asynccalls, binding, gpureader
from fairlead.silicon.nvidia.files import library
from fairlead.silicon.pci import pci

T = TypeVar("T")
Reset = Callable[[str, str], Awaitable[None]]
"""Resets a GPU, given its UUID and its PCI address."""

_LONGEST_CALL_S: Final = 60.0
_RESET_S: Final = 180.0
_IN_USE, _NO_PERMISSION, _NOT_SUPPORTED, _NOT_FOUND, _NO_RESOURCES = 19, 4, 3, 6, 23
_MEDIA: Final = "+me"
_VARIANTS: Final = {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 17: "+gfx", 13: "-me", 14: "-me"} | {
    15: "+me.all",
    16: "+me.all",
}
"""NVML_GPU_INSTANCE_PROFILE_* → end of the name, for a driver that does not name its profiles."""


class NVMLPartitioner:
    """Changes partitions by NVML's calls, each in the thread of its GPU."""

    def __init__(
        self,
        open_binding: Callable[[], binding.Binding],
        *,
        threads: asynccalls.AsyncCallThreads,
        call_timeout_s: float,
        reset: Reset,
        turn: asyncio.Lock,
    ) -> None:
        """Take how to call. Args: turn: of one silicon: threads refuse a second call while one runs."""
        self._turn = turn
        self._open = open_binding
        self._threads = threads
        self._timeout_s = max(call_timeout_s, _LONGEST_CALL_S)
        self._reset = reset

    async def list_partitions(self) -> tuple[Partition, ...]:
        """Read every GPU; see the port."""
        async with self._turn:
            nvml = await self._threads.run("partition library", self._open, timeout_s=self._timeout_s)
            try:
                count = await self._threads.run("partition", nvml.nvml.nvmlDeviceGetCount, timeout_s=self._timeout_s)
            except nvml.error as error:
                raise binding.start_error(error) from error
        calls = {f"partition gpu{index}": functools.partial(read_partition, nvml, index) for index in range(count)}
        async with self._turn:
            answers = await self._threads.run_all(calls, timeout_s=self._timeout_s)
        return tuple(_partition(index, answer, nvml) for index, answer in enumerate(answers.values()))

    async def read_partition(self, gpu: GPUUUID) -> Partition:
        """Read one GPU; see the port."""
        return await self._call(gpu, "read MIG", _read_one)

    async def set_mode(self, gpu: GPUUUID, *, is_enabled: bool) -> bool:
        """Switch MIG; see the port."""

        def call(nvml: binding.Binding, handle: Any) -> bool:
            nvml.nvml.nvmlDeviceSetMigMode(handle, int(is_enabled))
            current, pending = nvml.nvml.nvmlDeviceGetMigMode(handle)
            return bool(current != pending)

        return await self._call(gpu, f"switch MIG {'on' if is_enabled else 'off'}", call)

    async def reset(self, gpu: GPUUUID) -> None:
        """Reset one GPU; see the port."""
        address = await self._call(
            gpu, "find", lambda nvml, handle: pci.normalise(nvml.nvml.nvmlDeviceGetPciInfo(handle).busId)
        )
        await self._reset(gpu, address)

    async def create_instance(self, gpu: GPUUUID, slot: Slot) -> int:
        """Create a GPU instance; see the port."""

        def call(nvml: binding.Binding, handle: Any) -> int:
            found = next((one for one in list_profiles(nvml, handle) if one.name == slot.profile), None)
            if found is None:
                raise errors.Invalid(f"the GPU does not offer {slot.profile}", reason="MIGNotSupported")
            place = nvml.nvml.c_nvmlGpuInstancePlacement_t(start=slot.start, size=found.size)
            made = nvml.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, found.id, ctypes.byref(place))
            return int(nvml.nvml.nvmlGpuInstanceGetInfo(made).id)

        return await self._call(gpu, f"create GPU instance {slot}", call)

    async def create_compute(self, gpu: GPUUUID, instance: int, slices: int) -> None:
        """Create a compute instance; see the port."""

        def call(nvml: binding.Binding, handle: Any) -> None:
            whole = nvml.nvml.nvmlDeviceGetGpuInstanceById(handle, instance)
            found = next((info for info in _compute_profiles(nvml, whole) if info.sliceCount == slices), None)
            if found is None:
                message = f"GPU instance {instance} offers no compute instance of {slices} slices"
                raise errors.Invalid(message, reason="MIGNotSupported")
            nvml.nvml.nvmlGpuInstanceCreateComputeInstance(whole, found.id)

        await self._call(gpu, f"create compute instance of {slices} slices in {instance}", call)

    async def destroy_instance(self, gpu: GPUUUID, instance: int) -> None:
        """Destroy a GPU instance; see the port."""

        def call(nvml: binding.Binding, handle: Any) -> None:
            nvml.nvml.nvmlGpuInstanceDestroy(nvml.nvml.nvmlDeviceGetGpuInstanceById(handle, instance))

        await self._call(gpu, f"destroy GPU instance {instance}", call)

    async def destroy_compute(self, gpu: GPUUUID, instance: int, compute: int) -> None:
        """Destroy a compute instance; see the port."""

        def call(nvml: binding.Binding, handle: Any) -> None:
            whole = nvml.nvml.nvmlDeviceGetGpuInstanceById(handle, instance)
            nvml.nvml.nvmlComputeInstanceDestroy(nvml.nvml.nvmlGpuInstanceGetComputeInstanceById(whole, compute))

        await self._call(gpu, f"destroy compute instance {instance}/{compute}", call)

    async def _call(self, gpu: GPUUUID, what: str, call: Callable[[binding.Binding, Any], T]) -> T:
        """Run one call about one GPU in its thread; NVML's errors come out translated."""
        run = binding.gpu_call(self._open, gpu, call, lambda error: _translated(error, f"{what} on {gpu}"))
        async with self._turn:
            return await self._threads.run(f"partition {gpu}", run, timeout_s=self._timeout_s)


def _translated(error: Exception, what: str) -> errors.FairleadError:
    code, message = binding.code_of(error), f"cannot {what}: {error}"
    if code == _IN_USE:
        return errors.Conflict(message, reason="MIGInUse", hint="stop what runs on it first")
    if code == _NO_RESOURCES:
        return errors.Insufficient(message, reason="MIGNoPlacement", hint="the place is taken, or nothing is left")
    if code == _NOT_SUPPORTED:
        return errors.Invalid(message, reason="MIGNotSupported", hint="the GPU has no MIG, or its mode is off")
    if code == _NOT_FOUND:
        return errors.NotFound(message, reason="MIGInstanceGone", hint="the partition has changed: look again")
    if code == _NO_PERMISSION:
        return errors.Unavailable(message, reason="DriverNoPermission", hint="run as root")
    return binding.gpu_error(error)


def _partition(index: int, answer: Partition | Exception, nvml: binding.Binding) -> Partition:
    if isinstance(answer, Partition):
        return answer
    if isinstance(answer, (nvml.error, errors.DeviceFault)):
        problem = errors.sentence(binding.gpu_error(answer))
        return Partition(
            gpu=GPUUUID(f"unreadable-{index}"),
            index=index,
            name="",
            pci_bus_id="",
            device_filter="0x0",
            problem=problem,
        )
    raise answer


def read_partition(nvml: binding.Binding, index: int) -> Partition:
    """Read one GPU; blocking. Raises: NVMLError: it does not answer."""
    return _read(nvml, nvml.nvml.nvmlDeviceGetHandleByIndex(index), index)


def _read_one(nvml: binding.Binding, handle: Any) -> Partition:
    return _read(nvml, handle, int(nvml.nvml.nvmlDeviceGetIndex(handle)))


def _read(nvml: binding.Binding, handle: Any, index: int) -> Partition:
    api = nvml.nvml
    address = api.nvmlDeviceGetPciInfo(handle)
    mode = nvml.reading("nvmlDeviceGetMigMode", handle)
    profiles = tuple(list_profiles(nvml, handle)) if mode else ()
    is_enabled = bool(mode and mode[0])
    uuids = dict(_devices(nvml, handle)) if is_enabled else {}
    instances = [
        _instance(nvml, whole, profile, uuids)
        for profile in profiles
        for whole in (_list_instances(nvml, handle, profile) if is_enabled else ())
    ]
    device, subsystem = int(address.pciDeviceId), int(address.pciSubSystemId)
    return Partition(
        gpu=GPUUUID(api.nvmlDeviceGetUUID(handle)),
        index=index,
        name=api.nvmlDeviceGetName(handle),
        pci_bus_id=pci.normalise(address.busId),
        device_filter=f"0x{device:08X}" + (f":0x{subsystem:08X}" if subsystem else ""),
        profiles=profiles,
        is_enabled=is_enabled,
        is_pending=bool(mode and mode[1]),
        instances=tuple(sorted(instances, key=lambda one: (one.start, one.id))),
        is_busy=_is_busy(nvml, handle),
    )


def list_profiles(nvml: binding.Binding, handle: Any) -> Iterator[MIGProfile]:
    """Yield the GPU instance profiles that a GPU offers, in NVML's order."""
    memory = nvml.reading("nvmlDeviceGetMemoryInfo", handle)
    for kind in range(nvml.nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(nvml, handle, kind)
        starts, size = _placements(nvml, handle, int(info.id)) if info is not None else ((), 0)
        if not starts:
            continue
        told = str(getattr(info, "name", "")).removeprefix("MIG ").strip()
        composed = gpureader.compose_profile(info.sliceCount, info.memorySizeMB, int(memory.total) if memory else 0)
        name = told or composed + _VARIANTS.get(kind, "")
        yield MIGProfile(
            id=int(info.id),
            name=name,
            slices=int(info.sliceCount),
            size=size,
            starts=starts,
            limit=int(info.instanceCount),
            memory_mib=int(info.memorySizeMB),
            takes_media=_MEDIA in name,
            engines=_engines(info),
        )


def _engines(info: Any) -> MIGEngines:
    slices = int(info.sliceCount)
    return MIGEngines(
        multiprocessors=int(info.multiprocessorCount),
        instance_slices=slices,
        slices=slices,
        copy=int(info.copyEngineCount),
        decoder=int(info.decoderCount),
        encoder=int(info.encoderCount),
        jpeg=int(info.jpegCount),
        ofa=int(info.ofaCount),
    )


def _profile_info(nvml: binding.Binding, handle: Any, kind: int) -> Any:
    with contextlib.suppress(nvml.error):  # a release without the second form, or a kind that it does not know
        return nvml.nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, kind, version=2)
    return nvml.reading("nvmlDeviceGetGpuInstanceProfileInfo", handle, kind, 1)


def _placements(nvml: binding.Binding, handle: Any, profile: int) -> tuple[tuple[int, ...], int]:
    """Return the starts of a profile and its memory slices; none where the driver does not report them."""
    api, count = nvml.nvml, ctypes.c_uint(0)
    if nvml.reading("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile, None, ctypes.byref(count)) is None:
        return (), 0
    places = (api.c_nvmlGpuInstancePlacement_t * count.value)()
    api.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, ctypes.byref(count))
    found = list(places)[: count.value]
    return tuple(sorted(int(one.start) for one in found)), max((int(one.size) for one in found), default=0)


def _list_instances(nvml: binding.Binding, handle: Any, profile: MIGProfile) -> list[Any]:
    api, count = nvml.nvml, ctypes.c_uint(0)
    array = (api.c_nvmlGpuInstance_t * max(profile.limit, len(profile.starts)))()
    api.nvmlDeviceGetGpuInstances(handle, profile.id, array, ctypes.byref(count))
    return list(array)[: count.value]


def _instance(
    nvml: binding.Binding, whole: Any, profile: MIGProfile, uuids: dict[tuple[int, int], tuple[MIGUUID, bool]]
) -> GPUInstance:
    info = nvml.nvml.nvmlGpuInstanceGetInfo(whole)
    number = int(info.id)
    computes: dict[int, ComputeInstance] = {}
    for kind in _compute_profiles(nvml, whole):
        for each in _list_computes(nvml, whole, kind):
            own = int(nvml.nvml.nvmlComputeInstanceGetInfo(each).id)
            uuid, is_busy = uuids.get((number, own), (None, False))
            computes[own] = ComputeInstance(id=own, slices=int(kind.sliceCount), uuid=uuid, is_busy=is_busy)
    ordered = tuple(one for _, one in sorted(computes.items()))
    return GPUInstance(id=number, profile=profile.name, start=int(info.placement.start), computes=ordered)


def _compute_profiles(nvml: binding.Binding, whole: Any) -> Iterator[Any]:
    for kind in range(nvml.nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = nvml.reading("nvmlGpuInstanceGetComputeInstanceProfileInfo", whole, kind, 0, 1)
        if info is not None:
            yield info


def _list_computes(nvml: binding.Binding, whole: Any, kind: Any) -> list[Any]:
    api, count = nvml.nvml, ctypes.c_uint(0)
    array = (api.c_nvmlComputeInstance_t * max(int(kind.instanceCount), 8))()
    api.nvmlGpuInstanceGetComputeInstances(whole, kind.id, array, ctypes.byref(count))
    return list(array)[: count.value]


def _devices(nvml: binding.Binding, handle: Any) -> Iterator[tuple[tuple[int, int], tuple[MIGUUID, bool]]]:
    """Yield the MIG devices by GPU and compute instance, each with whether processes run on it."""
    for index in range(nvml.reading("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = nvml.reading("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if device is not None:
            place = nvml.nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvml.nvmlDeviceGetComputeInstanceId(device)
            yield place, (MIGUUID(nvml.nvml.nvmlDeviceGetUUID(device)), _is_busy(nvml, device))


def _is_busy(nvml: binding.Binding, device: Any) -> bool:
    calls = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"
    return any(nvml.reading(name, device) for name in calls)


def smi_reset(root: Path, driver_root: Path) -> Reset:
    """Return the reset by the driver's own nvidia-smi, below the roots."""

    async def reset(_: str, pci_bus_id: str) -> None:
        path = library.base_of(root, driver_root) / "usr/bin/nvidia-smi"
        argv = [str(path if path.exists() else "nvidia-smi"), "--gpu-reset", "-i", pci_bus_id]
        done = await command.run(argv, env=command.base_env(), timeout_s=_RESET_S)
        if done.code:
            said = done.last_line or next(iter(done.stdout.decode(errors="replace").splitlines()[-1:]), "")
            message = f"nvidia-smi did not reset the GPU at {pci_bus_id}: {said or f'exit code {done.code}'}"
            hint = "stop every program that has the GPU open (lsof /dev/nvidia*), or reboot"
            raise errors.Conflict(message, reason="MIGInUse", hint=hint)

    return reset

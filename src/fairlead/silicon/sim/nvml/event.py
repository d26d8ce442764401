"""Simulates NVML's event sets: what a caller listens for, and the wait that delivers it."""

from __future__ import annotations

from typing import Any

from fairlead.silicon.sim import machine
from fairlead.silicon.sim.nvml import abi, scope


def nvmlEventSetCreate(host: machine.Machine, pointer: Any) -> None:
    number = max(host.event_sets, default=0) + 1
    host.event_sets[number] = machine.EventSet()
    abi.put_handle(pointer, abi.Kind.EVENT_SET, number)


def _set_of(host: machine.Machine, handle: Any) -> tuple[int, machine.EventSet]:
    kind, number, _, _ = abi.parts_of(handle)
    if kind is not abi.Kind.EVENT_SET or number not in host.event_sets:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    return number, host.event_sets[number]


def nvmlDeviceGetSupportedEventTypes(host: machine.Machine, handle: Any, types: Any) -> None:
    scope.whole_gpu_of(host, handle)
    abi.put(types, machine.SUPPORTED_EVENTS)


def nvmlDeviceRegisterEvents(host: machine.Machine, handle: Any, types: Any, event_set: Any) -> None:
    gpu = scope.whole_gpu_of(host, handle)
    if abi.number(types) & ~machine.SUPPORTED_EVENTS:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    _set_of(host, event_set)[1].masks[gpu.board.index] = abi.number(types)


def nvmlEventSetFree(host: machine.Machine, handle: Any) -> None:
    number, item = _set_of(host, handle)
    item.is_freed = True
    del host.event_sets[number]
    host.changed.notify_all()


def nvmlEventSetWait_v2(host: machine.Machine, handle: Any, data: Any, timeout: Any) -> None:
    """Queued events first; then, like the real driver, an error at once for as long as a listened-to GPU is lost."""
    _, item = _set_of(host, handle)
    host.changed.wait_for(lambda: _has_news(host, item), timeout=abi.number(timeout) / 1000)
    if host.is_closed or item.is_freed:
        raise abi.RefusedError(abi.UNINITIALIZED)
    if host.wait_errors:
        host.wait_errors -= 1
        raise abi.RefusedError(abi.UNKNOWN)
    if not item.queue:
        raise abi.RefusedError(abi.GPU_IS_LOST if _is_lost(host, item) else abi.TIMEOUT)
    event = item.queue.popleft()
    abi.fill_handle(data, "device", abi.Kind.GPU, event.gpu)
    abi.fill(
        data,
        eventType=event.type,
        eventData=event.data,
        gpuInstanceId=event.gpu_instance,
        computeInstanceId=event.compute_instance,
    )


def _is_lost(host: machine.Machine, item: machine.EventSet) -> bool:
    return any(host.gpus[index].is_lost for index in item.masks)


def _has_news(host: machine.Machine, item: machine.EventSet) -> bool:
    return bool(item.queue or item.is_freed or host.is_closed or host.wait_errors or _is_lost(host, item))

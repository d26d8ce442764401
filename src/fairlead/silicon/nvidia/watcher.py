"""Waits for driver events in a thread.

It registers every GPU that answers with one event set, waits, and hands on what comes. A wait that fails makes
it start over with a new set, without the GPUs that are lost, after a pause that doubles: an error that comes back at
once costs next to nothing. GPUs that did not answer are tried again from time to time. Registration runs in the GPU's
own thread, so a GPU that hangs is left out and the others are heard.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID
from fairlead.silicon import eventbus, knowngpus
from fairlead.silicon.nvidia import binding, callthread
from fairlead.silicon.pci import pci

_DOUBLE_BIT: Final = 0x02
_XID: Final = 0x08
_WANTED: Final = _DOUBLE_BIT | _XID | 0x100 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Double-bit ECC, XID, MIG change, poison, GPU unavailable, recovery action (nvmlEventType*)."""
_WHOLE_GPU: Final = 0xFFFFFFFF
_TIMEOUT: Final = 10
_GPU_IS_LOST: Final = 15
_WAIT_MS: Final = 1000
_BACKOFF_S: Final = (0.05, 5.0)


@dataclass(slots=True)
class _Set:
    """One registered event set."""

    handle: Any
    uuids: dict[int, GPUUUID] = field(default_factory=dict)
    """NVML device handle → GPU."""


class Watcher:
    """Owner of the event thread; `start` and `stop` may be called more than once."""

    def __init__(
        self,
        open_binding: Callable[[], binding.Binding],
        *,
        events: eventbus.EventBus,
        known: knowngpus.KnownGPUs,
        threads: callthread.CallThreads,
        call_timeout_s: float,
        probe_s: float,
    ) -> None:
        self._open = open_binding
        self._events, self._known, self._threads = events, known, threads
        self._call_timeout_s, self._probe_s = call_timeout_s, probe_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._complaint = ""
        self._is_held = False
        self._idle = threading.Event()
        """No event set is registered now."""
        self._idle.set()

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its current wait."""
        self._stop.set()

    def hold(self, timeout_s: float) -> bool:
        """Stop listening until `let_go`; returns whether the event set was freed within the time."""
        self._is_held = True
        return self._idle.wait(timeout_s)

    def let_go(self) -> None:
        """Listen again after `hold`."""
        self._is_held = False

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when a driver call still holds it."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        pauses = Backoff(first_s=_BACKOFF_S[0], last_s=_BACKOFF_S[1], jitter=0)
        while not self._stop.is_set():
            started = time.monotonic()
            if not self._is_held:
                self._idle.clear()
                try:
                    self._watch(self._open())
                except errors.FairleadError as error:
                    self._complain(error)
                finally:
                    self._idle.set()
            if time.monotonic() - started > _BACKOFF_S[1]:
                pauses.reset()
            self._stop.wait(pauses.next())

    def _complain(self, error: errors.FairleadError) -> None:
        """Log an error once, not at every retry; a lost GPU is not an error of the event source, LOST says it."""
        is_news = error.message != self._complaint and error.context.get("code") != _GPU_IS_LOST
        if is_news and not self._stop.is_set():
            self._complaint = error.message
            telemetry.log.warning("driver events not readable", reason=error.reason, error=error.message)

    def _watch(self, nvml: binding.Binding) -> None:
        """Register and wait until the set must be made anew; NVML's errors come out translated."""
        try:
            chosen = _Set(handle=nvml.nvml.nvmlEventSetCreate())
        except nvml.error as error:
            raise binding.start_error(error) from error
        try:
            self._register_all(nvml, chosen)
            self._events.listening()
            self._wait(nvml, chosen)
        except nvml.error as error:
            raise binding.start_error(error) from error
        finally:
            with contextlib.suppress(nvml.error):
                nvml.nvml.nvmlEventSetFree(chosen.handle)

    def _register_all(self, nvml: binding.Binding, chosen: _Set) -> None:
        for index in range(nvml.nvml.nvmlDeviceGetCount()):
            self._try_register(nvml, chosen, index)

    def _try_register(self, nvml: binding.Binding, chosen: _Set, index: int) -> None:
        """Register one GPU; one that is lost or hangs is noted and left out."""
        call = functools.partial(_register, nvml, chosen.handle, index)
        try:
            number, seen = self._threads.run_here(f"events{index}", call, timeout_s=self._call_timeout_s)
        except (nvml.error, errors.DeviceFault) as error:
            self._known.silent(index, binding.gpu_error(error).message)
            return
        chosen.uuids[number] = seen.uuid
        self._known.answered(index, seen)

    def _wait(self, nvml: binding.Binding, chosen: _Set) -> None:
        probe_at = time.monotonic() + self._probe_s
        while not self._stop.is_set() and not self._is_held:
            wait_ms = int(min(_WAIT_MS, self._probe_s * 1000)) if self._known.has_absent() else _WAIT_MS
            try:
                data = nvml.nvml.nvmlEventSetWait_v2(chosen.handle, wait_ms)
            except nvml.error as error:
                if binding.code_of(error) != _TIMEOUT:
                    raise
            else:
                self._events.publish(_translate(data, chosen))
            if time.monotonic() >= probe_at:
                self._probe(nvml, chosen)
                probe_at = time.monotonic() + self._probe_s

    def _probe(self, nvml: binding.Binding, chosen: _Set) -> None:
        """Try the GPUs again that did not answer."""
        if self._known.has_absent():
            for index in range(nvml.nvml.nvmlDeviceGetCount()):
                if self._known.is_absent(index):
                    self._try_register(nvml, chosen, index)


def _register(nvml: binding.Binding, event_set: Any, index: int) -> tuple[int, knowngpus.Seen]:
    """Register one GPU with an event set; a GPU without events is only looked at. Returns (handle, who it is)."""
    api = nvml.nvml
    handle = api.nvmlDeviceGetHandleByIndex(index)
    seen = knowngpus.Seen(
        uuid=GPUUUID(api.nvmlDeviceGetUUID(handle)), pci_bus_id=pci.normalise(api.nvmlDeviceGetPciInfo(handle).busId)
    )
    types = (nvml.reading("nvmlDeviceGetSupportedEventTypes", handle) or 0) & _WANTED
    if types:
        nvml.reading("nvmlDeviceRegisterEvents", handle, types, event_set)
    return _number(handle), seen


def _number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _translate(data: Any, chosen: _Set) -> GPUEvent:
    uuid = chosen.uuids.get(_number(data.device))
    kind, code = int(data.eventType), int(data.eventData)
    instance, compute = (None if n == _WHOLE_GPU else int(n) for n in (data.gpuInstanceId, data.computeInstanceId))
    if kind & _XID and uuid is not None:
        return GPUEvent(
            kind=EventKind.XID,
            uuid=uuid,
            xid=code,
            gpu_instance=instance,
            compute_instance=compute,
            message=f"xid {code}",
        )
    if kind & _DOUBLE_BIT and uuid is not None:
        return GPUEvent(kind=EventKind.ECC_DOUBLE_BIT, uuid=uuid, message="uncorrectable ecc error")
    return GPUEvent(kind=EventKind.CHANGED, uuid=uuid, message=f"driver event {kind:#x}")

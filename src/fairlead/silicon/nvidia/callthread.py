"""Runs driver calls that may hang in threads, away from everything else.

A driver call runs in a daemon thread of its lane (one lane a GPU, one for the library). A call that does not return in
time leaves its thread behind and its lane occupied: further calls on that lane fail at once, until the old one comes
back. So a hung GPU costs one thread, other lanes never notice, and a process can end while a call still hangs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from fairlead import errors

T = TypeVar("T")


class CallThreads:
    """Daemon threads, at most one a lane."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running: dict[str, concurrent.futures.Future[object]] = {}

    def submit(self, lane: str, call: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Start `call` in its own daemon thread.

        Returns: a future that ends with the call.
        Raises:  DeviceFault: an earlier call on this lane still hangs (reason `Timeout`).
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            if lane in self._running:
                raise hung(lane)
            self._running[lane] = future  # type: ignore[assignment] # futures are not covariant
        thread = threading.Thread(target=self._run, args=(lane, future, call), name=f"{self._name}-{lane}", daemon=True)
        thread.start()
        return future

    def _run(self, lane: str, future: concurrent.futures.Future[T], call: Callable[[], T]) -> None:
        future.set_running_or_notify_cancel()
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, nothing is swallowed
            self._leave(lane)
            future.set_exception(error)
        else:
            self._leave(lane)
            future.set_result(result)

    def _leave(self, lane: str) -> None:
        with self._lock:
            del self._running[lane]

    async def run(self, lane: str, call: Callable[[], T], *, timeout_s: float) -> T:
        """Await one call; raises what the call raises, and DeviceFault (`Timeout`) when it takes too long."""
        answer = (await self.run_all({lane: call}, timeout_s=timeout_s))[lane]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run_all(self, calls: Mapping[str, Callable[[], T]], *, timeout_s: float) -> dict[str, T | Exception]:
        """Run calls side by side, each on its lane, and return each one's result or error, in the order of `calls`."""
        answers: dict[str, T | Exception] = {}
        waiting: dict[asyncio.Future[T], str] = {}
        for lane, call in calls.items():
            try:
                waiting[asyncio.wrap_future(self.submit(lane, call))] = lane
            except errors.DeviceFault as error:
                answers[lane] = error
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        for future, lane in waiting.items():
            if not future.done():
                future.cancel()
                answers[lane] = hung(lane)
                continue
            failure = future.exception()
            if failure is not None and not isinstance(failure, Exception):
                raise failure
            answers[lane] = future.result() if failure is None else failure
        return {lane: answers[lane] for lane in calls}

    def run_here(self, lane: str, call: Callable[[], T], *, timeout_s: float) -> T:
        """Wait for one call from an ordinary thread; errors as `run`."""
        try:
            return self.submit(lane, call).result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise hung(lane) from error


def hung(lane: str) -> errors.DeviceFault:
    """The error of a lane whose call does not come back."""
    message = f"driver call for {lane} does not return"
    return errors.DeviceFault(message, reason="Timeout", hint="reset the GPU or reload its driver")

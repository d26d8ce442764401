"""Runs driver calls that may hang in threads, away from everything else.

A driver call runs in the daemon thread of its target: a GPU, or the library itself. A call that does not return in time
leaves its thread behind and its target occupied: further calls to that target fail at once, until the old one returns.
So a hung GPU costs one thread, other targets never notice, and a process can end while a call still hangs.

Nothing here needs an event loop, whose import costs a short-lived command 20 ms; `asynccalls` waits in one.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from fairlead import daemonthread, errors

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class CallThreads:
    """Daemon threads, at most one a target."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running: set[str] = set()

    def submit(self, target: str, call: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Start `call` in its own daemon thread.

        Returns: a future that ends with the call.
        Raises:  DeviceFault: an earlier call to this target still hangs (reason `Timeout`).
        """
        with self._lock:
            if target in self._running:
                raise hung(target)
            self._running.add(target)
        return daemonthread.start(f"{self._name}-{target}", call, ended=lambda: self._leave(target))

    def _leave(self, target: str) -> None:
        with self._lock:
            self._running.remove(target)

    def start(self, calls: Mapping[str, Callable[[], T]]) -> dict[str, concurrent.futures.Future[T] | Exception]:
        """Submit calls side by side; a target that is occupied has its error in place of a future."""
        started: dict[str, concurrent.futures.Future[T] | Exception] = {}
        for target, call in calls.items():
            try:
                started[target] = self.submit(target, call)
            except errors.DeviceFault as error:
                started[target] = error
        return started

    def run_all_here(self, calls: Mapping[str, Callable[[], T]], *, timeout_s: float) -> dict[str, T | Exception]:
        """Wait for several calls from an ordinary thread: each one's result or error, in the order of `calls`."""
        started = self.start(calls)
        waiting = [item for item in started.values() if not isinstance(item, Exception)]
        concurrent.futures.wait(waiting, timeout=timeout_s)
        return {target: outcome(target, item) for target, item in started.items()}

    def run_here(self, target: str, call: Callable[[], T], *, timeout_s: float) -> T:
        """Wait for one call from an ordinary thread; errors as `run`."""
        try:
            return self.submit(target, call).result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise hung(target) from error


class Result(Protocol[T_co]):
    """What futures of threads and of the event loop have in common."""

    def done(self) -> bool:
        """Whether the call has ended."""
        ...

    def cancel(self) -> bool:
        """Stop waiting for the call."""
        ...

    def exception(self) -> BaseException | None:
        """Return what the call raised."""
        ...

    def result(self) -> T_co:
        """Return what the call returned."""
        ...


def outcome(target: str, started: Result[T] | Exception) -> T | Exception:
    """Return the result or the error of a call that was waited for; `hung` where it has not ended."""
    if isinstance(started, Exception):
        return started
    if not started.done():
        started.cancel()
        return hung(target)
    failure = started.exception()
    if failure is not None and not isinstance(failure, Exception):
        raise failure
    return started.result() if failure is None else failure


def hung(target: str) -> errors.DeviceFault:
    """Return the error of a target whose call does not come back."""
    message = f"driver call for {target} does not return"
    return errors.DeviceFault(message, reason="Timeout", hint="reset the GPU or reload its driver")

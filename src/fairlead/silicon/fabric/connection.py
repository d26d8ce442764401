"""Runs a Fabric Manager's calls in one thread, with a limit on every wait: a library that hangs blocks no caller.

The thread makes the connection with the first call and keeps it. A caller waits until its limit and no longer. A call
that still waits for its turn then is taken back and never done; one that is inside the library cannot be stopped, and
while it is, further calls fail at once (`FabricHangs`). After it came back, or the connection was lost, the next call
connects anew.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fairlead import daemonthread, errors
from fairlead.silicon.fabric import result
from fairlead.silicon.fabric.port import FabricManager

T = TypeVar("T")
HANGS: Final = "FabricHangs"
_Job = tuple["concurrent.futures.Future[Any]", "Callable[[FabricManager], Any]"]


class Connection:
    """One thread with one connection to a Fabric Manager."""

    def __init__(self, name: str, connect: Callable[[], FabricManager]) -> None:
        """Do nothing yet. Args: name: of the Manager, in messages.   connect: makes a connection; may hang."""
        self._name = name
        self._connect = connect
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False
        self._is_closed = False
        self._overdue: concurrent.futures.Future[Any] | None = None

    def submit(self, call: Callable[[FabricManager], T]) -> concurrent.futures.Future[T]:
        """Queue a call. Whoever ends to wait for it says so by `give_up`. Raises: Unavailable: an earlier one hangs."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            if self._is_closed:
                raise errors.Unavailable(f"the connection to {self._name} was closed", reason="FabricClosed")
            if self._overdue is not None and not self._overdue.done():
                raise self._hung()
            self._overdue = None
            self._jobs.put((future, call))
            if not self._is_running:
                self._is_running = True
                daemonthread.start(f"fabric-{self._name}", self._work, ended=lambda: None)
        return future

    def give_up(self, future: concurrent.futures.Future[Any]) -> errors.Unavailable:
        """End the wait for a call: it is taken back if it has not begun. Returns: what the caller raises."""
        if not future.cancel():
            with self._lock:
                self._overdue = future
        return self._hung()

    def run_here(self, call: Callable[[FabricManager], T], *, timeout_s: float) -> T:
        """Wait for a call from an ordinary thread. Raises: Unavailable: it took longer; what the call raises."""
        future = self.submit(call)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise self.give_up(future) from error

    def close(self) -> None:
        """End the connection once its calls have ended; nothing waits for that."""
        with self._lock:
            self._is_closed = True
            if self._is_running:
                self._jobs.put(None)

    def _hung(self) -> errors.Unavailable:
        message = f"the Fabric Manager at {self._name} did not answer in time"
        return errors.Unavailable(message, reason=HANGS, hint="see its log; start it again if it hangs")

    def _work(self) -> None:
        manager: FabricManager | None = None
        while (job := self._jobs.get()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if manager is None:
                    manager = self._connect()
                found = call(manager)
            except BaseException as error:  # noqa: BLE001 - carried to the waiter, nothing is swallowed
                manager = self._kept(manager, future, is_lost=_is_lost(error))
                future.set_exception(error)
            else:
                manager = self._kept(manager, future, is_lost=False)
                future.set_result(found)
        if manager is not None:
            _close(manager)

    def _kept(
        self, manager: FabricManager | None, future: concurrent.futures.Future[Any], *, is_lost: bool
    ) -> FabricManager | None:
        """Return the connection for the next call; None: it is lost, or hung so long that nobody waits any more."""
        with self._lock:
            is_lost = is_lost or self._overdue is future
        if manager is not None and is_lost:
            _close(manager)
            return None
        return manager


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, errors.FairleadError) and error.context.get("code") in result.CONNECTION_LOST


def _close(manager: FabricManager) -> None:
    try:
        manager.close()
    except errors.FairleadError:
        return  # it is gone either way

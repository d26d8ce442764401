"""Runs one sequential worker for each object: the queue under every controller and the kubelet.

A key is worked on by one task at a time; keys that arrive while their task runs are worked on once more afterwards;
equal keys waiting together are one. No more than `workers` keys are worked on at once; the others wait in line, and a
key that is asked for again goes to its end, so one that never rests starves no other. A worker may ask to be called
again after some seconds. A `FairleadError` is retried with exponential back-off (0.1 s doubling to 30 s), and so is a
call that ends cancelled though its task was not cancelled (a future was, that it shared): a task group would bury it
and its key for ever. Anything else is a bug and ends the run. A caller that runs the queue again (the guard of an
optional part) goes on with the keys that are left; the one with the bug is asked for again by the next change of its
object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairlead import backoff, errors, telemetry

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 30.0
WORKERS = 32
"""Workers wait for one store or one engine, which serve few calls at once: more of them would only hold memory."""
_LONGEST_S = 600.0
"""A worker that takes longer than this hangs."""


@dataclass(slots=True)
class _Entry:
    is_running: bool = False
    is_dirty: bool = False
    failures: int = 0
    timer: asyncio.TimerHandle | None = None


class WorkQueue:
    """Keys in, one call of `work` at a time for each; run it inside the process's task tree."""

    def __init__(
        self,
        name: str,
        work: Callable[[str], Awaitable[float | None]],
        *,
        meter: telemetry.Meter = telemetry.UNMETERED,
        workers: int = WORKERS,
    ) -> None:
        """Take the worker: it gets a key and returns after how many seconds to be called again, or None.

        Args: workers: how many keys are worked on at once; the others wait in the order they were asked for.
        """
        self._workers = workers
        self._name = name
        self._meter = meter
        self._work = work
        self._entries: dict[str, _Entry] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()

    def __len__(self) -> int:
        """Return how many keys wait, are worked on or are due later."""
        return len(self._entries)

    def add(self, key: str, *, after_s: float = 0.0) -> None:
        """Ask for `key` to be worked on, at once or later; an earlier request for the same key wins."""
        entry = self._entries.setdefault(key, _Entry())
        if after_s > 0:
            self._schedule(key, entry, after_s)
            return
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        if entry.is_running:
            entry.is_dirty = True
        elif not entry.is_dirty:
            entry.is_dirty = True
            self._ready.put_nowait(key)

    def _schedule(self, key: str, entry: _Entry, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + after_s
        if entry.timer is not None:
            if entry.timer.when() <= due:
                return
            entry.timer.cancel()
        entry.timer = loop.call_later(after_s, self._fire, key)

    def _fire(self, key: str) -> None:
        self._entries[key].timer = None
        self.add(key)

    async def run(self, meter: telemetry.Meter | None = None) -> None:
        """Work for ever; leaves no timer behind when cancelled. Run again, it goes on with every key it had.

        Args: meter: where heartbeats go in this run; None: where the constructor said.
        """
        self._meter = self._meter if meter is None else meter
        free = asyncio.Semaphore(self._workers)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await free.acquire()
                    key = await self._ready.get()
                    entry = self._entries[key]
                    entry.is_dirty, entry.is_running = False, True
                    task = tasks.create_task(self._one(key, entry), name=f"{self._name}:{key}")
                    task.add_done_callback(lambda _: free.release())
        finally:
            self._put_back()

    def _put_back(self) -> None:
        """Have every key that is left worked on by the next run: it is not known how far this one came."""
        self._ready = asyncio.Queue()
        for key, entry in self._entries.items():
            if entry.timer is not None:
                entry.timer.cancel()
            entry.is_running, entry.is_dirty, entry.timer = False, True, None
            self._ready.put_nowait(key)

    async def _one(self, key: str, entry: _Entry) -> None:
        again_s: float | None
        loop = f"{self._name} of {key}"
        self._meter.heartbeat(loop, _LONGEST_S)
        try:
            again_s = await self._work(key)
            entry.failures = 0
        except errors.FairleadError as error:
            again_s = self._put_off(key, entry, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            cut = errors.Unavailable("an operation that it awaited was cancelled", reason="Cancelled")
            again_s = self._put_off(key, entry, cut)
        except BaseException:
            self._forget(key, entry)
            raise
        finally:
            self._meter.heartbeat(loop, None)
        entry.is_running = False
        if entry.is_dirty:
            self._ready.put_nowait(key)
        elif again_s is not None:
            self._schedule(key, entry, again_s)
        elif entry.timer is None:
            self._entries.pop(key, None)

    def _forget(self, key: str, entry: _Entry) -> None:
        """Drop the key of a bug: a queue that is run again would die of it again, before it came to any other."""
        if entry.timer is not None:
            entry.timer.cancel()
        del self._entries[key]

    def _put_off(self, key: str, entry: _Entry, error: errors.FairleadError) -> float:
        again_s = backoff.doubled(entry.failures, first_s=_FIRST_RETRY_S, last_s=_LAST_RETRY_S)
        entry.failures += 1
        telemetry.log.warning(
            "work failed, will retry",
            role=self._name,
            reason=error.reason,
            error=errors.sentence(error),
            device=key,
            duration_s=again_s,
        )
        return again_s

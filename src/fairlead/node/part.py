"""Runs the agent's parts: an error of a core part ends the process, an error of an optional part restarts that part.

Core parts (inventory, device plugin) run as they are: what they raise ends the task tree. Optional parts (tracing,
labels, events, links) run under a `Guard`. It counts and logs what a part raises and starts it again after a wait that
doubles. A part that misses a heartbeat it announced (`Meter.heartbeat`) is stopped and started again, too; heartbeats
stay with the guard, so that a part that hangs never fails the process's liveness probe. What core parts report to
optional ones goes through `Guard.tell`, which raises nothing.

A thread that hangs cannot be stopped. So each run of an optional part has threads of its own: `asyncio.to_thread`,
called anywhere in the part, takes one of those, and neither another part nor the core ever waits for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, TypeVar

from fairlead import errors, telemetry
from fairlead.backoff import Backoff

P = ParamSpec("P")
A = TypeVar("A")

FIRST_WAIT_S: Final = 0.5
LAST_WAIT_S: Final = 60.0
_THREADS: Final = 4
"""Of one optional part. Most have one call in a thread at a time."""

Run = Callable[[telemetry.Meter], Coroutine[Any, Any, None]]
"""A part's work: called at every start, with where its figures and heartbeats go. It returns when nothing is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[A]):
    """One row of a composition; `A` is what composes."""

    name: str
    run: Callable[[A, telemetry.Meter], Coroutine[Any, Any, None]]
    is_core: bool = False
    """An error of it ends the process; nothing restarts the part alone."""
    is_wanted: Callable[[A], bool] = lambda _: True


class PartThreads(concurrent.futures.ThreadPoolExecutor):
    """An event loop's default executor that hands the calls of an optional part to that part's own threads.

    `asyncio.to_thread` submits in the caller's context, and a task's children inherit it: so a context variable names
    the part, however deep in a library the call is made.
    """

    _own: contextvars.ContextVar[concurrent.futures.ThreadPoolExecutor | None] = contextvars.ContextVar(
        "part_threads", default=None
    )

    def submit(self, call: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[Any]:
        """Start a call in a thread of the part that asks, else in one of our own."""
        own = self._own.get()
        return super().submit(call, *args, **kwargs) if own is None else own.submit(call, *args, **kwargs)

    @classmethod
    def install(cls) -> None:
        """Make the running loop use this executor; idempotent."""
        asyncio.get_running_loop().set_default_executor(cls(thread_name_prefix="core"))

    @classmethod
    @contextmanager
    def own(cls, name: str) -> Iterator[None]:
        """Give the calls of this block threads of their own; one that hangs then is left behind."""
        pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix=name)
        token = cls._own.set(pool)
        try:
            yield
        finally:
            cls._own.reset(token)
            pool.shutdown(wait=False, cancel_futures=True)


class _Pulse:
    """The meter of one run of an optional part: figures go on, a heartbeat that does not come ends the run."""

    def __init__(self, meter: telemetry.Meter, overdue: Callable[[str], None]) -> None:
        self._meter = meter
        self._overdue = overdue
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def add(self, metric: telemetry.Metric, *labels: str) -> None:
        self._meter.add(metric, *labels)

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        self._meter.set(metric, value, *labels)

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None:
        self._meter.observe(metric, seconds, *labels)

    def heartbeat(self, loop: str, within_s: float | None) -> None:
        if (old := self._timers.pop(loop, None)) is not None:
            old.cancel()
        if within_s is not None:
            self._timers[loop] = asyncio.get_running_loop().call_later(within_s, self._overdue, loop)

    def end(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class Guard:
    """Runs one optional part for as long as the process lives."""

    def __init__(
        self, name: str, *, meter: telemetry.Meter = telemetry.UNMETERED, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        """Take the part's name. Args: first_wait_s: before the first restart; doubles to 60 s, until a good run."""
        self._name = name
        self._meter = meter
        self._first_wait_s = first_wait_s
        self._stalled = ""

    async def run(self, run: Run) -> None:
        """Run the part until it returns by itself; whatever it raises restarts it."""
        loop = asyncio.get_running_loop()
        waits = Backoff(first_s=self._first_wait_s, last_s=LAST_WAIT_S, jitter=0)
        while True:
            began = loop.time()
            if await self._run_once(run):
                return
            if loop.time() - began > LAST_WAIT_S:
                waits.reset()
            await asyncio.sleep(waits.next())

    async def _run_once(self, run: Run) -> bool:
        """Run the part once; returns whether it is done."""
        self._stalled = ""
        pulse = _Pulse(self._meter, lambda late: self._stop(task, late))
        # A task of its own: to cancel it must not end us.
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._attempt(run, pulse), name=self._name)
            task.add_done_callback(lambda _: pulse.end())
        if not task.cancelled():
            return task.result()
        if not self._stalled:
            self._count("Cancelled", "something it waited for was cancelled under it")
        return False

    def _stop(self, task: asyncio.Task[bool], late: str) -> None:
        self._stalled = late
        self._count("Hung", f"{late} did not turn in time")
        task.cancel()

    async def _attempt(self, run: Run, pulse: telemetry.Meter) -> bool:
        with PartThreads.own(self._name):
            try:
                await run(pulse)
            except Exception as error:  # noqa: BLE001  (the edge of an optional part: counted, logged, started again)
                self._failed(error)
                return False
        return True

    def tell(self, inform: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Report something of the core to this part; an error in `inform` is counted and logged, never raised."""
        try:
            inform(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (as above)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        cause = _innermost(error)
        if isinstance(cause, errors.FairleadError):
            self._count(cause.reason, errors.sentence(cause))
        else:
            self._count(type(cause).__name__, _described(cause))

    def _count(self, reason: str, text: str) -> None:
        self._meter.add(telemetry.PART_FAILURES, self._name, reason)
        telemetry.log.error("part failed", role=self._name, reason=reason, error=text)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _described(error: BaseException) -> str:
    """Return what was raised and where, on one line: local values, which may be secret, stay out of the log."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"

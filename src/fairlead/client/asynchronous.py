"""Offers the Python client's methods to asyncio; each call runs in a thread of its own.

It is a thin layer over the synchronous client and shares its transport. Cancelling a call closes its connection, so
that its thread ends as well. Methods have the parameters and types of the synchronous ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack

from fairlead import errors
from fairlead.client import client, container, record
from fairlead.client.answers import ContainerView, EventView
from fairlead.client.session import logs

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q")
_END: Final = object()

Abandon = Callable[[threading.Thread], None]


class _Worker:
    """One thread that runs functions for coroutines, one after the other."""

    def __init__(self, abandon: Abandon) -> None:
        self._abandon = abandon
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fairlead-call", daemon=True)
        self._thread.start()

    async def run(self, step: Callable[[], T]) -> T:
        """Run a function in the thread and return its result; cancelling closes the connection it waits on."""
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def take() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = step()
            except BaseException as error:  # noqa: BLE001 it is raised where the step is awaited
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no coroutine waits
                loop.call_soon_threadsafe(_settle, done, value, failure)

        self._steps.put(take)
        try:
            found: T = await done
        except asyncio.CancelledError:
            self._abandon(self._thread)
            raise
        return found

    def end(self, last: Callable[[], object] | None = None) -> None:
        """End the thread after the functions it has and `last`, whose result is not awaited."""

        def take() -> None:
            with contextlib.suppress(errors.FairleadError, OSError):
                if last is not None:
                    last()

        self._steps.put(take)
        self._steps.put(None)

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            step()


def _settle(done: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    if done.cancelled():
        return
    if failure is None:
        done.set_result(value)
    else:
        done.set_exception(failure)


async def _call(abandon: Abandon, step: Callable[[], T]) -> T:
    worker = _Worker(abandon)
    try:
        return await worker.run(step)
    finally:
        worker.end()


class _Twin(Generic[S]):
    """The asynchronous side of an object."""

    def __init__(self, own: S, abandon: Abandon) -> None:
        self._own = own
        self._abandon = abandon

    def __repr__(self) -> str:
        """Name it."""
        return repr(self._own).replace("<", "<Async", 1).replace("fairlead.", "", 1)


def _awaited(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the method that awaits another object's."""

    @functools.wraps(function)
    async def method(self: _Twin[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await _call(self._abandon, lambda: function(self._own, *args, **kwargs))

    return method


def _awaited_container(
    function: Callable[Concatenate[Any, P], container.Container],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, AsyncContainer]]:
    """Return the method that awaits another object's and wraps the container it returns."""

    @functools.wraps(function)
    async def method(self: _Twin[Any], /, *args: P.args, **kwargs: P.kwargs) -> AsyncContainer:
        found = await _call(self._abandon, lambda: function(self._own, *args, **kwargs))
        return AsyncContainer(found, self._abandon)

    return method


class LogOptions(TypedDict, total=False):
    """Parameters of `Container.logs`."""

    follow: bool
    tail: int | None
    since: str | dt.datetime | None
    timestamps: bool
    container: str


class ClientOptions(TypedDict, total=False):
    """Parameters of `Client`."""

    key: str | None
    fingerprint: str | None
    context: str | None
    tenancy: str | None
    namespace: str | None
    retries: int
    patience_s: float


class ListOptions(TypedDict, total=False):
    """Parameters of `Client.containers`."""

    ended: bool
    labels: Mapping[str, str] | None
    namespace: str | None


class AsyncLogs:
    """What a container wrote: `async for line in container.logs(follow=True)`."""

    def __init__(self, own: logs.Logs, abandon: Abandon) -> None:
        """Take what is read."""
        self._own = own
        self._abandon = abandon

    def __aiter__(self) -> AsyncIterator[str]:
        """Yield the lines."""
        return _iterated(self._own, self._abandon)

    async def text(self) -> str:
        """Return all of it; with `follow`, once the container has ended."""
        return await _call(self._abandon, lambda: str(self._own))

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come."""
        return _iterated(self._own.pieces(), self._abandon)

    def __repr__(self) -> str:
        """Name the container."""
        return repr(self._own).replace("iterate over them, or .text() them", "async for, or await .text()")


async def _iterated(items: Iterable[T], abandon: Abandon) -> AsyncIterator[T]:
    """Yield an iterable's items, each fetched in a thread; leaving the loop closes the connection it waits on."""
    worker = _Worker(abandon)
    source: Iterator[T] = iter(items)
    try:
        while (item := await worker.run(lambda: next(source, _END))) is not _END:
            yield item  # type: ignore[misc]  # it is not the end
    finally:
        worker.end(getattr(source, "close", None))


class AsyncContainer(_Twin[container.Container]):
    """One container; its methods are those of `Container`, awaited."""

    @property
    def view(self) -> ContainerView:
        """All that the service last said of it."""
        return self._own.view

    @property
    def name(self) -> str:
        """Its name, unique in its namespace."""
        return self.view.name

    @property
    def state(self) -> str:
        """pending, creating, running, crashed, stopping, succeeded, failed or stopped; gone once removed."""
        return self.view.state

    @property
    def exit_code(self) -> int | None:
        """The first exit code that is not 0, else 0; None before its end."""
        return self.view.exit_code

    refresh = _awaited_container(container.Container.refresh)
    wait = _awaited(container.Container.wait)
    exec = _awaited(container.Container.exec)
    cp = _awaited(container.Container.cp)
    port_forward = _awaited(container.Container.port_forward)
    stop = _awaited_container(container.Container.stop)
    remove = _awaited_container(container.Container.remove)
    restart = _awaited_container(container.Container.restart)
    rename = _awaited_container(container.Container.rename)
    signal = _awaited_container(container.Container.signal)
    explain = _awaited(container.Container.explain)
    trace = _awaited(container.Container.trace)
    events = _awaited(container.Container.events)
    usage = _awaited(container.Container.usage)
    metrics = _awaited(container.Container.metrics)

    def logs(self, **options: Unpack[LogOptions]) -> AsyncLogs:
        """Return what it wrote: `async for` yields lines; see `Container.logs`."""
        return AsyncLogs(self._own.logs(**options), self._abandon)

    def _repr_html_(self) -> str:
        return self._own._repr_html_()


class AsyncClient(_Twin[client.Client]):
    """One service, and as whom; its methods are those of `Client`, awaited."""

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        """Choose the service, as `Client` does."""
        own = client.Client(url, **options)
        super().__init__(own, own.transport.abandon)

    run = _awaited_container(client.Client.run)
    dry_run = _awaited(client.Client.dry_run)
    container = _awaited_container(client.Client.container)
    gpus = _awaited(client.Client.gpus)
    gpu_metrics = _awaited(client.Client.gpu_metrics)
    nodes = _awaited(client.Client.nodes)
    images = _awaited(client.Client.images)
    volumes = _awaited(client.Client.volumes)
    claims = _awaited(client.Client.claims)
    secrets = _awaited(client.Client.secrets)
    set_secret = _awaited(client.Client.set_secret)
    delete_secret = _awaited(client.Client.delete_secret)
    reservations = _awaited(client.Client.reservations)
    reserve = _awaited(client.Client.reserve)
    delete_reservation = _awaited(client.Client.delete_reservation)
    notices = _awaited(client.Client.notices)
    add_notice = _awaited(client.Client.add_notice)
    confirm_notice = _awaited(client.Client.confirm_notice)
    remove_notice = _awaited(client.Client.remove_notice)
    quotas = _awaited(client.Client.quotas)
    tenancies = _awaited(client.Client.tenancies)
    usage = _awaited(client.Client.usage)
    status = _awaited(client.Client.status)
    whoami = _awaited(client.Client.whoami)
    get = _awaited(client.Client.get)

    async def containers(self, **options: Unpack[ListOptions]) -> record.Listing[AsyncContainer]:
        """Return the containers that you may see, as `Client.containers`."""
        found = await _call(self._abandon, lambda: self._own.containers(**options))
        return record.Listing((AsyncContainer(one, self._abandon) for one in found), columns=found.columns)

    def events(self, *, follow: bool = False) -> AsyncIterator[EventView]:
        """Yield what happened, as `Client.events`."""
        return _iterated(self._own.events(follow=follow), self._abandon)

    async def close(self) -> None:
        """End what is open: followed logs, sessions; idempotent."""
        self._own.close()

    async def __aenter__(self) -> Self:
        """Use it for a block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close it."""
        self._own.close()

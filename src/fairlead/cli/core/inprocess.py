"""Runs the API over a cluster inside this process: the standalone application, over an API server's store.

Verbs talk to a service through one client. For a cluster the service lives for the length of one command, behind a
transport that calls the application itself: no socket listens and no thread runs for it. The event loop turns while
a caller waits for an answer, in the thread that waits; what another thread sends meanwhile is handed over to it. The
application has no rights but those of the kubeconfig's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Final, TypeVar

from fairlead import __version__, errors, settings, telemetry
from fairlead.cli.core import client as api
from fairlead.cli.core import cluster as core
from fairlead.client import transport
from fairlead.serve.backend import cluster, port
from fairlead.serve.history.port import History
from fairlead.serve.metering import leases
from fairlead.serve.v1 import app, dependencies
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import credentials, store
from fairlead.store.kubernetes import server as api_server

T = TypeVar("T")
Message = dict[str, Any]
"""One event of ASGI. Source: ASGI specification 3.0, HTTP and WebSocket."""
Application = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]

LIMITS: Final = http.Limits(patience_s=core.PATIENCE_S)
_AHEAD: Final = 16
"""Messages queued in each direction; a sender waits beyond that (backpressure)."""
_POLL_S: Final = 0.2
_HANDOVER_S: Final = 0.02


@contextlib.contextmanager
def opened(config: settings.Settings, access: credentials.Access, *, refusal: str = "") -> Iterator[api.Client]:
    """Give a client of the cluster.

    Args:    refusal: why nothing may be changed there; empty: whatever the user's rights allow.
    Raises:  Unavailable: certificates or tokens of the kubeconfig cannot be used.
    """
    # This process is a command, not a service: what fails is raised to its user, once.
    telemetry.configure("error", "console")
    with asyncio.Runner() as runner:
        services = services_over(config, access)
        made: Application = app.create_app(runner.run(services.__aenter__()))
        try:
            carrier = InProcessTransport(made, runner, address=access.cluster.server)
            with api.Client(carrier, namespace=access.namespace, cluster=access.cluster.server) as client:
                client.refusal = refusal
                yield client
        finally:
            runner.run(services.__aexit__(None, None, None))


@contextlib.asynccontextmanager
async def services_over(config: settings.Settings, access: credentials.Access) -> AsyncIterator[dependencies.Services]:
    """Give the API's services over a cluster."""
    async with store.KubernetesStore(access, limits=LIMITS) as objects:
        yield services_of(config, objects, access.cluster.server)


def services_of(config: settings.Settings, objects: store.KubernetesStore, address: str) -> dependencies.Services:
    """Return the API's services over a cluster's store; the API server authorizes each request.

    Args: address: of the API server.
    """
    backend = cluster.backend(
        store=objects,
        server=api_server.Server(objects.client, address=address),
        pods=objects.pods,
        pricing=leases.pricing(config.metering),
        history=_history(config.history.prometheus),
    )
    info = dependencies.ServiceInfo(
        version=__version__,
        node="",
        started_at=time.time(),
        scheduler_name="",
        resource=config.node.resource,
        system_namespace=config.cluster.namespace,
        socket=Path(),
        state_folder=Path(),
        cdi_folder=Path(),
    )
    return dependencies.Services(callers=None, store=objects, backend=backend, info=info)


def _history(url: str) -> History | port.Absent:
    """Return who is asked for figures over time; a cluster's agents keep none."""
    if not url:
        return port.NO_HISTORY
    from fairlead.serve.history.prometheus import PrometheusHistory  # aiohttp is loaded where it is used

    return PrometheusHistory(url)


class InProcessTransport:
    """A `transport.Transport` that calls an ASGI application."""

    def __init__(self, application: Application, runner: asyncio.Runner, *, address: str) -> None:
        """Take the application, the loop it runs on, and the address that error messages name."""
        self._application = application
        self._runner = runner
        self._address = address
        self._turn = threading.Lock()
        """Held by the thread that turns the loop."""

    @property
    def address(self) -> str:
        """See `transport.Transport.address`."""
        return self._address

    def close(self) -> None:
        """See `transport.Transport.close`: nothing stays open."""

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Turn the loop until a step is done, or wait while another thread turns it."""
        if self._turn.acquire(blocking=False):
            try:
                return self._runner.run(step)
            finally:
                self._turn.release()
        waiting = asyncio.run_coroutine_threadsafe(step, self._runner.get_loop())
        while True:
            futures.wait([waiting], _HANDOVER_S)
            if waiting.done():
                return waiting.result()
            if self._turn.acquire(blocking=False):  # the other thread is done and has released the loop
                try:
                    return self._runner.run(_result(waiting))
                finally:
                    self._turn.release()

    @contextlib.contextmanager
    def send(self, request: transport.Request, *, timeout_s: float | None) -> Iterator[transport.Answer]:
        """See `transport.Transport.send`."""
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        exchange = _Exchange(self._application, _scope("http", request.target, method=request.method, headers=headers))
        exchange.inbox.put_nowait({"type": "http.request", "body": request.body or b"", "more_body": False})
        try:
            self.run(exchange.start())
            answer = _Answer(self, exchange, timeout_s)
            answer.open()
            yield answer
        finally:
            self.run(exchange.end({"type": "http.disconnect"}))

    @contextlib.contextmanager
    def connect(self, target: str) -> Iterator[transport.Session]:
        """See `transport.Transport.connect`."""
        exchange = _Exchange(self._application, _scope("websocket", target, subprotocols=[]))
        exchange.inbox.put_nowait({"type": "websocket.connect"})
        gone = {"type": "websocket.disconnect", "code": 1005}
        session = _Session(self, exchange)
        try:
            self.run(exchange.start())
            first = self.run(exchange.next())
            if first is None or first["type"] != "websocket.accept":
                message = f"the API over {self._address} refused the session at {target.partition('?')[0]}"
                raise errors.Unavailable(message, reason="ServiceUnreachable", hint="this is a bug of fairlead's")
            yield session
        finally:
            # Another thread may be turning the loop, waiting for a frame: the disconnect wakes it.
            with contextlib.suppress(RuntimeError):
                self._runner.get_loop().call_soon_threadsafe(exchange.leave, gone)
            self.run(exchange.end(gone))


class _Exchange:
    """One call of the application: a task of its own, which ends with the block that made it."""

    def __init__(self, application: Application, scope: Message) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue(_AHEAD)
        self._outbox: asyncio.Queue[Message | None] = asyncio.Queue(_AHEAD)
        self._application = application
        self._scope = scope
        self._left: asyncio.Event = asyncio.Event()
        self._last: Message = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin."""
        # No TaskGroup: its block would have to stay open between two turns of the loop. `end` waits for it instead.
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._outbox.put)
        finally:
            if not self._left.is_set():
                await self._outbox.put(None)

    async def _receive(self) -> Message:
        """Give the application its next message, the disconnect once its caller has left."""
        if self.inbox.empty() and not self._left.is_set():
            arriving = asyncio.get_running_loop().create_task(self.inbox.get())
            leaving = asyncio.get_running_loop().create_task(self._left.wait())
            try:
                await asyncio.wait((arriving, leaving), return_when=asyncio.FIRST_COMPLETED)
                if arriving.done():
                    return arriving.result()
            finally:
                arriving.cancel()
                leaving.cancel()
        return self._last if self._left.is_set() else self.inbox.get_nowait()

    async def next(self) -> Message | None:
        """Return the application's next message, None at its end. Raises: what it failed with, which is a bug."""
        message = await self._outbox.get()
        if message is None and self._task is not None and not self._left.is_set():
            await self._task
        return message

    def leave(self, last: Message) -> None:
        """Let the application know that its caller is gone, and the reader of its next message as well."""
        self._last = last
        self._left.set()
        while self._outbox.full():
            self._outbox.get_nowait()
        self._outbox.put_nowait(None)

    async def end(self, last: Message) -> None:
        """Leave, and wait until the application has let everything go."""
        self.leave(last)
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([self._task])


class _Answer:
    """See `transport.Answer`."""

    def __init__(self, carrier: InProcessTransport, exchange: _Exchange, timeout_s: float | None) -> None:
        self._carrier, self._exchange, self._timeout_s = carrier, exchange, timeout_s
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []

    @property
    def status(self) -> int:
        """See `transport.Answer.status`."""
        return self._status

    def open(self) -> None:
        """Wait for the head. Raises: Unavailable."""
        head = self._next()
        if head is None:
            raise self._broken()
        self._status, self._headers = head["status"], list(head.get("headers", ()))

    def header(self, name: str) -> str:
        """See `transport.Answer.header`."""
        return next((value.decode("latin-1") for key, value in self._headers if key == name.encode()), "")

    def read(self) -> bytes:
        """See `transport.Answer.read`."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """See `transport.Answer.pieces`."""
        while True:
            message = self._next()
            if message is None:
                raise self._broken()
            if message.get("body"):
                yield bytes(message["body"])
            if not message.get("more_body"):
                return

    def _next(self) -> Message | None:
        try:
            return self._carrier.run(asyncio.wait_for(self._exchange.next(), self._timeout_s))
        except TimeoutError as error:
            message = f"{self._carrier.address} took longer than {self._timeout_s:.0f} s to answer"
            raise errors.Unavailable(message, reason="ServiceSlow", hint="`fairlead doctor` says more") from error

    def _broken(self) -> errors.Unavailable:
        message = f"the answer of {self._carrier.address} broke off"
        return errors.Unavailable(message, reason="ServiceBrokeOff", hint="ask again")


class _Session:
    """See `transport.Session`: the reader of the frames turns the loop; what others send is handed to it."""

    def __init__(self, carrier: InProcessTransport, exchange: _Exchange) -> None:
        self._carrier, self._exchange = carrier, exchange
        self._loop: asyncio.AbstractEventLoop = carrier.run(_running_loop())
        self._is_over = threading.Event()

    def frames(self) -> Iterator[bytes | str]:
        """See `transport.Session.frames`."""
        try:
            while True:
                message = self._carrier.run(self._exchange.next())
                if message is None or message["type"] == "websocket.close":
                    return
                data, text = message.get("bytes"), message.get("text")
                yield bytes(data) if data is not None else str(text)
        finally:
            self._is_over.set()

    def send(self, frame: bytes | str) -> None:
        """See `transport.Session.send`; waits while the process takes nothing."""
        message = {"type": "websocket.receive", "bytes" if isinstance(frame, bytes) else "text": frame}
        sending = asyncio.run_coroutine_threadsafe(self._exchange.inbox.put(message), self._loop)
        while not self._is_over.is_set():
            with contextlib.suppress(futures.TimeoutError):
                return sending.result(_POLL_S)
        sending.cancel()
        return None


async def _result(waiting: futures.Future[T]) -> T:
    return await asyncio.wrap_future(waiting)


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _scope(kind: str, target: str, *, method: str = "", headers: Any = (), **more: Any) -> Message:
    path, _, query = target.partition("?")
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http" if kind == "http" else "ws",
        **({"method": method} if method else {}),
        "path": urllib.parse.unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": list(headers),
        "client": None,
        "server": None,
        "state": {},
        **more,
    }

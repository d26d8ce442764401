"""Sends HTTP requests to one API server, and returns bytes, chunks of a stream, or a FairleadError.

A request waits for its turn in the common rate, carries fresh credentials, and is sent again after failures that may
pass, with growing, jittered waits, as long as its patience lasts: refused connections and `429` always (nothing
happened), cut connections and `5xx` only where sending twice does no harm. A `Retry-After` is honoured; one beyond the
patience ends the request with `Unavailable` at once. A `401` renews the credentials and is tried once more. Streams are
opened once; who reads them decides what a cut means.

What paths, bodies and answers mean is left to `store` and `watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import types
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Self

import aiohttp
import yarl

import fairlead
from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.store.kubernetes import credentials, failure, flowcontrol

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
_AGENT: Final = f"fairlead/{fairlead.__version__}"
_MESSAGE_BYTES: Final = 16 << 20
"""Largest message of a WebSocket; kubelets send at most 32 KiB."""
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A server that vanished without a word is noticed after 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How hard and how long to ask."""

    requests_per_s: float = 200.0
    burst: int = 400
    at_once: int = 32
    """Requests in flight; streams do not count."""
    patience_s: float = 10.0
    """How long a request is tried again before it fails."""
    connect_s: float = 5.0
    answer_s: float = 60.0
    """Longest silence of a server that owes an answer."""
    answer_bytes: int = 64 << 20
    """Largest answer of one piece; a page of a list has a few MB."""


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call; `path` is quoted already."""

    method: str
    path: str
    query: str = ""
    body: bytes | None = None
    content: str = JSON
    accept: str = JSON
    repeatable: bool = True
    """Whether carrying it out twice leaves what once would have left."""
    permit: Callable[[], None] | None = None
    """Asked right before each sending; what it raises is raised, and nothing is sent."""
    answer_bytes: int | None = None
    """Largest answer; None: as the limits say."""


@dataclass(slots=True)
class _Trail:
    """How often a request went out and an answer came: aiohttp repeats some requests without saying so."""

    sent: int = 0
    answered: int = 0


class Client:
    """Connections to one API server; an async context."""

    def __init__(
        self,
        access: credentials.Access,
        *,
        limits: Limits,
        chance: Callable[[], float] = random.random,
        meter: telemetry.Meter = telemetry.UNMETERED,
    ) -> None:
        self.meter = meter
        self._access = access
        self._limits = limits
        self._chance = chance
        self._bucket = flowcontrol.RateLimiter(per_s=limits.requests_per_s, burst=limits.burst)
        self._slots = asyncio.Semaphore(limits.at_once)
        self._gate = flowcontrol.CircuitBreaker(Backoff(first_s=0.2, last_s=2.0, chance=chance))
        self._credentials = credentials.Credentials(access)
        self._session: aiohttp.ClientSession | None = None
        self._retired: aiohttp.ClientSession | None = None
        """Session with the former credentials: requests on it end; streams are cut, and resume, at the next renewal."""
        self._is_reachable = True

    async def __aenter__(self) -> Self:
        self._session = self._new_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        for session in (self._session, self._retired):
            if session is not None:
                await session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._credentials.tls or True, keepalive_timeout=30, socket_factory=_socket
        )
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_count)
        trace.on_request_redirect.append(_stay)  # a WebSocket's handshake cannot be asked otherwise not to follow
        return aiohttp.ClientSession(
            connector=connector,
            trace_configs=[trace],
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=2**18,
            headers={"User-Agent": _AGENT, "Accept-Encoding": "identity"},
        )

    def backoff(self) -> Backoff:
        """Return waits for one sequence of attempts."""
        return Backoff(first_s=0.2, last_s=30.0, chance=self._chance)

    async def request(self, request: Request) -> bytes:
        """Return the body of the answer. Raises: what the server refused with; Unavailable: no answer in time."""
        deadline = asyncio.get_running_loop().time() + self._limits.patience_s
        backoff = self.backoff()
        may_have_happened, trail = False, _Trail()
        while True:
            try:
                async with self._slots:
                    await self._enter(deadline)
                    return await self._attempt(request, trail)
            except errors.NotFound:
                if request.method == "DELETE" and (may_have_happened or trail.sent > trail.answered):
                    return b""
                raise
            except failure.Transient as failed:
                may_have_happened |= failed.may_have_happened
                wait_s = backoff.next() if failed.wait_s is None else failed.wait_s * (1 + 0.1 * self._chance())
                is_late = asyncio.get_running_loop().time() + wait_s > deadline
                if is_late or (failed.may_have_happened and not request.repeatable):
                    raise failed.error from failed
                await asyncio.sleep(wait_s)

    @contextlib.asynccontextmanager
    async def stream(self, request: Request, *, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an answer that goes on. Raises: as `request`, at once; while it is read too, when it is cut."""
        try:
            await self._gate.enter()
            async with self._open(request, _Trail(), silence_s=silence_s) as response:
                if response.status != 200:
                    raise _failed(response, await self._read(response, request))
                yield response.content.iter_any()
        except failure.Transient as failed:
            raise failed.error from failed

    async def connect(self, request: Request, protocols: tuple[str, ...]) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket, for the caller to close.

        Args:    protocols: subprotocols, the best first.
        Raises:  as `request`, at once; ProtocolError: the server takes none of them.
        """
        may_renew = self._credentials.can_be_renewed
        while True:
            await self._gate.enter()
            try:
                made = await self._upgrade(request, protocols)
            except aiohttp.WSServerHandshakeError as error:
                if error.status != 401 or not may_renew:
                    raise await self._refused(request, error.status) from error
            except _Redirected as error:
                raise failure.refusal(error.status, b"") from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failed = self._cut(error)
                raise (failed.error if isinstance(failed, failure.Transient) else failed) from error
            else:
                if made.protocol in protocols:
                    return made
                await made.close()
                message = f"{self._access.cluster.server} took none of {', '.join(protocols)} for {request.path}"
                raise errors.ProtocolError(message, reason="StreamUnreadable", hint="is a proxy in between?")
            may_renew = False
            await self._renew()

    async def _upgrade(self, request: Request, protocols: tuple[str, ...]) -> aiohttp.ClientWebSocketResponse:
        session, url = await self._ready(request)
        return await session.ws_connect(
            url,
            protocols=protocols,
            headers=await self._headers(request),
            proxy=self._access.cluster.proxy_url,
            server_hostname=self._access.cluster.tls_server_name,
            autoping=True,
            max_msg_size=_MESSAGE_BYTES,
        )

    async def _refused(self, request: Request, status: int) -> errors.FairleadError:
        """Return why no WebSocket was opened: aiohttp hides the refusal's body, so a plain request asks again."""
        try:
            await self.request(request)
        except errors.FairleadError as error:
            if not isinstance(error, errors.Invalid):
                return error
            # Where only the handshake failed, the plain request is refused for being plain.
            return failure.refusal(status, b"") if "pgrade" in error.message else error
        return failure.refusal(status, b"")

    async def _enter(self, deadline: float) -> None:
        """Wait until a request may go. Raises: Unavailable: the server failed all the while."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._gate.enter()
        except TimeoutError:
            raise self._unreachable("it fails, and this request's time is over before its turn") from None

    async def _attempt(self, request: Request, trail: _Trail) -> bytes:
        may_renew = self._credentials.can_be_renewed
        while True:
            async with self._open(request, trail, silence_s=self._limits.answer_s) as response:
                body = await self._read(response, request)
                if response.status < 300:
                    return body
                if response.status != 401 or not may_renew:
                    raise _failed(response, body)
            may_renew = False
            await self._renew()

    async def _read(self, response: aiohttp.ClientResponse, request: Request) -> bytes:
        """Return the whole body. Raises: ProtocolError (`AnswerTooLarge`): it is larger than such an answer may be."""
        largest = self._limits.answer_bytes if request.answer_bytes is None else request.answer_bytes
        size = response.content_length or 0
        pieces: list[bytes] = []
        if size <= largest:
            size = 0
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > largest:
                    break
                pieces.append(piece)
        if size > largest:
            response.close()  # what is still to come is not waited for
            message = f"{self._access.cluster.server} answered {request.path} with more than {largest} bytes"
            raise errors.ProtocolError(message, reason="AnswerTooLarge", hint="is it an API server?")
        return b"".join(pieces)

    async def _renew(self) -> None:
        """Show other credentials from now on: connections made with an old certificate are used no more."""
        self._credentials.expire()
        if self._retired is not None:
            await self._retired.close()
        self._retired, self._session = self._session, self._new_session()

    @contextlib.asynccontextmanager
    async def _open(
        self, request: Request, trail: _Trail, *, silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session, url = await self._ready(request)
        cluster = self._access.cluster
        is_answered = False
        headers = [*await self._headers(request), *([("Content-Type", request.content)] if request.body else [])]
        if request.permit is not None:
            request.permit()
        try:
            async with session.request(
                request.method,
                url,
                data=request.body,
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=trail,
                proxy=cluster.proxy_url,
                server_hostname=cluster.tls_server_name,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_s, sock_read=silence_s),
            ) as response:
                trail.answered += 1
                self.meter.add(telemetry.REQUESTS, request.method, str(response.status))
                self._note(None)
                is_answered = True
                if response.status == 429 or response.status >= 500:
                    self._gate.failed(_asked_wait_s(response))
                else:
                    self._gate.succeeded()
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not is_answered:
                self.meter.add(telemetry.REQUESTS, request.method, "0")
                self._gate.failed(None)
            raise self._cut(error) from error

    async def _headers(self, request: Request) -> list[tuple[str, str]]:
        return [*await self._credentials.headers(), ("Accept", request.accept)]

    async def _ready(self, request: Request) -> tuple[aiohttp.ClientSession, yarl.URL]:
        """Return the connections to use and the address to ask, once it is this request's turn."""
        if self._session is None:
            raise RuntimeError("client used outside its context")
        await self._bucket.take()
        base = self._access.cluster.server.rstrip("/")
        return self._session, yarl.URL(
            f"{base}{request.path}{'?' if request.query else ''}{request.query}", encoded=True
        )

    def _cut(self, error: Exception) -> failure.Transient | errors.Unavailable:
        """Return what a connection that did not work means."""
        server = self._access.cluster.server
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            message = f"no trust between us and the API server at {server}: {error}"
            return errors.Unavailable(
                message, reason="TLSRefused", hint="compare the kubeconfig's certificates with it"
            )
        problem = str(error) or type(error).__name__
        not_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        found = self._unreachable(problem)
        self._note(found)
        return failure.Transient(found, may_have_happened=not not_sent)

    def _unreachable(self, problem: str) -> errors.Unavailable:
        return errors.Unavailable(
            f"API server at {self._access.cluster.server} does not answer: {problem}",
            reason="APIServerUnreachable",
            hint="look whether it runs and can be reached from here",
        )

    def _note(self, error: errors.Unavailable | None) -> None:
        """Log that the server went away or came back, once each."""
        if error is not None and self._is_reachable:
            telemetry.log.warning("api server does not answer", reason=error.reason, error=error.message)
        elif error is None and not self._is_reachable:
            telemetry.log.info("api server answers again")
        self._is_reachable = error is None


async def _count(_session: object, context: types.SimpleNamespace, _facts: object) -> None:
    if context.trace_request_ctx is not None:  # the handshake of a WebSocket has no counter: it is sent once
        context.trace_request_ctx.sent += 1


class _Redirected(Exception):
    """A handshake was answered with a redirect; never leaves this module."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


async def _stay(_session: object, _context: object, facts: aiohttp.TraceRequestRedirectParams) -> None:
    raise _Redirected(facts.response.status)


def _failed(response: aiohttp.ClientResponse, body: bytes) -> errors.FairleadError | failure.Transient:
    error = failure.refusal(response.status, body)
    if not isinstance(error, errors.Unavailable) or error.reason == failure.REDIRECTED:
        return error
    wait_s = _asked_wait_s(response)
    return failure.Transient(error, may_have_happened=response.status != 429 and wait_s is None, wait_s=wait_s)


def _asked_wait_s(response: aiohttp.ClientResponse) -> float | None:
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else None


def _socket(info: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that notices a peer that is gone."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, seconds)
    return made

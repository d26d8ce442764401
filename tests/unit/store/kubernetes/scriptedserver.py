"""An API server that answers what a test tells it to, in order, misbehaving on command.

`Server.script` holds the answers to come; the last one is given again for ever. `Server.calls` is what was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from fairlead.store.kubernetes import client, credentials
from fairlead.wire.kubernetes import kubeconfig
from tests.unit.store import virtualtime

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as it came."""

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


class Server:
    """A listening server; use `serving`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.calls: list[Call] = []
        self.script: deque[Answer] = deque()
        self.port = 0
        self.left = asyncio.Event()
        """Set when somebody hung up on a stream."""
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def answers(self, *script: Answer) -> None:
        self.script.extend(script)

    def asked(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    async def start(self) -> None:
        """Listen, on the same port as before."""
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Hang up on everybody and listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.calls.append(
            Call(
                at=virtualtime.now(),
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers=dict(request.headers),
                body=msgspec.json.decode(body) if body else None,
            )
        )
        answer = self.script.popleft() if len(self.script) > 1 else self.script[0]
        try:
            return await answer(request)
        except asyncio.CancelledError:
            self.left.set()
            raise


@contextlib.asynccontextmanager
async def serving(*script: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(tls)
    server.answers(*script)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def access(server: Server, **user: Any) -> credentials.Access:
    return credentials.Access(
        cluster=kubeconfig.Cluster(server=server.url), user=kubeconfig.User(**user), namespace="default", env={}
    )


@contextlib.asynccontextmanager
async def connected(server: Server, limits: client.Limits = client.LIMITS, **user: Any) -> AsyncIterator[client.Client]:
    async with client.Client(access(server, **user), limits=limits, chance=lambda: 1.0) as opened:
        yield opened


def reply(content: Any, code: int = 200) -> Answer:
    """Answer with JSON."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(content), status=code, content_type="application/json")

    return answer


def refuse(code: int, reason: str = "", message: str = "no", **headers: str) -> Answer:
    """Answer with a Status; `retry_after="3"` becomes the header."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    status |= {"reason": reason, "message": message}

    async def answer(_: web.Request) -> web.StreamResponse:
        given = {name.replace("_", "-").title(): value for name, value in headers.items()}
        return web.Response(body=msgspec.json.encode(status), status=code, headers=given)

    return answer


async def drop(request: web.Request) -> web.StreamResponse:
    """Hang up without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def stream(*parts: Any, then: str = "end") -> Answer:
    """Send parts (bytes as they are, anything else as a line of JSON), then `end` in order, `cut` or `hang`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for part in parts:
            await response.write(part if isinstance(part, bytes) else msgspec.json.encode(part) + b"\n")
        if then == "hang":
            await asyncio.Event().wait()
        if then == "cut":
            assert request.transport is not None
            await asyncio.sleep(0)
            request.transport.abort()
        return response

    return answer


def event(kind: str, name: str, version: int, **about: Any) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version, **about)}


def pod(name: str, version: int, **about: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version), **about}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


def page(version: int, *items: dict[str, Any], following: str = "") -> Answer:
    """Answer with one page of a list."""
    about = {"resourceVersion": str(version), **({"continue": following} if following else {})}
    return reply({"kind": "PodList", "apiVersion": "v1", "metadata": about, "items": list(items)})

"""Between our processes and the API server: notes every request, and misbehaves on command.

Each process is given its own first path segment (`http://HOST:PORT/scheduler`), so that it is known who asked. The
proxy speaks to the server as its administrator; what a role would allow is judged from what was noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from tools.cluster import home

_PATH: Final = re.compile(
    r"(?:/api|/apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Mode(enum.Enum):
    """What is done with a request."""

    PASS = "pass"
    THROTTLE = "429"
    BREAK = "500"


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    at: float
    """Monotonic seconds."""
    who: str
    verb: str
    resource: str
    """As in a role: `pods`, `pods/status`."""
    path: str


def _described(at: float, who: str, method: str, path: str, *, watches: bool) -> Request:
    found = _PATH.fullmatch(path)
    assert found is not None, path
    reads = "watch" if watches else "get" if found["name"] else "list"
    verb = reads if method == "GET" else _VERBS[method]
    resource = f"{found['kind']}/{found['part']}" if found["part"] else found["kind"]
    return Request(at, who, verb, resource, path)


class Proxy:
    """A running proxy; its switches may be turned from the test's thread."""

    def __init__(self, cluster: home.Cluster) -> None:
        self.mode = Mode.PASS
        self.cuts = 0
        """Watch events still to be cut in their middle."""
        self.requests: list[Request] = []
        self._server = cluster.site.server
        folder = cluster.site.certificates
        self._tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._tls.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        # the host's end of the machine's wire: the same address from both sides
        self._host = cluster.host.address.rpartition(".")[0] + ".1"
        self._port = 0

    @property
    def storms(self) -> bool:
        """Whether requests are refused now."""
        return self.mode is not Mode.PASS

    def _may_pass_on(self) -> bool:
        return not self.storms

    def kubeconfig(self, who: str, folder: Path) -> Path:
        """Write a kubeconfig that leads here."""
        path = folder / f"{who}.kubeconfig"
        server = f"http://{self._host}:{self._port}/{who}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        }
        path.write_text(json.dumps(content))
        return path

    def since(self, at: float, who: str) -> list[Request]:
        """Return what one process has asked since then."""
        return [one for one in self.requests if one.who == who and one.at >= at]

    def used(self) -> set[tuple[str, str, str]]:
        """Return who has used which verb on which resource."""
        return {(one.who, one.verb, one.resource) for one in self.requests}

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve in a thread of its own."""
        loop, ready, ending = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

        async def serve() -> None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=2)
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
                app = web.Application(client_max_size=2**26)

                async def answer(request: web.Request) -> web.StreamResponse:
                    return await self._answer(request, session)

                app.router.add_route("*", "/{who}/{tail:.*}", answer)
                runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
                await runner.setup()
                site = web.TCPSite(runner, self._host, 0)
                await site.start()
                self._port = runner.addresses[0][1]
                ready.set()
                await ending.wait()
                await runner.cleanup()

        def live() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as alone:  # it ends what still answers a cut connection
                alone.run(serve())

        thread = threading.Thread(target=live)
        thread.start()
        assert ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(ending.set)
            thread.join(20)
            assert not thread.is_alive()

    async def _answer(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        watches = request.query.get("watch") == "true"
        path = f"/{request.match_info['tail']}"
        described = _described(time.monotonic(), request.match_info["who"], request.method, path, watches=watches)
        self.requests.append(described)
        if self.storms:
            return _refusal(self.mode)
        kept = {name: request.headers[name] for name in ("Content-Type", "Accept") if name in request.headers}
        url = f"{self._server}{path}{'?' if request.query_string else ''}{request.query_string}"
        try:
            body = await request.read()
            async with session.request(request.method, url, data=body or None, headers=kept) as upstream:
                response = web.StreamResponse(status=upstream.status)
                response.content_type = upstream.content_type
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    if watches and self.cuts > 0 and b'"BOOKMARK"' not in chunk:
                        self.cuts -= 1
                        await response.write(chunk[: len(chunk) // 2])
                        break
                    await response.write(chunk)
                    if not self._may_pass_on():
                        break
                else:
                    await response.write_eof()
                    return response
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        _cut(request)
        return web.Response(status=502)  # nobody reads it


def _cut(request: web.Request) -> None:
    """Hang up in the middle of the answer, or before it."""
    if request.transport is not None:
        request.transport.abort()


def _refusal(mode: Mode) -> web.Response:
    code = int(mode.value)
    reason = "TooManyRequests" if code == 429 else "InternalError"
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "storm", "reason": reason}
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response({**status, "code": code}, status=code, headers=headers)

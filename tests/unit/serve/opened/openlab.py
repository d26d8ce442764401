"""A service on a socket with a lab's accounts, and containers whose ports lead to servers of the test."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from aiohttp import web

from fairlead import errors
from fairlead.engine.port import ContainerState
from fairlead.kernel.network import netns
from fairlead.serve import authentication, server, sockets
from fairlead.serve.console import app as console
from fairlead.serve.limits.gate import Gate
from fairlead.serve.opened import door, hosts
from fairlead.serve.opened.grants import Grants, Limits
from fairlead.serve.opened.upstream import Patience
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application

DOMAIN: Final = "apps.gpu.lab.example"
CONSOLE: Final = "gpu.lab.example"
PORT: Final = 8888
_TICKET: Final = re.compile(rf"https://([0-9a-f]{{24}}\.{re.escape(DOMAIN)})/\.fairlead/open\?ticket=([0-9a-f]{{64}})")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Open:
    """The service, and who may come to it."""

    lab: Lab
    grants: Grants
    port: int
    time: list[float]
    """What the grants' clock says."""
    servers: dict[int, int] = field(default_factory=dict)
    """Port of a server of the test, by port of the container."""
    serving: asyncio.Task[None] | None = None

    async def ask(self, method: str, path: str, *, host: str = CONSOLE, **more: Any) -> httpx.Response:
        """Send a request over a connection of its own."""
        headers = {"host": host, **more.pop("headers", {})}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20) as client:
            return await client.request(method, path, headers=headers, **more)

    async def raw(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(20):
            found = await reader.read()
        writer.close()
        return found

    async def door(self, who: str = "developer", name: str = "web", port: int = PORT, **more: Any) -> httpx.Response:
        """Have a port opened for the holder of a key."""
        headers = {"authorization": f"Bearer {self.lab.keys[who]}"}
        body = {"path": more.pop("path")} if "path" in more else {}
        return await self.ask("POST", f"/v1/containers/{name}/ports/{port}/door", headers=headers, json=body, **more)

    async def ticket(self, who: str = "developer", **more: Any) -> tuple[str, str]:
        """Return host and ticket of a port that is opened for the holder of a key."""
        answer = await self.door(who, **more)
        assert answer.status_code == 201, answer.text
        return parts(answer)

    async def enter(self, who: str = "developer", **more: Any) -> tuple[str, str]:
        """Return host and cookie of a port that is opened for the holder of a key."""
        host, ticket = await self.ticket(who, **more)
        return host, await self.redeem(host, ticket)

    async def redeem(self, host: str, ticket: str) -> str:
        """Return the cookie for a ticket."""
        answer = await self.ask("GET", f"/.fairlead/open?ticket={ticket}", host=host)
        assert answer.status_code == 303, answer.text
        return answer.headers["set-cookie"].partition(";")[0]

    async def empty(self) -> None:
        """Return once no connection is counted any more."""
        async with asyncio.timeout(10):
            while len(self.grants.connections):  # noqa: ASYNC110  (a count has no event)
                await asyncio.sleep(0.005)

    async def serve(self, handle: Serve, port: int = PORT) -> asyncio.Server:
        """Have a container's port lead to a server of raw bytes."""
        made = await asyncio.start_server(handle, "127.0.0.1", 0)
        self.servers[port] = made.sockets[0].getsockname()[1]
        return made


def parts(answer: httpx.Response) -> tuple[str, str]:
    """Return host and ticket of an answer."""
    found = _TICKET.fullmatch(answer.json()["address"])
    assert found is not None, answer.text
    return found[1], found[2]


@contextlib.asynccontextmanager
async def listening(
    world: World,
    folder: Path,
    *,
    limits: Limits | None = None,
    patience: Patience | None = None,
    meter: Any = None,
    domain: str = DOMAIN,
) -> AsyncIterator[Open]:
    """Serve console, API and opened ports as the TLS door does, without TLS."""
    async with opened(world, folder) as lab, asyncio.TaskGroup() as tasks:
        clock = [1_000_000.0]
        grants = Grants(domain=hosts.parse_domain(domain), limits=limits, now=lambda: clock[0])
        made = Open(lab, grants, 0, clock)

        async def dial(state: ContainerState, number: int) -> Any:
            assert state.name
            try:
                return netns.Connection(*await asyncio.open_connection("127.0.0.1", made.servers[number]))
            except (KeyError, OSError) as error:
                message = f"no process answers on port {number}"
                raise errors.Unavailable(message, reason="PortRefused") from error

        streams: Any = lab.services.backend.streams
        backend = dataclasses.replace(lab.services.backend, streams=dataclasses.replace(streams, dial=dial))
        lab.services = dataclasses.replace(lab.services, backend=backend, grants=grants)
        guarded = authentication.create_app(
            application(lab.services), lab.accounts, gate=Gate(lab.policy), refusals=lab.refusals
        )
        before = functools.partial(door.create_app, grants=grants, patience=patience)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            made.port = listener.getsockname()[1]
            more = {} if meter is None else {"meter": meter}
            made.serving = tasks.create_task(
                server._serve(
                    console.create_app(guarded, has_login=True),
                    listener,
                    limits=sockets.Limits(),
                    door="tls",
                    before=before,
                    **more,
                )
            )
            yield made
            made.serving.cancel()


async def run(lab: Open, name: str = "web", who: str = "developer", tenancy: str = "red") -> None:
    """Have a container that runs."""
    assert (await lab.lab.run(who, name, tenancy=tenancy, args=["sleep", "60"])).status_code == 201
    await lab.lab.ask(who, "GET", f"/v1/containers/{name}/wait", params={"state": "started"})


@contextlib.asynccontextmanager
async def site(lab: Open, port: int = PORT) -> AsyncIterator[list[web.Request]]:
    """Have a container's port lead to a web server that says what it was asked; yields the requests."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        body = await request.read()
        told = {"path": request.raw_path, "body": len(body), "headers": [list(one) for one in request.headers.items()]}
        return web.json_response(told, headers={"x-said": request.method})

    async def echo(request: web.Request) -> web.WebSocketResponse:
        seen.append(request)
        made = web.WebSocketResponse(protocols=("v1.kernel",), max_msg_size=0)
        await made.prepare(request)
        async for message in made:
            if message.data == "end":
                await made.close(code=4001, message=b"as asked")
            elif message.data == "big":
                await made.send_bytes(b"x" * (3 << 20))
            else:
                await (made.send_str(message.data) if isinstance(message.data, str) else made.send_bytes(message.data))
        return made

    async def events(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        made = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await made.prepare(request)
        for number in range(1000):
            await made.write(f"data: {number}\n\n".encode())
            await asyncio.sleep(0.05)
        return made

    made = web.Application(client_max_size=1 << 30)
    made.router.add_get("/echo", echo)
    made.router.add_get("/events", events)
    made.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(made, shutdown_timeout=0.1)
    await runner.setup()
    listening_at = web.TCPSite(runner, "127.0.0.1", 0)
    await listening_at.start()
    lab.servers[port] = runner.addresses[0][1]
    try:
        yield seen
    finally:
        await runner.cleanup()

"""A web server in a container's network: pages, a WebSocket that echoes, and a list of what it was asked.

`python3 openedserver.py PORT`. It prints a line for each request: method, path and cookies, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

_PAGES: Final = {
    "/": ("text/html", "<!doctype html><title>container</title><h1>served by a container</h1>"),
    "/sw.js": (
        "text/javascript",
        "self.addEventListener('fetch', (event) => event.respondWith(new Response('mine')));",
    ),
}


def _answer(_connection: ServerConnection, request: Request) -> Response | None:
    told = {"path": request.path, "cookie": request.headers.get("cookie", ""), "origin": request.headers.get("origin")}
    print(json.dumps(told), flush=True)  # noqa: T201
    if request.path == "/socket":
        return None
    kind, text = _PAGES.get(request.path, ("text/plain", "nothing"))
    headers = Headers({"content-type": kind, "content-length": str(len(text)), "access-control-allow-origin": "*"})
    headers["set-cookie"] = "tossed=1; Domain=localhost; Path=/"
    return Response(HTTPStatus.OK, "OK", headers, text.encode())


async def _echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(f"echo {message!s}")


async def _main(port: int) -> None:
    async with serve(_echo, "127.0.0.1", port, process_request=_answer):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))

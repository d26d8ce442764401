"""Attacks an API on TLS in one way for some seconds: `python -m benchmarks.attackers KIND PORT KEY SECONDS`.

A process of its own, so that what an attack costs its maker slows no measurement: the ways of a report by people who
tried them, each many times what a caller may have at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from websockets.asyncio import client
from websockets.exceptions import WebSocketException

HALF_OPEN: Final = 15_000
BODIES: Final = 20
BODY_BYTES: Final = 3 << 19
"""What a body may have; it was 3 MB in the report."""
SOCKETS: Final = 60
DOCUMENTS: Final = 16
_FROM: Final = {"handshakes": "127.0.0.2", "bodies": "127.0.0.3", "frames": "127.0.0.4", "documents": "127.0.0.5"}
"""Each from an address of its own, for one address may have so many handshakes alone."""
_FILES: Final = 4096
"""Of one process; more half-open connections than these are begun and dropped."""


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def handshakes(port: int, _key: str) -> None:
    """Open connections and never end a handshake: 15,000, and again those that the server has closed."""
    held: list[socket.socket] = []
    most = min(HALF_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 64)
    loop = asyncio.get_running_loop()
    for number in range(HALF_OPEN * 100):
        one = socket.socket()
        one.setblocking(False)
        one.bind((_FROM["handshakes"], 0))
        try:
            await loop.sock_connect(one, ("127.0.0.1", port))
            await loop.sock_sendall(one, b"\x16\x03\x01\x02\x00")
        except OSError:
            one.close()
            await asyncio.sleep(0.01)
            continue
        held.append(one)
        if len(held) >= most:
            held.pop(0).close()
        if number % 64 == 0:
            await asyncio.sleep(0)


async def bodies(port: int, key: str) -> None:
    """Send the largest bodies that there may be, twenty at once, again and again; each is judged, and refused."""
    entry = b'"K%06d":"x",'
    env = b"".join(entry % number for number in range((BODY_BYTES - 4096) // len(entry % 0)))
    body = b'{"name":"no/name","image":"localhost/none:1","env":{' + env.rstrip(b",") + b"}}"
    async with asyncio.TaskGroup() as tasks:
        for _ in range(BODIES):
            tasks.create_task(_again(lambda: _ask(port, key, b"POST /v1/containers", body, "bodies")))


async def documents(port: int, key: str) -> None:
    """Ask for the document that is made of all routes, over sixteen connections."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(DOCUMENTS):
            tasks.create_task(_again(lambda: _ask(port, key, b"GET /v1/openapi.json", b"", "documents")))


async def frames(port: int, key: str) -> None:
    """Send frames of 1 MiB that compress well to programs that read nothing, over sixty sockets."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(SOCKETS):
            tasks.create_task(_again(lambda: _send_frames(port, key)))


async def _send_frames(port: int, key: str) -> None:
    url = f"wss://127.0.0.1:{port}/v1/containers/box/exec?tenancy=red&command=sleep&command=600&stdin=true"
    headers = {"authorization": f"Bearer {key}"}
    opened = client.connect(
        url,
        ssl=_context(),
        additional_headers=headers,
        local_addr=(_FROM["frames"], 0),
        open_timeout=60,
        ping_interval=None,
    )
    async with opened as one:
        while True:
            await one.send(bytes(1 << 20))


async def _ask(port: int, key: str, what: bytes, body: bytes, kind: str) -> None:
    """Ask over one connection until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=_context(), local_addr=(_FROM[kind], 0))
    head = (
        what + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer %b\r\n" % key.encode()
    )
    try:
        while True:
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
            )
            await reader.readexactly(int(length.partition(b":")[2]))
            if b" 429 " in answer.partition(b"\r\n")[0] or b" 503 " in answer.partition(b"\r\n")[0]:
                await asyncio.sleep(0.05)
    finally:
        writer.close()


async def _again(act: Callable[[], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(OSError, EOFError, WebSocketException, TimeoutError):
            await act()
        await asyncio.sleep(0.05)


KINDS: Final[dict[str, Callable[[int, str], Awaitable[None]]]] = {
    "handshakes": handshakes,
    "bodies": bodies,
    "frames": frames,
    "documents": documents,
}


async def _main(kind: str, port: int, key: str, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await KINDS[kind](port, key)


if __name__ == "__main__":
    os.nice(10)  # attackers have machines of their own; here they share this one's processors
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(_FILES, hard), hard) if hard > 0 else (_FILES, hard))
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])))

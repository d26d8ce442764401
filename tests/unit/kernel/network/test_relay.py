"""Relays between ports, within this process's own namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest

from fairlead import errors
from fairlead.kernel.network import relay
from fairlead.kernel.network.relay import Relay, Where

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="entering a namespace needs root")


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@needs_root
async def test_what_comes_is_passed_on_both_ways_to_the_last_byte() -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(upper, "127.0.0.1", 0) as server:
        where = Where(os.getpid(), "127.0.0.1", server.sockets[0].getsockname()[1])
        made, port = Relay(lambda: where), _free()
        await made.listen(port, pid=os.getpid())
        try:
            assert await _say(port, b"x" * 500_000) == b"X" * 500_000
        finally:
            await made.close()


@needs_root
async def test_with_nothing_behind_it_a_connection_ends_and_a_taken_port_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, port = Relay(lambda: None), _free()
    await made.listen(port)
    try:
        assert await _say(port, b"x") == b""
        with pytest.raises(errors.Unavailable, match=f"port {port} cannot be listened on"):
            await Relay(lambda: None).listen(port)
    finally:
        await made.close()
    gone = Relay(lambda: Where(os.getpid(), "127.0.0.1", _free()))
    monkeypatch.setattr(relay, "_MOST", 1)
    await gone.listen(port)
    try:
        assert await _say(port, b"x") == b""
    finally:
        await gone.close()

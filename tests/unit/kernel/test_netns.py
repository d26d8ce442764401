"""Connections from inside a process's network namespace."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from fairlead import errors
from fairlead.kernel.network import netns, probe

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="entering a namespace needs root")


@needs_root
async def test_bytes_go_both_ways_on_either_loopback() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(10))
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        connection = await netns.connect(os.getpid(), server.sockets[0].getsockname()[1])
        await connection.write(b"ping")
        assert (await connection.read(), await connection.read()) == (b"ping", b"")
        await connection.close()


@needs_root
async def test_a_port_without_a_listener_and_a_process_that_is_gone_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.Unavailable, match=f"port {port} in the container: Connection refused") as caught:
        await netns.connect(os.getpid(), port)
    assert caught.value.reason == "PortRefused"
    with pytest.raises(errors.Unavailable, match="No such file") as caught:
        await netns.connect(1 << 30, port)
    assert caught.value.reason == "NamespaceUnusable"


@needs_root
async def test_a_probe_reaches_its_listener_and_takes_no_other_program_for_it() -> None:
    async with probe.listening(None, 4, "127.0.0.1") as one, probe.listening(os.getpid(), 4, "127.0.0.1") as other:
        assert await probe.reaches(os.getpid(), 4, "127.0.0.1", one, timeout_s=5)
        other.word = one.word
        assert not await probe.reaches(None, 4, "127.0.0.1", other, timeout_s=5)
    assert not await probe.reaches(None, 4, "127.0.0.1", one, timeout_s=5)
    with pytest.raises(errors.Unavailable) as caught:
        await probe.reaches(1 << 30, 4, "127.0.0.1", one, timeout_s=5)
    assert caught.value.reason == "ProbeFailed"

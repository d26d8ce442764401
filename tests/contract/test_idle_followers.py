"""5,000 followers of events who only wait: all are held, the memory of each is small, and each hears what happens."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from fairlead.serve import server, sockets
from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.conftest import world
from tests.unit.serve.world import World, application

__all__ = ["world"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
_FOLLOWERS: Final = 5000
_ASKED: Final = b"GET /v1/events?tail=0 HTTP/1.1\r\nHost: test\r\nAccept: text/event-stream\r\n\r\n"
_AT_ONCE: Final = 50
_EACH_BYTES: Final = 160 << 10
"""Both ends of a connection are in this process."""


async def _follow(path: Path, gate: asyncio.Semaphore) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with gate:
        reader, writer = await asyncio.open_unix_connection(path, limit=1 << 12)
        writer.write(_ASKED)
        await reader.readuntil(b"event: current")
        await reader.readuntil(b"\n\n")
    return reader, writer


async def test_five_thousand_idle_followers_are_held_and_hear_what_happens(world: World, tmp_path: Path) -> None:
    sockets.make_room(2 * _FOLLOWERS + 500)
    ready, path = asyncio.Event(), tmp_path / "api.sock"
    limits = sockets.Limits(connections=_FOLLOWERS + 100)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve_unix(application(world.services), path, ready=ready, limits=limits))
        await ready.wait()
        before, begun, gate = _resident(), time.monotonic(), asyncio.Semaphore(_AT_ONCE)
        held = await asyncio.gather(*(_follow(path, gate) for _ in range(_FOLLOWERS)))
        each = (_resident() - before) / _FOLLOWERS
        held_s = time.monotonic() - begun
        about = core.ObjectReference(kind="Pod", name="train", namespace="default")
        happened = time.monotonic()
        await world.store.create(
            core.Event(metadata=meta.ObjectMeta(name="one", namespace="default"), involved_object=about, message="now")
        )
        await asyncio.gather(*(reader.readuntil(b'"message":"now"') for reader, _ in held))
        heard_s = time.monotonic() - happened
        for _, writer in held:
            writer.close()
        serving.cancel()
    sys.stderr.write(f"{_FOLLOWERS} held after {held_s:.1f} s, {each / 1024:.0f} KiB each; heard in {heard_s:.2f} s\n")
    assert each < _EACH_BYTES


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

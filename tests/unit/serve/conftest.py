from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

# The world is shared with tests/unit/cli; without this line only `python -m pytest` would find it.
sys.path.insert(0, str(Path(__file__).parents[3]))

from fairlead.serve import server
from fairlead.serve.history import file
from tests.unit.serve.world import World, application, in_process


@pytest.fixture(autouse=True)
def _closed_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the files of figures that a test opened, as the recorder does that runs in a service."""
    opened: list[file.HistoryFile] = []
    begin = file.HistoryFile.__init__

    def noted(self: file.HistoryFile, path: Path, *, days: float, most_bytes: int) -> None:
        begin(self, path, days=days, most_bytes=most_bytes)
        opened.append(self)

    monkeypatch.setattr(file.HistoryFile, "__init__", noted)
    yield
    for one in opened:
        one.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    machine = World(tmp_path)
    async with machine.running():
        yield machine


@pytest.fixture
async def api(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """The application called in the test's own loop: its answers are whole, never in pieces."""
    transport = in_process(application(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
async def door(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """The application behind a real socket, for what comes in pieces."""
    path = world.services.info.socket
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve_unix(application(world.services), path, ready=ready))
        await ready.wait()
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://test") as it:
            yield it
        task.cancel()

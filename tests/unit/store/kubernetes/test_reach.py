"""Whether an API server answers: what `/readyz` of a process says that can do nothing without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlead import errors
from fairlead.store.kubernetes.reach import Reach


class Server:
    """An API server whose next answer a test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False

    async def version(self) -> str:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return "v1.36.2"


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not seen():  # noqa: ASYNC110  it is asked by its own clock
            await asyncio.sleep(0.005)


async def test_it_says_why_a_server_cannot_be_reached_and_when_it_can_again() -> None:
    server = Server()
    reach = Reach(server, every_s=0.01, patience_s=0.05)
    assert "has not answered yet" in reach.problem()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(reach.run())
        await _until(lambda: not reach.problem())
        server.error = errors.Unavailable("connection refused by 10.0.0.1:6443", reason="Unreachable")
        await _until(lambda: "connection refused by 10.0.0.1:6443" in reach.problem())
        server.error = errors.Denied("no", reason="Forbidden")
        await _until(lambda: not reach.problem())
        server.hangs = True
        await _until(lambda: "did not answer within" in reach.problem())
        server.hangs = False
        await _until(lambda: not reach.problem())
        asking.cancel()

"""What the harness calls a hang: processor time, in the loop or in threads, in each of its tries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fuzz import harness


def burn() -> None:
    until = time.thread_time() + 1.5 * harness.HANG_S
    while time.thread_time() < until:
        sum(range(1000))


@pytest.mark.parametrize(("slow", "found"), [(1, 0), (3, 1)])
async def test_time_of_threads_is_a_hang_where_every_try_takes_it(
    slow: int, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "HANG_S", 0.2)
    tries: list[bytes] = []

    @asynccontextmanager
    async def opened(_: Path) -> AsyncIterator[harness.Feed]:
        async def feed(data: bytes) -> None:
            tries.append(data)
            if len(tries) <= slow:
                await asyncio.to_thread(burn)

        yield feed

    door = harness.Door(name="a door", opened=opened, refusals=())
    seen = await harness.fuzz(door, [harness.Case("a case", lambda: b"it")], tmp_path)

    assert len(seen) == found
    assert len(tries) == min(slow + 1, 3)
    assert all("processor time" in one.what for one in seen)

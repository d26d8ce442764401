"""Runs what carries one exchange side by side, and ends all of it with what ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Step = Callable[[], Coroutine[Any, Any, None]]


async def first(*steps: Step) -> int:
    """Run steps until one of them ends, cancel the others and wait for them; return the place of the first that ended.

    Raises: what that one raises.
    """
    over: list[tuple[int, Exception | None]] = []
    is_over = asyncio.Event()

    async def run(place: int, step: Step) -> None:
        failure: Exception | None = None
        try:
            await step()
        except Exception as error:  # noqa: BLE001 raised below: out of the group it would be in a group of its own
            failure = error
        over.append((place, failure))
        is_over.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(place, step)) for place, step in enumerate(steps)]
        await is_over.wait()
        for task in tasks:
            task.cancel()
    place, failure = over[0]
    if failure is not None:
        raise failure
    return place

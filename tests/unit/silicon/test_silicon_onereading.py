"""Counters are read once for all who ask at about the same time."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import errors
from fairlead.model.sample import Sample
from fairlead.silicon.onereading import OneReading


class _Counted:
    """Silicon that counts its readings, and holds them back."""

    def __init__(self) -> None:
        self.readings = 0
        self.gate = asyncio.Event()
        self.failure: Exception | None = None

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        self.readings += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return ()


async def test_all_who_ask_at_once_are_told_one_reading_and_who_asks_later_a_new_one() -> None:
    silicon, now = _Counted(), [0.0]
    one = OneReading(silicon, clock=lambda: now[0])
    async with asyncio.TaskGroup() as asking:
        for _ in range(100):
            asking.create_task(one.sample(within_s=1))
        await asyncio.sleep(0)
        silicon.gate.set()
    assert silicon.readings == 1
    now[0] += 0.3
    await one.sample(within_s=1)
    assert silicon.readings == 2


async def test_who_hangs_up_leaves_the_reading_to_the_next() -> None:
    silicon = _Counted()
    one = OneReading(silicon)
    async with asyncio.TaskGroup() as asking:
        first = asking.create_task(one.sample(within_s=1))
        second = asking.create_task(one.sample(within_s=1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        silicon.gate.set()
    assert second.result() == ()


async def test_a_failure_is_not_kept() -> None:
    silicon = _Counted()
    silicon.gate.set()
    silicon.failure = errors.DeviceFault("lost", reason="Lost", hint="look")
    one = OneReading(silicon)
    with pytest.raises(errors.DeviceFault):
        await one.sample(within_s=1)
    silicon.failure = None
    assert await one.sample(within_s=1) == ()

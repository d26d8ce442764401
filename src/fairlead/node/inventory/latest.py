"""Hands the newest value of something to any number of readers; it ties the node's loops together.

A writer never waits and never queues: a slow reader skips to the newest value. Equal values are one value, so nothing
is sent twice. One event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """A value, its version and a way to wait for the next one."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def version(self) -> int:
        """Counts changes; 0 is the initial value."""
        return self._version

    def set(self, value: T) -> bool:
        """Publish; returns False, and wakes no reader, when it equals the newest value."""
        if value == self._value:
            return False
        self._value = value
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return True

    async def wait(self, seen: int) -> int:
        """Return the version as soon as it differs from `seen`."""
        while self._version == seen:
            await self._changed.wait()
        return self._version

    async def changes(self) -> AsyncIterator[T]:
        """Yield the newest value now, then after every change, for ever."""
        while True:
            seen = self._version
            yield self._value
            await self.wait(seen)

    async def follow(self, act: Callable[[T], object]) -> None:
        """Call `act` with the newest value now, then after every change, for ever."""
        async for value in self.changes():
            act(value)

"""Keeps what was made of objects, as long as the very same objects are asked about again.

The store answers a listing again with the same frozen objects until something changes; what is made of them is the same
then, too. They are known by identity, and kept beside what was made of them, so that no other object takes their place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ResultCache(Generic[T]):
    """What was made last; the least recently used is forgotten first."""

    def __init__(self, most: int) -> None:
        """Args: most: how much is kept."""
        self._most = most
        self._made: OrderedDict[tuple[int, ...], tuple[tuple[object, ...], T]] = OrderedDict()

    def of(self, *sources: object, make: Callable[[], T]) -> T:
        """Return what was made of these objects, or make it."""
        name = tuple(map(id, sources))
        if name in self._made:
            self._made.move_to_end(name)
            return self._made[name][1]
        value = make()
        self._made[name] = (sources, value)
        if len(self._made) > self._most:
            self._made.popitem(last=False)
        return value

"""Caches results that are computed from objects, by the identity of the objects.

The store answers a listing again with the same frozen objects until something changes, so the result is the same too.
The objects are kept beside their result, so that no other object can get their id().
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ResultCache(Generic[T]):
    """An LRU cache of results."""

    def __init__(self, most: int) -> None:
        """Args: most: number of results that are kept."""
        self._most = most
        self._made: OrderedDict[tuple[int, ...], tuple[tuple[object, ...], T]] = OrderedDict()

    def of(self, *sources: object, make: Callable[[], T]) -> T:
        """Return the result for these very objects; computed by `make` where none is kept."""
        name = tuple(map(id, sources))
        if name in self._made:
            self._made.move_to_end(name)
            return self._made[name][1]
        value = make()
        self._made[name] = (sources, value)
        if len(self._made) > self._most:
            self._made.popitem(last=False)
        return value

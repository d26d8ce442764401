"""Keeps the listings that were asked for last, as long as the backend has the state that they were read from.

Consoles, scripts and probes ask again and again, and mostly nothing has changed. Objects are frozen, so all who ask
share them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, TypeVar

from fairlead.store import port
from fairlead.wire.kubernetes import meta

T = TypeVar("T", bound=meta.Object)

_MOST: Final = 512
"""Objects in all listings together: a few MB."""
_Name = tuple[type[Any], str | None, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]


class Listings:
    """Listings of one state."""

    def __init__(self) -> None:
        self._mark: int | None = None
        self._kept: OrderedDict[_Name, port.Listing[Any]] = OrderedDict()
        self._count = 0

    def find(self, kind: type[T], selector: port.Selector, mark: int) -> port.Listing[T] | None:
        """Return what a kind's listing was at this state. Args: mark: of the state that there is now."""
        if mark != self._mark:
            self._kept.clear()
            self._mark, self._count = mark, 0
        name = _name(kind, selector)
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def keep(self, kind: type[T], selector: port.Selector, listing: port.Listing[T], mark: int) -> None:
        """Keep a listing. Args: mark: of the state before it was read, with which `find` was asked."""
        size = max(1, len(listing.items))
        name = _name(kind, selector)
        if mark != self._mark or size > _MOST or name in self._kept:
            return
        self._kept[name] = listing
        self._count += size
        while self._count > _MOST:
            _, oldest = self._kept.popitem(last=False)
            self._count -= max(1, len(oldest.items))


def _name(kind: type[T], selector: port.Selector) -> _Name:
    return kind, selector.namespace, tuple(sorted(selector.labels.items())), tuple(sorted(selector.fields.items()))

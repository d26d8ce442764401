"""Finds objects by what a person typed: which match, which come first, how many are shown. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Final

from fairlead.frozen import frozen

LONGEST: Final = 100
"""Characters of a search that count."""
MOST: Final = 20
"""Objects of one kind that are shown."""
_MOST_WORDS: Final = 8
_EXACT, _BEGINS, _CONTAINS, _ABOUT = range(4)


@frozen
class Hit:
    """One object that a search may lead to."""

    name: str
    address: str
    about: str = ""
    """What its line says beside the name; searched as well."""
    space: str = ""
    """What people call its namespace; empty: it has none, or the plain one."""
    more: str = ""
    """Searched, not shown."""
    aliases: tuple[str, ...] = ()
    """Other names by which it is meant: a GPU's UUID."""


@frozen
class Group:
    """The objects of one kind that were found, best first."""

    title: str
    hits: tuple[Hit, ...]
    left_out: int


def words_of(query: str) -> tuple[str, ...]:
    """Return the words of a search, in lower case; what is behind the bounds is left out."""
    return tuple(query[:LONGEST].lower().split()[:_MOST_WORDS])


def group(title: str, hits: Iterable[Hit], query: str) -> Group:
    """Return those that match all words of a search: equal names first, then names that begin so, then the rest."""
    words = words_of(query)
    if not words:
        return Group(title=title, hits=(), left_out=0)
    ranked = ((_rank(one, words), one) for one in hits)
    found = sorted(
        ((rank, one.name, one.space, one) for rank, one in ranked if rank is not None), key=lambda found: found[:3]
    )
    return Group(title=title, hits=tuple(one for *_, one in found[:MOST]), left_out=max(0, len(found) - MOST))


def only(groups: Sequence[Group], query: str) -> Hit | None:
    """Return the object that a search names exactly, if it is the only one of that name."""
    wanted = " ".join(words_of(query))
    found = [one for each in groups for one in each.hits if wanted in _names(one)]
    return found[0] if len(found) == 1 else None


def address(path: str, **query: str) -> str:
    """Return the address of a page with a query."""
    return f"{path}?{urllib.parse.urlencode(query)}"


def _names(one: Hit) -> tuple[str, ...]:
    return (one.name.lower(), *(text.lower() for text in one.aliases))


def _rank(one: Hit, words: tuple[str, ...]) -> int | None:
    names = _names(one)
    text = "\n".join((*names, one.about, one.space, one.more)).lower()
    if not all(word in text for word in words):
        return None
    whole = " ".join(words)
    if whole in names:
        return _EXACT
    if any(name.startswith(whole) for name in names):
        return _BEGINS
    return _CONTAINS if any(whole in name for name in names) else _ABOUT

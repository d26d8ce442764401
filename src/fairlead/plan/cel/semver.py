"""Parses and orders semantic versions.

Versions are ordered by precedence; build metadata counts for nothing.
Source: semver.org 2.0.0; blang/semver v4 `Parse`, apiserver pkg/cel/library/semverlib.go (`normalize`).
"""

from __future__ import annotations

import functools
import re
from functools import total_ordering
from typing import Final

_NUMBER: Final = r"(0|[1-9][0-9]{0,19})"
_WORDS: Final = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SHAPE: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORDS}))?(?:\+({_WORDS}))?", re.ASCII)
_LARGEST: Final = 2**64 - 1


@total_ordering
class Semver:
    """A semantic version; `key` orders it."""

    __slots__ = ("key", "text")

    def __init__(self, text: str, key: tuple[object, ...]) -> None:
        self.text = text
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.key == other.key

    def __lt__(self, other: Semver) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Semver({self.text!r})"


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Semver | None:
    """Return the version that a text is in strict form; None: it is none."""
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        return None
    numbers = [int(shape[at]) for at in (1, 2, 3)]
    words = shape[4].split(".") if shape[4] else []
    digits = [word for word in words if word.isdigit()]
    if any(len(word) > 1 and word[0] == "0" for word in digits):
        return None
    if max(*numbers, *map(_bounded, digits)) > _LARGEST:
        return None
    # A release comes after each of its pre-releases; a numeral before each word.
    order = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words)
    return Semver(text, (*numbers, not words, order))


def _bounded(digits: str) -> int:
    return int(digits) if len(digits) <= 20 else _LARGEST + 1


def normalized(text: str) -> str | None:
    """Return a version without its `v` and needless zeros, in three parts; None: a short one has more than numbers."""
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[at] = bare if bare and bare[0] in "0123456789" else f"0{bare}"
    if len(parts) < 3:
        if set("+-") & set(parts[-1]):
            return None
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)

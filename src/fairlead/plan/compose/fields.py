"""Says of each attribute of the Compose specification what becomes of it: carried out, left out and said, refused.

The table is `fields.toml`; a key that it does not have is none of the specification's, and is refused with the one
that was meant. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead import errors

_LONGEST: Final = 64


class _Fields(msgspec.Struct, frozen=True):
    carried: dict[str, frozenset[str]]
    said: dict[str, dict[str, str]]
    refused: dict[str, dict[str, str]]


@functools.cache
def _fields() -> _Fields:
    import tomllib  # only `compose` needs it

    return msgspec.convert(tomllib.loads(Path(__file__).with_suffix(".toml").read_text()), _Fields)


class Remarks:
    """What is said about one project, path by path."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.left_out = dict[str, None]()
        """Lines about what is not carried out."""
        self.refused = dict[str, None]()
        """Lines about what would make a difference to the program."""

    def say(self, path: str, why: str) -> None:
        """Note what is left out."""
        self.left_out[errors.readable(f"{path}: not carried out: {why}")] = None

    def note(self, path: str, text: str) -> None:
        """Note what a person should know."""
        self.left_out[errors.readable(f"{path}: {text}")] = None

    def refuse(self, path: str, why: str) -> None:
        """Note what may not be left out."""
        self.refused[errors.readable(f"{path}: {why}")] = None

    def check(self) -> None:
        """Raises: Invalid (`ComposeRefused`): something may not be left out."""
        if self.refused:
            found = list(self.refused)
            text = "; ".join(found[:20]) + ("; and more" if len(found) > 20 else "")
            hint = "take it out, or put `!reset null` in its place in a second file: -f compose.yaml -f mine.yaml"
            raise errors.Invalid(text, reason="ComposeRefused", hint=hint, problems=found)


def judge(kind: str, given: Mapping[str, Any], path: str, remarks: Remarks) -> None:
    """Note what becomes of each key of a part of a file.

    Args: kind: a row of the table, `service`, `deploy`.   given: without tags.
    """
    table = _fields()
    said, refused = table.said.get(kind, {}), table.refused.get(kind, {})
    known = {*table.carried.get(kind, ()), *said, *refused}
    for key, one in given.items():
        where = f"{path}.{key}" if path else key
        if key.startswith("x-") or key in table.carried.get(kind, ()) or _is_nothing(one):
            if key not in known and not key.startswith("x-"):
                remarks.refuse(where, _unknown(key, known))
        elif key in said:
            remarks.say(where, said[key])
        elif key in refused:
            remarks.refuse(where, refused[key])
        else:
            remarks.refuse(where, _unknown(key, known))


def attributes(kind: str) -> Iterable[tuple[str, str, str]]:
    """Yield each attribute of a part with what becomes of it (`carried out`, `said`, `refused`) and why."""
    table = _fields()
    for key in sorted(table.carried.get(kind, ())):
        yield key, "carried out", ""
    for word, rows in (("said", table.said.get(kind, {})), ("refused", table.refused.get(kind, {}))):
        for key, why in sorted(rows.items()):
            yield key, word, why


def _is_nothing(given: Any) -> bool:
    return given is None or given in ([], {}, "") or given is False


def _unknown(key: str, known: Iterable[str]) -> str:
    close = errors.closest(key, sorted(known)) if len(key) <= _LONGEST else ""
    return "the Compose specification has no such key" + (f', did you mean "{close}"?' if close else "")

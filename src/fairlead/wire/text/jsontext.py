"""Edits JSON files that people keep: one member set or taken away, every other character left as it is.

`json` reads and writes whole documents; here a small scanner finds where a member stands in the text, so that the
layout of an administrator's `daemon.json` survives. New members are laid out as their neighbours are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead import errors

_SPACE: Final = " \t\r\n"
_UNIT: Final = "  "
DEEPEST: Final = 64
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Member:
    key: str
    begin: int
    """Where its key begins."""
    value: int
    """Where its value begins."""
    end: int
    """Behind its value."""


def parse(data: bytes, *, path: str) -> dict[str, Any]:
    """Return the object a file holds; an empty file counts as an empty object.

    Raises: ProtocolError (`FileMalformed`): not UTF-8, not JSON or no object; the message has `path:line:column`.
    """
    hint = "correct that line; the engine does not read the file as it is either"
    try:
        text = data.decode()
        found = json.loads(text) if text.strip() else {}
        json.dumps(found, ensure_ascii=False).encode()  # half a character, which only an escape can say
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise errors.ProtocolError(f"{path}:{line}: not UTF-8", reason="FileMalformed", hint=hint) from error
    except RecursionError as error:
        message = f"{path}: nested deeper than {DEEPEST} levels"
        raise errors.ProtocolError(message, reason="FileMalformed", hint=hint) from error
    except json.JSONDecodeError as error:
        message = f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg.lower()}"
        raise errors.ProtocolError(message, reason="FileMalformed", hint=hint) from error
    except ValueError as error:  # a number of 5,000 digits, or half a character
        raise errors.ProtocolError(f"{path}: not JSON: {error}", reason="FileMalformed", hint=hint) from error
    if is_deep(found):
        message = f"{path}: nested deeper than {DEEPEST} levels"
        raise errors.ProtocolError(message, reason="FileMalformed", hint=hint)
    if not isinstance(found, dict):
        message = f"{path}:1: a JSON object is wanted, not {type(found).__name__}"
        raise errors.ProtocolError(message, reason="FileMalformed", hint=hint)
    return found


def is_deep(value: object) -> bool:
    """Return whether a decoded document is nested deeper than any engine's configuration."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return False
    return True


def find(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None where it is not there."""
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def put(data: bytes, path: Sequence[str], value: Any) -> bytes:
    """Set the member at a path of keys; objects on the way that are not there are made.

    Raises: ProtocolError (`FileMalformed`): something on the way is there and is not an object.
    """
    text = data.decode()
    if not text.strip():
        text = "{}\n"
    return _put(text, text.index("{"), path, value, unit=_unit(text)).encode()


def _put(text: str, at: int, path: Sequence[str], value: Any, *, unit: str, depth: int = 1) -> str:
    members = list(_members(text, at))
    key, rest = path[0], path[1:]
    found = next((member for member in reversed(members) if member.key == key), None)
    if found is not None and rest:
        if text[found.value] != "{":
            line = text.count("\n", 0, found.value) + 1
            raise errors.ProtocolError(f'line {line}: "{key}" is not an object', reason="FileMalformed")
        return _put(text, found.value, rest, value, unit=unit, depth=depth + 1)
    for name in reversed(rest):
        value = {name: value}
    is_flat = bool(members) and "\n" not in text[at : members[0].begin]
    written = json.dumps(value, ensure_ascii=False, indent=None if is_flat else unit)
    written = written.replace("\n", f"\n{unit * depth}")
    if found is not None:
        return text[: found.value] + written + text[found.end :]
    entry = f"{json.dumps(key, ensure_ascii=False)}: {written}"
    if not members:
        closing = text.index("}", at)
        return f"{text[: at + 1]}\n{unit * depth}{entry}\n{unit * (depth - 1)}{text[closing:]}"
    # Between two members stands what stands before the first: the same line end, the same indentation.
    gap = " " if is_flat else text[at + 1 : members[0].begin]
    end = members[-1].end
    return f"{text[:end]},{gap}{entry}{text[end:]}"


def drop(data: bytes, path: Sequence[str]) -> bytes:
    """Take the member at a path of keys away, with one comma; a path that is not there changes nothing."""
    text = data.decode()
    at = text.find("{")
    for key in path[:-1]:
        found = next((member for member in _members(text, at) if member.key == key), None)
        if found is None or text[found.value] != "{":
            return data
        at = found.value
    members = list(_members(text, at))
    place = next((index for index, member in enumerate(members) if member.key == path[-1]), None)
    if place is None:
        return data
    gone = members[place]
    if len(members) == 1:
        return (text[: at + 1] + text[text.index("}", gone.end) :]).encode()
    begin, end = (gone.begin, members[1].begin) if place == 0 else (members[place - 1].end, gone.end)
    return (text[:begin] + text[end:]).encode()


def _unit(text: str) -> str:
    """Return one step of the document's indentation; two spaces where it shows none."""
    first = next(iter(_members(text, text.index("{"))), None)
    gap = text[: first.begin].rpartition("\n") if first else ("", "", "")
    return gap[2] if gap[1] and gap[2] and not gap[2].strip() else _UNIT


def _members(text: str, at: int) -> Iterator[_Member]:
    """Yield the members of the object whose brace stands at `at`; the document is known to be JSON."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        begin = at
        key, at = _DECODER.raw_decode(text, at)
        value = _skip(text, text.index(":", at) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield _Member(str(key), begin, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at

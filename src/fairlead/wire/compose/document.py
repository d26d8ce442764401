"""Reads Compose files: YAML with anchors, merge keys and the tags `!reset` and `!override`, into plain values.

The parser's events are put together here, because the text comes from anybody: each value counts as often as an alias
or a merge key repeats it, so that a file that would unfold to gigabytes is refused after a bounded number of steps, and
nothing is ever copied that an alias names. Scalars are read by the rules of YAML 1.2, as Compose's own reader does:
`yes` and `22:22` are text.
Source: Compose specification, "Fragments", "Merge" (reset, override); YAML 1.2.2, 10.3 (core schema).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from fairlead import errors

LARGEST_BYTES: Final = 1 << 20
"""Of one file."""
MOST_VALUES: Final = 50_000
"""Scalars, lists and maps of one file, aliases unfolded."""
_MOST_CHARACTERS: Final = 8 << 20
_DEEPEST: Final = 40
_INTEGER: Final = re.compile(r"[-+]?(?:0b[01]+|0o?[0-7]+|0x[0-9a-fA-F]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DIGITS: Final = 18
_MERGE: Final = "<<"
_STR: Final = "tag:yaml.org,2002:str"
_TAGS: Final = frozenset(
    {
        "!",
        "!reset",
        "!override",
        *(f"tag:yaml.org,2002:{one}" for one in ("str", "int", "float", "bool", "null", "map", "seq")),
    }
)


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value with one of Compose's tags."""

    tag: str
    """`reset`: what stands there goes; `override`: the value takes its place, and is merged with nothing."""
    value: Any


def parse(data: bytes, name: str) -> tuple[dict[str, Any], ...]:
    """Return the documents of a file. Args: name: of the file, for messages. Raises: RequestError."""
    if len(data) > LARGEST_BYTES:
        raise _unreadable(name, f"it has more than {LARGEST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(name, f"it is not UTF-8: byte {error.start}") from error
    try:
        found = list(_Reader(name, text).documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _unreadable(name, f"{error.problem}{where}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable(name, " ".join(str(error).split())) from error
    kept = [one for one in found if one is not None]
    for one in kept:
        if not isinstance(one, dict):
            raise _unreadable(name, "it is not a map with `services`")
    if not kept:
        raise _unreadable(name, "it is empty")
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class _Anchored:
    """A value with a name, and what it costs where it is named."""

    value: Any
    values: int
    characters: int


class _Reader:
    """Puts the events of a text together."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._events: Iterator[Any] = iter(yaml.parse(text, yaml.CSafeLoader))
        self._values = self._characters = 0
        self._anchors = dict[str, _Anchored | None]()
        """None: the value with that name is still being read."""

    def documents(self) -> Iterator[Any]:
        """Yield each document's value. Raises: RequestError; yaml.YAMLError."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                yield self._value(next(self._events), 0)

    def _spend(self, values: int, characters: int, event: Any) -> None:
        self._values += values
        self._characters += characters
        if self._values > MOST_VALUES:
            raise self._wrong(event, f"it holds more than {MOST_VALUES} values, counted as often as they are used")
        if self._characters > _MOST_CHARACTERS:
            raise self._wrong(event, f"it unfolds to more than {_MOST_CHARACTERS} characters")

    def _value(self, event: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self._wrong(event, f"it is nested deeper than {_DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None and event.tag not in _TAGS:
            raise self._wrong(event, f'the tag "{errors.readable(event.tag[:80])}" is not known')
        values, characters = self._values, self._characters
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            self._spend(1, len(event.value), event)
            value: Any = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._spend(1, 0, event)
            value = self._sequence(depth)
        else:
            self._spend(1, 0, event)
            value = self._mapping(depth)
        if event.tag in {"!reset", "!override"}:
            value = Tagged(event.tag[1:], None if event.tag == "!reset" else value)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, self._values - values, self._characters - characters)
        return value

    def _alias(self, event: Any) -> Any:
        name = event.anchor
        if name not in self._anchors:
            raise self._wrong(event, f'there is no anchor "{errors.readable(name[:80])}"')
        if (found := self._anchors[name]) is None:
            raise self._wrong(event, f'the anchor "{errors.readable(name[:80])}" holds itself')
        self._spend(found.values, found.characters, event)
        return found.value

    def _sequence(self, depth: int) -> list[Any]:
        found = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, depth + 1))
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        found, merged = dict[str, Any](), list[dict[str, Any]]()
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            is_merge = key == _MERGE and isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            inner = next(self._events)
            value = self._value(inner, depth + 1)
            if is_merge:
                for one in value if isinstance(value, list) else [value]:
                    if not isinstance(one, dict):
                        raise self._wrong(inner, "<< merges maps, or a list of maps")
                    merged.append(one)
                continue
            if not isinstance(key, str):
                key = self._key(key, event)
            if key in found:
                raise self._wrong(event, f'the key "{errors.readable(key[:80])}" is there twice')
            found[key] = value
        for one in merged:  # the first of them goes before the later ones
            found.update({key: value for key, value in one.items() if key not in found})
        return found

    def _key(self, key: Any, event: Any) -> str:
        if key is None or isinstance(key, dict | list | Tagged):
            raise self._wrong(event, "a key is text")
        return event.value if isinstance(event, yaml.ScalarEvent) else str(key)

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if event.tag == _STR:
            return text
        return plain(text) if event.implicit[0] else text

    def _wrong(self, event: Any, problem: str) -> errors.RequestError:
        mark = event.start_mark
        where = f" (line {mark.line + 1})" if mark is not None else ""
        return _unreadable(self._name, f"{problem}{where}")


def plain(text: str) -> Any:
    """Return what a scalar without quotes is."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) <= _DIGITS:
        digits = text.lstrip("+-")
        is_old_octal = len(digits) > 1 and digits[0] == "0" and digits.isdecimal()
        value = int(digits, 8) if is_old_octal else int(digits, 0)
        return -value if text[0] == "-" else value
    if _FLOAT.fullmatch(text) and len(text) <= _DIGITS:
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _unreadable(name: str, problem: str) -> errors.RequestError:
    message = f"{errors.readable(name)} cannot be read: {problem}"
    return errors.RequestError(message, reason="ComposeUnreadable", hint="`services:` begins a Compose file")

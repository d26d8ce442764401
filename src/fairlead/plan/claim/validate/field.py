"""Words the problems of fields as the API server does.

Source: apimachinery pkg/util/validation/field/errors.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_LONGEST: Final = 512
_ESCAPES: Final = {
    **{'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f"},
    **{"\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"},
}


def required(path: str, detail: str = "") -> str:
    """Return the problem of a field that must be given."""
    return f"{path}: Required value" + (f": {detail}" if detail else "")


def invalid(path: str, value: object, detail: str) -> str:
    """Return the problem of a value that breaks a rule."""
    return f"{path}: Invalid value: {shown(value)}: {detail}"


def forbidden(path: str, detail: str) -> str:
    """Return the problem of a field that may not be given here."""
    return f"{path}: Forbidden: {detail}"


def unsupported(path: str, value: str, offered: Iterable[str]) -> str:
    """Return the problem of a value that is not one of those offered."""
    return f"{path}: Unsupported value: {_json(value)}: supported values: {', '.join(shown(one) for one in offered)}"


def duplicate(path: str, value: object) -> str:
    """Return the problem of a value that stands in its list before."""
    return f"{path}: Duplicate value: {shown(value)}"


def not_found(path: str, value: object) -> str:
    """Return the problem of a name that names nothing."""
    return f"{path}: Not found: {_json(value)}"


def too_long(path: str, most: int, unit: str = "bytes") -> str:
    """Return the problem of a text that is too long; the text itself is not shown."""
    return f"{path}: Too long: may not be more than {most} {unit}"


def too_many(path: str, count: int, most: int) -> str:
    """Return the problem of a list or map that is too long."""
    return f"{path}: Too many: {count}: must have at most {most} items"


def each(
    items: Sequence[T], path: str, check: Callable[[T, str], Iterable[str]], *, most: int | None = None
) -> Iterator[str]:
    """Yield the problems of every item of a list, or the one that it is too long: then no item is looked at."""
    if most is not None and len(items) > most:
        yield too_many(path, len(items), most)
        return
    for at, item in enumerate(items):
        yield from check(item, f"{path}[{at}]")


def unique(items: Collection[T], path: str, key: Callable[[T], Hashable], show: Callable[[T], Any]) -> Iterator[str]:
    """Yield a problem for each item of a list whose key stands in it before."""
    seen: set[Hashable] = set()
    for at, item in enumerate(items):
        of_item = key(item)
        if of_item in seen:
            yield duplicate(f"{path}[{at}]", show(item))
        seen.add(of_item)


class Constant(str):
    """A text of a type of its own in Go (an operator, an effect), which a problem shows as JSON."""

    __slots__ = ()


def shown(value: object) -> str:
    """Return a value as a problem shows it: texts quoted as Go does, others as JSON.

    A text of more than 512 characters is shortened in its middle, which the server does not do: it may have a million.
    """
    if isinstance(value, str) and not isinstance(value, Constant):
        return '"' + "".join(map(_escaped, _short(value))) + '"'
    return _json(value)


def _json(value: object) -> str:
    """Return a value as Go's JSON has it, which could stand in a page of HTML."""
    text = _short(msgspec.json.encode(str(value) if isinstance(value, Constant) else value).decode())
    return "".join(f"\\u{ord(char):04x}" if char in "<>&\u2028\u2029" else char for char in text)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def key(path: str, name: str, longest: int) -> str:
    """Return the path of a map's value; a long key is shortened in its middle."""
    most = max(longest, 16)
    if len(name) > most:
        remaining = most - len("...")
        name = f"{name[: (remaining + 1) // 2]}...{name[len(name) - remaining // 2 :]}"
    return f"{path}[{name}]"

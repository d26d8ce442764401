"""Walks a valid document and puts hostile values where it has its own, one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.fuzz.hostile import Raw, Value

_HERE: Final = "fuzz-raw-value-goes-here"

Path = tuple[str | int, ...]
Encode = Callable[[Any], bytes]


def paths(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where a document has a value, maps and lists themselves included, the whole document not."""
    if path:
        yield path
    if isinstance(document, dict):
        for key, child in document.items():
            yield from paths(child, (*path, key))
    elif isinstance(document, list):
        for at, child in enumerate(document):
            yield from paths(child, (*path, at))


def keys(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where a document has a map, whose keys may be hostile as well."""
    if isinstance(document, dict):
        yield path
        for key, child in document.items():
            yield from keys(child, (*path, key))
    elif isinstance(document, list):
        for at, child in enumerate(document):
            yield from keys(child, (*path, at))


def replaced(document: Any, path: Path, value: Any) -> Any:
    """Return a copy with the value at a path replaced."""
    if not path:
        return value
    copy: Any = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(document[path[0]], path[1:], value)
    return copy


def with_key(document: Any, path: Path, key: str) -> Any:
    """Return a copy whose map at a path has its first value under another key too."""
    held = document
    for step in path:
        held = held[step]
    return replaced(document, path, {**held, key: next(iter(held.values()), "x")})


def encoded(document: Any, path: Path, value: Value, encode: Encode) -> bytes:
    """Return the document with a hostile value at a path; raw bytes stand there as they are."""
    if isinstance(value, Raw):
        whole = encode(replaced(document, path, _HERE))
        return whole.replace(json.dumps(_HERE).encode(), value.data, 1)
    return encode(replaced(document, path, value))


def as_json(document: Any) -> bytes:
    """Encode as JSON, lone surrogates as escapes; it is YAML as well."""
    return json.dumps(document).encode()


def as_toml(document: Any) -> bytes:
    """Encode as TOML, maps as tables with headers. Raises: TypeError: TOML has no such value, or no such document."""
    if not isinstance(document, dict):
        raise TypeError(type(document))
    return "".join(_table(document, ())).encode()


def _table(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(json.dumps(step) for step in path)}]\n"
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{json.dumps(key)} = {_inline(value)}\n"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _table(value, (*path, key))


def _inline(value: Any) -> str:
    if value is None:
        raise TypeError(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a document of bytes cut short, and with each of its words too large, negative or nothing."""
    for at in range(0, len(whole), max(1, len(whole) // _CUTS)):
        yield f"cut at {at}", whole[:at]
        for word in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80"):
            yield f"{word.hex()} at {at}", whole[:at] + word + whole[at + 4 :]
    yield "twice", whole * 2
    yield "with a tail", whole + b"\0" * 1000


_CUTS: Final = 200


def label(path: Path) -> str:
    """Return a path as people write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".") or "document"

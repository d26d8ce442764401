"""Neutralises text from outside for a terminal: names, messages and errors are shown, never obeyed.

An image's name, a command or another program's error may hold escape sequences that set the window's title, clear the
screen or write over lines. `echo` prints every control character as its escape, in pipes too. Our own colours, which
are sequences that end in `m`, pass; a colour in another's name is harmless.
Source: ECMA-48, 5.2 to 5.6 (control functions); Unicode UAX #9, explicit directional formatting.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import click

_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]{0,24}m)")
_HIDDEN: Final = "\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff"
"""DEL, C1, bidirectional controls, U+2028 and U+2029, and lone surrogates, which no stream encodes."""
_CONTROL: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_HIDDEN}]")
_PLACE: Final = frozenset({"color", "err", "file", "nl"})
"""Options of `echo` that say where a line goes; all others are how it looks."""
_RAW_IN_JSON: Final = re.compile(f"[{_HIDDEN}]")


def shown(text: str) -> str:
    """Return the text with control characters as their escapes; new lines, tabs and colours stay."""
    parts = _COLOUR.split(text)
    return "".join(part if place % 2 else _CONTROL.sub(_escape, part) for place, part in enumerate(parts))


def cell(text: str) -> str:
    """Return the text for one cell of a table: no new line and no tab in it either."""
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Return plain values as JSON that no terminal obeys: what JSON leaves raw of control characters is escaped too."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_hidden(value: Any) -> bool:
    """Return whether any text in plain values holds what `as_json` escapes beyond JSON's own rules."""
    return _RAW_IN_JSON.search(json.dumps(value, ensure_ascii=False)) is not None


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def echo(text: str, **options: Any) -> None:
    """Print a line that may hold text from outside; options as of `click.secho`."""
    has_style = bool(options.keys() - _PLACE)
    click.secho(shown(text), reset=has_style, **options)


def write(data: bytes) -> None:
    """Write a document to standard output, byte for byte."""
    click.echo(data, nl=False)

"""Writes CDI specs and other plain values as YAML, with the standard library alone.

Writing needs little of YAML: block style, one form for each kind of scalar, and double quotes around every text that
go-yaml or PyYAML would not read back as that text. PyYAML takes 35 ms to be imported, a third of a command that writes
one spec. `yamlfile` reads YAML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

TRUE: Final = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
FALSE: Final = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
"""Plain scalars that go-yaml does not take for texts."""

_PLAIN: Final = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./=-]*[A-Za-z0-9_./])?")
_SHORT: Final[Mapping[str, str]] = {
    "\0": "0", "\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", "\x1b": "e",
    '"': '"', "\\": "\\", "\x85": "N", "\u2028": "L", "\u2029": "P", "\ufeff": "uFEFF",
}  # fmt: skip
_LONGEST_KEY: Final = 127
"""A longer key is written behind a question mark: a parser looks only so far ahead for the colon of a short one."""


def emit_yaml(spec: cdi.Spec) -> bytes:
    """Return the spec as one YAML document, as `emit.emit_json` does. Raises: DocumentError: as there."""
    return f"---\n{dump(emit.emit_document(spec))}".encode()


def dump(value: object) -> str:
    """Return mappings, sequences and scalars as one YAML document in block style; mappings keep their order."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    """Yield the lines of a value that stands at the margin."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(_text(str(key)), item)
    elif isinstance(value, list | tuple) and value:
        for item in value:
            yield from _led("- ", _lines(item))
    else:
        yield _scalar(value)


def _entry(key: str, item: object) -> Iterator[str]:
    """Yield the lines of one pair; a sequence stays at the margin of its key, as kubectl and PyYAML write it."""
    is_list = isinstance(item, list | tuple)
    if len(key) > _LONGEST_KEY:
        yield f"? {key}"
        yield from _led(": ", _lines(item))
    elif item and (is_list or isinstance(item, Mapping)):
        yield f"{key}:"
        yield from (line if is_list else f"  {line}" for line in _lines(item))
    else:
        yield f"{key}: {_scalar(item)}"


def _led(lead: str, lines: Iterator[str]) -> Iterator[str]:
    """Yield lines behind a lead, which only the first one shows."""
    for number, line in enumerate(lines):
        yield f"{lead if number == 0 else '  '}{line}"


def _scalar(value: object) -> str:
    """Return a value that has no lines below it."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _float(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    shown = repr(value)
    return shown if "." in shown else shown.replace("e", ".0e")  # YAML 1.1 takes 1e+20 for a text


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text not in TRUE | FALSE | NULL:
        return text
    return f'"{"".join(map(_shown, text))}"'


def _shown(character: str) -> str:
    """Return a character as double quotes show it: by an escape where YAML does not count it as printable."""
    if character in _SHORT:
        return f"\\{_SHORT[character]}"
    if " " <= character <= "~" or "\xa0" <= character <= "\ud7ff" or "\ue000" <= character <= "\ufffd":
        return character
    number = ord(character)
    return f"\\x{number:02X}" if number < 0x100 else f"\\u{number:04X}" if number < 0x10000 else f"\\U{number:08X}"

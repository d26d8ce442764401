"""Writes values into a text by clauses such as `%s` and `%.2f`.

Source: cel-go ext/formatting.go (the first version of `format`, which strings 2 has).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from fairlead.plan.cel.functions import clock, convert
from fairlead.plan.cel.value import (
    LONGEST,
    Duration,
    Failed,
    Spent,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    from_key,
    name_of,
)

_CLAUSE: Final = re.compile(r"%(?:(%)|(?:\.([0-9]*))?([A-Za-z]?))", re.ASCII)
_MOST_PRECISION: Final = 1000
_DEEPEST: Final = 100


def formatted(text: str, items: tuple[Value, ...]) -> str:
    """Return a text with its clauses replaced by the items, in order. Raises: Failed, Spent."""
    parts: list[str] = []
    last = used = long = 0
    for clause in _CLAUSE.finditer(text):
        parts.append(text[last : clause.start()])
        last = clause.end()
        if clause[1]:
            parts.append("%")
            continue
        if used >= len(items):
            raise Failed(f"index {used} out of range")
        parts.append(_written(clause[3], clause[2], items[used]))
        used += 1
        long += len(parts[-1])
        if long > LONGEST:
            raise Spent
    return "".join([*parts, text[last:]])


_ALLOWED: Final = {
    "d": {"int", "uint"},
    "f": {"double", "string"},
    "e": {"double", "string"},
    "b": {"int", "uint", "bool"},
    "o": {"int", "uint"},
    "x": {"int", "uint", "string", "bytes"},
    "X": {"int", "uint", "string", "bytes"},
    "s": {"list", "map", "int", "uint", "double", "bool", "string", "bytes", "type", "null_type"}
    | {"google.protobuf.Timestamp", "google.protobuf.Duration"},
}


def problem_with(text: str, kinds: Sequence[str]) -> str | None:
    """Return what is wrong with a literal text for literal items of these types; None: nothing."""
    clauses = [clause for clause in _CLAUSE.finditer(text) if not clause[1]]
    for place, clause in enumerate(clauses):
        if place >= len(kinds):
            return f"index {place} out of range"
        if clause[3] not in _ALLOWED:
            return f"unrecognized formatting clause {clause[3]!r}"
        if kinds[place] != "dyn" and kinds[place] not in _ALLOWED[clause[3]]:
            return f"clause %{clause[3]} cannot be used on {kinds[place]}"
    if len(kinds) > len(clauses):
        return f"too many arguments supplied to string.format (expected {len(clauses)}, got {len(kinds)})"
    return None


def _written(verb: str, digits: str | None, item: Value) -> str:
    if verb not in _VERBS:
        raise Failed(f"unrecognized formatting clause {verb!r}")
    if digits is not None and (len(digits) > 4 or int(digits or 0) > _MOST_PRECISION):
        raise Failed(f"precision {digits[:8]} is larger than {_MOST_PRECISION}")
    precision = 6 if digits is None else int(digits or 0)
    return _VERBS[verb](item, precision)


def _text(item: Value, _precision: int = 0, depth: int = 0) -> str:
    if depth > _DEEPEST:
        raise Spent
    if isinstance(item, tuple):
        return f"[{', '.join(_text(one, 0, depth + 1) for one in item)}]"
    if isinstance(item, dict):
        entries = sorted((_text(from_key(key)), _text(one, 0, depth + 1)) for key, one in item.items())
        return f"{{{', '.join(f'{key}: {one}' for key, one in entries)}}}"
    return _scalar(item)


def _scalar(item: Value) -> str:
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    if item is None or isinstance(item, bool):
        return "null" if item is None else str(item).lower()
    if isinstance(item, Duration | Timestamp):
        return clock.emit_span(item) if isinstance(item, Duration) else clock.emit_moment(item)
    if isinstance(item, float):
        return convert.double_text(item) if math.isfinite(item) else _endless(item)
    if isinstance(item, str | int | TypeValue):
        return item.name if isinstance(item, TypeValue) else str(item)
    raise Failed(f"string clause can only be used on strings, bools, bytes and numbers, was given {name_of(item)}")


def _endless(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _decimal(item: Value, _precision: int) -> str:
    if type(item) in {int, UInt}:
        return str(int(item))
    if type(item) is float and not math.isfinite(item):
        return _endless(item)
    raise Failed(f"decimal clause can only be used on integers, was given {name_of(item)}")


def _fixed(item: Value, precision: int, form: str = "f") -> str:
    if type(item) not in {int, UInt, float}:
        raise Failed(f"fixed-point clause can only be used on numbers, was given {name_of(item)}")
    if type(item) is float and not math.isfinite(item):
        return _endless(item)
    return format(float(item), f".{precision}{form}")


def _scientific(item: Value, precision: int) -> str:
    return _fixed(item, precision, "e")


def _binary(item: Value, _precision: int) -> str:
    if type(item) in {int, UInt, bool}:
        return format(int(item), "b")
    raise Failed(f"only integers and bools can be formatted as binary, was given {name_of(item)}")


def _octal(item: Value, _precision: int) -> str:
    if type(item) in {int, UInt}:
        return format(int(item), "o")
    raise Failed(f"octal clause can only be used on integers, was given {name_of(item)}")


def _hexadecimal(item: Value, _precision: int) -> str:
    if type(item) in {int, UInt}:
        return format(int(item), "x")
    if isinstance(item, str | bytes):
        return (item.encode() if isinstance(item, str) else item).hex()
    raise Failed(f"only integers, byte buffers, and strings can be formatted as hex, was given {name_of(item)}")


_VERBS: Final[dict[str, Callable[[Value, int], str]]] = {
    "s": _text,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": _octal,
    "x": _hexadecimal,
    "X": lambda item, precision: _hexadecimal(item, precision).upper(),
}
TABLE: Final[dict[str, Callable[..., Value]]] = {"string_format": formatted}

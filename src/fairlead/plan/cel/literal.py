"""Writes values as CEL has them in its source, for people: bounded in length and in depth, whatever the value is.

Source: the CEL specification, "Values"; constructors of Kubernetes' CEL libraries (`quantity`, `semver`, `ip`, `cidr`).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fairlead.plan.cel.amount import Amount
from fairlead.plan.cel.functions import clock, convert, network
from fairlead.plan.cel.semver import Semver
from fairlead.plan.cel.value import (
    Address,
    Duration,
    Location,
    NamedFormat,
    Network,
    Optional,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    from_key,
)

_DEEPEST: Final = 20
_CUT: Final = "…"


def written(value: Value, *, longest: int) -> str:
    """Return a value as source text of at most so many characters and an ellipsis."""
    text = ""
    for piece in _pieces(value, longest, 0):
        text += piece
        if len(text) > longest:
            return f"{text[:longest]}{_CUT}"
    return text


def _pieces(value: Value, longest: int, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        yield _CUT
    elif isinstance(value, tuple):
        yield "["
        for at, one in enumerate(value):
            yield from itertools.chain([", "] if at else [], _pieces(one, longest, depth + 1))
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for at, (key, one) in enumerate(value.items()):
            yield ", " if at else ""
            yield from _pieces(from_key(key), longest, depth + 1)
            yield ": "
            yield from _pieces(one, longest, depth + 1)
        yield "}"
    elif isinstance(value, Optional):
        yield "optional.of(" if value.is_present else "optional.none("
        yield from _pieces(value.value, longest, depth + 1) if value.is_present else ()
        yield ")"
    else:
        yield _SCALARS[type(value)](value[: longest + 1] if isinstance(value, str | bytes) else value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _byte(value: int) -> str:
    return chr(value) if 32 <= value < 127 and value not in b'"\\' else f"\\x{value:02x}"


def _double(value: float) -> str:
    if not math.isfinite(value):
        return f'double("{"NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}")'
    text = convert.double_text(value)
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _called(function: str, text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: f"{function}({_text(text(value))})"


_SCALARS: Final[Mapping[type, Callable[[Any], str]]] = {
    type(None): lambda _: "null",
    bool: lambda value: str(value).lower(),
    int: str,
    UInt: lambda value: f"{int(value)}u",
    float: _double,
    str: _text,
    bytes: lambda value: f'b"{"".join(map(_byte, value))}"',
    TypeValue: lambda value: value.name,
    Duration: _called("duration", clock.emit_span),
    Timestamp: _called("timestamp", clock.emit_moment),
    Amount: _called("quantity", str),
    Semver: _called("semver", lambda value: value.text),
    Address: _called("ip", network.address_text),
    Network: _called("cidr", network.network_text),
    Location: _called("url", lambda value: value.text),
    NamedFormat: _called("format.named", lambda value: value.name),
}

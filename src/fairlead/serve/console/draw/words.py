"""Says times, lengths of time and amounts as people read them. Pure."""

from __future__ import annotations

import datetime as dt
import math
import re
import time
from collections.abc import Mapping
from typing import Final

from fairlead.wire.text import timestamp

NOTHING: Final = "\N{EN DASH}"
_SEQUENCE: Final = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
"""Of ECMA-48: OSC with its text, CSI with its parameters, two-byte escapes."""
_STEPS: Final = ((86400 * 2, 86400, "d"), (3600 * 2, 3600, "h"), (120, 60, "min"))


def span(seconds: float | None) -> str:
    """Return a length of time: `4 ms`, `1.2 s`, `17 min`, `5 h`, `3 d`."""
    if seconds is None:
        return NOTHING
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.0f} ms" if abs(seconds) >= 0.0005 or not seconds else "<1 ms"
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    for least, size, word in _STEPS:
        if seconds >= least:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"


def ago(text: str | None) -> str:
    """Return how long ago an RFC 3339 time was."""
    found = timestamp.parse(text or "")
    if found is None:
        return NOTHING
    passed = int(time.time() - found)
    return f"{passed} s" if 1 <= passed < 10 else span(passed) if passed >= 1 else "now"


def moment(text: str | None) -> str:
    """Return a time as `2026-01-31 09:30:00`, UTC."""
    found = timestamp.parse(text or "")
    return NOTHING if found is None else dt.datetime.fromtimestamp(found, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def bytes_(count: float | None) -> str:
    """Return an amount of memory: `80 GiB`."""
    if count is None:
        return NOTHING
    for size, word in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {word}" if count / size < 1000 else f"{count / size:.0f} {word}"
    return f"{count:.0f} B" if count else "0"


def number(value: float) -> str:
    """Return a number with thousands apart and no more digits than matter."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}"


def money(text: str) -> str:
    """Return an amount of money with two decimals: `12.50`, `<0.01`; what is not an amount stays as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return "<0.01" if 0 < value < 0.005 else f"{value:,.2f}"


def percent(value: float | None) -> str:
    """Return a share."""
    return NOTHING if value is None else f"{value:.0f} %"


def named(text: str, spaces: Mapping[str, str]) -> str:
    """Return a text with tenancies in place of their namespaces. Args: spaces: names by namespace."""
    for namespace in sorted(spaces, key=len, reverse=True):
        text = text.replace(namespace, spaces[namespace])
    return text


def short(text: str, most: int = 13) -> str:
    """Return the beginning of an id."""
    return text if len(text) <= most else f"{text[:most]}…"


def output(text: str) -> str:
    """Return a container's output without what only a terminal understands: colours, moves, lines written over."""
    *lines, last = _SEQUENCE.sub("", text).split("\n")
    kept = "\n".join(line.rpartition("\r")[2] for line in (*(line.rstrip("\r") for line in lines), last))
    return "".join(one for one in kept if one in "\n\t" or (ord(one) >= 0x20 and one != "\x7f"))

"""Numbers of signals by their names, as containers' engines have them: `SIGUSR1`, `SIGRTMIN+3`."""

from __future__ import annotations

import re
import signal
from typing import Final

_REAL_TIME: Final = re.compile(r"RT(MIN|MAX)(?:([+-])([0-9]{1,2}))?")
_FIRST, _LAST = 34, 64
"""SIGRTMIN and SIGRTMAX of a program in C: libraries keep 32 and 33.  Source: signal(7)."""


def number(text: str) -> int | None:
    """Return the number of a signal by its number or name, with or without `SIG`; None: there is no such signal."""
    word = text.upper().removeprefix("SIG")
    if word.isascii() and word.isdecimal() and len(word) <= 2:
        return int(word) if 0 < int(word) <= _LAST else None
    if found := _REAL_TIME.fullmatch(word):
        base, sign, steps = found.groups()
        at = (_FIRST if base == "MIN" else _LAST) + int(f"{sign or '+'}{steps or 0}")
        return at if _FIRST <= at <= _LAST else None
    known = signal.Signals.__members__.get(f"SIG{word}")
    return None if known is None else int(known)

"""Reads moments that a person names: an age, a date, or a time."""

from __future__ import annotations

import re
import time
from typing import Final

import click

from fairlead.wire.text import timestamp

_AGE: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a time as the API takes it: an age (7d), a date (its begin, UTC) or a time."""
    if value is None:
        return None
    if age := _AGE.fullmatch(value):
        return timestamp.emit(time.time() - int(age[1]) * _SECONDS[age[2]])
    text = f"{value}T00:00:00Z" if _DATE.fullmatch(value) else value
    if timestamp.parse(text) is None:
        message = f'"{value}" is neither an age as 12h or 7d, nor a date, nor a time as 2026-11-01T08:00:00Z'
        raise click.BadParameter(message, ctx=context, param=parameter)
    return text

"""Reads names of time zones, which are paths in the zones' database."""

from __future__ import annotations

import re
import zoneinfo


def zone(name: str) -> zoneinfo.ZoneInfo | None:
    """Return a time zone by its name; None: there is none."""
    if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}", name):
        return None
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError, ValueError):
        return None

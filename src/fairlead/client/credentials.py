"""Names the file of a person's contexts; apart from `contexts`, which most commands never load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def file(env: Mapping[str, str]) -> Path:
    """Return the file.  Source: XDG Base Directory Specification, XDG_CONFIG_HOME."""
    given = env.get("XDG_CONFIG_HOME", "")
    folder = Path(given) if given.startswith("/") else Path(env.get("HOME") or "/") / ".config"
    return folder / "fairlead" / "contexts.json"

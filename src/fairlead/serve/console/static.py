"""Keeps the console's files: style sheet, scripts and the libraries of `static/vendor`, with a hash in each address.

A file's address changes with its bytes, so that browsers may keep what they have for ever.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

from fairlead import errors

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PREFIX: Final = "/console/static/"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    media_type: str

    @property
    def version(self) -> str:
        """What its address has of its bytes."""
        return hashlib.sha256(self.body).hexdigest()[:16]


@functools.cache
def assets() -> dict[str, Asset]:
    """Return what is served, by name."""
    root = resources.files(__package__) / "static"
    found = {}
    for folder in (root, root / "vendor"):
        for file in folder.iterdir():
            media_type = _TYPES.get(file.name[file.name.rfind(".") :])
            if file.is_file() and media_type:
                found[file.name] = Asset(file.read_bytes(), media_type)
    return found


@functools.cache
def address(name: str) -> str:
    """Return where a file is served."""
    return f"{PREFIX}{name}?v={assets()[name].version}"


def find(name: str) -> Asset:
    """Return a file. Raises: NotFound."""
    if (found := assets().get(name)) is None:
        message = f'the console has no file "{errors.readable(name)}"'
        raise errors.NotFound(message, reason="NotFound")
    return found

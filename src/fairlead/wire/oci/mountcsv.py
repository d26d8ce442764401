"""Parses the lists by which Tegra systems say what a container needs: lines of `dev|lib|sym|dir, path`.

A line that is empty or starts with `#` says nothing. What is there of it on a machine is for
`silicon.nvidia.files.modefiles`. Paths that walk the whole file system (`/`, `**`, `..`) are refused: a list names
files.
Source: NVIDIA container toolkit documentation, "CSV mode" (`host-files-for-container.d`).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from fairlead import errors


class Kind(enum.Enum):
    """What a line names."""

    DEVICE = "dev"
    LIBRARY = "lib"
    SYMLINK = "sym"
    FOLDER = "dir"


class Entry(NamedTuple):
    """One line."""

    kind: Kind
    path: str
    """Absolute; of a library it may be a shell pattern."""


def parse_mount_csv(data: bytes) -> tuple[Entry, ...]:
    """Return the entries in file order.

    Raises: ProtocolError: a line of another form, with its number.
    """
    found = []
    kinds = {kind.value: kind for kind in Kind}
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        word, _, path = (part.strip() for part in text.partition(","))
        if word not in kinds or not path.startswith("/") or not _is_path(path):
            message = f'line {number} is not "dev|lib|sym|dir, /path": {text}'
            hint = "mend the line, or leave the list out (--csv.file names those that are read)"
            raise errors.ProtocolError(message, reason="MountListMalformed", hint=hint)
        found.append(Entry(kinds[word], path))
    return tuple(found)


def _is_path(path: str) -> bool:
    """Return whether a path, which may be a shell pattern, names something below the root and nothing above."""
    parts = path.strip("/").split("/")
    return path.isprintable() and parts != [""] and ".." not in parts and not any("**" in part for part in parts)

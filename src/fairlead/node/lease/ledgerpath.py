"""Names the ledger's file, and moves it away; an agent without a ledger loads nothing of SQLite."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairlead import files

NAME: Final = "ledger.db"


def set_aside(path: Path, *, why: str) -> Path:
    """Move a ledger away, its log first: a log without its database would be replayed into the next one.

    Args: why: becomes a part of the new names.
    """
    set_log_aside(path, why=why)
    return files.set_aside(path, why=why)


def set_log_aside(path: Path, *, why: str) -> None:
    """Move away the log of a ledger that has lost its database."""
    for beside in _sidecars(path):
        if os.path.lexists(beside):
            files.set_aside(beside, why=why)


def _sidecars(path: Path) -> Iterable[Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")

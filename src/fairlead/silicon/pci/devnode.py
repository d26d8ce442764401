"""Reads character devices below a folder `dev`: which are there, and their numbers, modes and owners."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from fairlead.model.driver import DeviceNode


def find_nodes(base: Path, patterns: Iterable[str]) -> list[DeviceNode]:
    """Return the character devices below `base/dev` that fit any pattern, each once, by length and name."""
    found = {path for pattern in patterns for path in (base / "dev").glob(pattern)}
    nodes = [node for path in found if (node := read_node(base, path)) is not None]
    return sorted(nodes, key=lambda node: (len(node.path), node.path))


def read_node(root: Path, path: Path) -> DeviceNode | None:
    """Return one character device; None for anything else."""
    try:
        state = path.lstat()
    except OSError:
        return None
    if not stat.S_ISCHR(state.st_mode):
        return None
    return DeviceNode(
        path=f"/{path.relative_to(root)}",
        host_path=str(path),
        major=os.major(state.st_rdev),
        minor=os.minor(state.st_rdev),
        mode=stat.S_IMODE(state.st_mode),
        uid=state.st_uid,
        gid=state.st_gid,
    )

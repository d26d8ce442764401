"""Sets aside state that cannot be read, whole, when a person asks for it."""

from __future__ import annotations

from pathlib import Path

from fairlead import files
from fairlead.store.sqlite import database


def set_state_aside(path: Path) -> tuple[Path, ...]:
    """Rename the state file and its log, which then still belong together, and return the new names.

    Only on explicit request, and with no process using the file. The next start begins with empty state. The file goes
    first: were this interrupted, a log without its file is refused at the next start, never replayed into a new one.
    Raises: Unavailable: 9999 earlier copies are in the way.
    """
    moved = []
    aside = path.with_name(f"{path.name}.damaged")
    if path.exists():
        aside = files.set_aside(path, why="damaged")
        moved.append(aside)
    for sidecar in database.sidecars(path):
        if sidecar.exists():
            suffix = sidecar.name.removeprefix(path.name)
            target = aside.with_name(f"{aside.name}{suffix}")
            moved.append(_rename(sidecar, target))
    return tuple(moved)


def _rename(sidecar: Path, target: Path) -> Path:
    if target.exists():
        return files.set_aside(sidecar, why="damaged")
    sidecar.rename(target)
    files.flush_folder(target.parent)
    return target

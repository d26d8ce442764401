"""Remembers on disk which GPUs this agent has put under an MPS daemon, and what their compute mode was before.

A record is written before the mode is changed and removed after the mode is what it was, so that an agent that starts
after a crash at any step knows what to take up or to undo. One file a GPU, in the state folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import files
from fairlead.model.gpu import ComputeMode
from fairlead.model.ids import GPUUUID

_LARGEST: Final = 4096
_END: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One GPU that is, or was to be, under a daemon."""

    gpu: GPUUUID
    mode: ComputeMode
    """Before."""
    boot_id: str
    """A boot ends every daemon and every mode that a program has set; empty: not known."""
    root: Path
    """The root of all daemons' folders at that time; empty: not known."""


def folder_of(state: Path) -> Path:
    """Return where the records lie."""
    return state / "agent" / "mps"


def write(state: Path, record: Record) -> None:
    """Write a record, durably. Raises: Unavailable: the disk refuses."""
    folder = folder_of(state)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"mode": record.mode.value, "boot_id": record.boot_id, "root": str(record.root)}
    files.write_atomic(folder / f"{record.gpu}{_END}", json.dumps(document).encode(), mode=0o644)


def remove(state: Path, gpu: GPUUUID) -> None:
    """Remove a record, if there is one."""
    (folder_of(state) / f"{gpu}{_END}").unlink(missing_ok=True)


def read_all(state: Path, *, sets_aside: bool = True) -> dict[GPUUUID, Record]:
    """Read every record; one that cannot be read is set aside, and counts as one of a GPU in the mode DEFAULT."""
    found: dict[GPUUUID, Record] = {}
    for path in sorted(folder_of(state).glob(f"GPU-*{_END}")):
        gpu = GPUUUID(path.name.removesuffix(_END))
        try:
            document = json.loads(files.read_bounded(path)[:_LARGEST])
            mode = ComputeMode(document["mode"])
            found[gpu] = Record(gpu=gpu, mode=mode, boot_id=str(document["boot_id"]), root=Path(document["root"]))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            found[gpu] = Record(gpu=gpu, mode=ComputeMode.DEFAULT, boot_id="", root=Path())
            if sets_aside:
                files.set_aside(path, why="unreadable")
                write(state, found[gpu])
    return found

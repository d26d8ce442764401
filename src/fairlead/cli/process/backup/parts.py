"""Says what of the state folder a backup has, and what it leaves out and why: the one list that both ways read.

A file that no row names is copied, so what a later version keeps is not forgotten. Left out are the folders that are
large or a person's own (`LEFT`), what lives with a process or a boot (`_PASSING`), and what was set aside. Files of
`MACHINE` describe the GPUs and containers of one machine: they are put back there alone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from fairlead.node.lease import signing
from fairlead.store import sealing

STATE: Final = "state.db"
ACCOUNTS: Final = "accounts.db"
LEDGER: Final = "lease/ledger.db"

LEFT: Final = {
    "volumes": "the data of named volumes: copy it with a tool for files",
    "pods": "files that containers made in volumes of their pods",
    "silicon": "the simulated machine: the next start makes it",
    "cdi": "the simulated machine of `fairlead cdi generate`",
    "engines": "changes of this machine's container engines, which `fairlead runtime` undoes here",
    "mps": "MPS daemons of this machine",
}
"""Folders that are not copied."""
ELSEWHERE: Final = {
    "images and output of containers": "the container engine has them",
    "settings": "files, variables and options that the service is started with",
}
"""What is not in the state folder."""
MACHINE: Final = ("lease", "agent", "kubelet")
"""Folders of what is known of one machine's GPUs and containers."""
KEYS: Final = (sealing.KEY_FILE, "tls/key.pem", "registries", f"lease/{signing.KEY}", "fabric.secret")
"""Files and folders that open something: `--no-keys` leaves them out."""
_PASSING: Final = re.compile(r"lock|.*\.lock|.*-wal|.*-shm|.*-journal|\..*")
_ASIDE: Final = re.compile(r".+\.[a-z]+-\d+(-wal|-shm)?")
ASIDE: Final = re.compile(r"set-aside-\d+")
"""Folders into which `restore` moves what was there."""
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]{0,99}")
_DEEPEST: Final = 4
MOST_FILES: Final = 10_000
LARGEST: Final = 8 << 30
"""What the size in a header of a tar file can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is not in a backup."""

    path: str
    why: str


def is_database(path: str) -> bool:
    """Say whether a file is SQLite's, which is copied by SQLite alone."""
    return path.endswith(".db")


def is_key(path: str) -> bool:
    """Say whether a file opens something."""
    return path in KEYS or PurePosixPath(path).parts[0] in KEYS


def is_of_machine(path: str) -> bool:
    """Say whether a file describes one machine's GPUs and containers."""
    return PurePosixPath(path).parts[0] in MACHINE


def is_safe(path: str) -> bool:
    """Say whether a name of an archive is one that a backup can have: below the folder, and not left out."""
    parts = path.split("/")
    if not 1 <= len(parts) <= _DEEPEST or not all(_SEGMENT.fullmatch(one) for one in parts):
        return False
    name = parts[-1]
    return parts[0] not in LEFT and not ASIDE.fullmatch(parts[0]) and not _PASSING.fullmatch(name)


def find(folder: Path) -> tuple[tuple[str, ...], tuple[Left, ...]]:
    """Return the files of a state folder that a backup has, by name, and what it leaves out.

    Links and devices are never followed. Raises: OSError.
    """
    kept, left = list[str](), list[Left]()
    for path, found in _walk(folder, ""):
        if isinstance(found, str):
            left.append(Left(path=path, why=found))
        elif found:
            kept.append(path)
    return tuple(sorted(kept)), tuple(sorted(left, key=lambda one: one.path))


def _walk(folder: Path, above: str) -> Iterator[tuple[str, bool | str]]:
    """Yield each file with True, or why it is left out; folders are gone into."""
    entries = sorted(os.scandir(folder / above), key=lambda one: one.name)
    for entry in (one for one in entries if not one.name.startswith(".")):  # those are of writers at work
        path = f"{above}/{entry.name}" if above else entry.name
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue  # it was a file of a moment
        if stat.S_ISDIR(mode):
            if not above and entry.name in LEFT:
                yield path, LEFT[entry.name]
            elif not above and ASIDE.fullmatch(entry.name):
                yield path, "what a restore set aside"
            elif path.count("/") >= _DEEPEST - 1 or not _SEGMENT.fullmatch(entry.name):
                yield path, "a folder that no version of this program makes"
            else:
                yield from _walk(folder, path)
        elif stat.S_ISSOCK(mode) or _PASSING.fullmatch(entry.name):
            continue
        elif not stat.S_ISREG(mode) or not _SEGMENT.fullmatch(entry.name):
            yield path, "not a file that this program makes"
        elif _ASIDE.fullmatch(entry.name):
            yield path, "set aside as damaged or old"
        else:
            yield path, True

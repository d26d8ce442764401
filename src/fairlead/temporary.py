"""Makes temporary folders that are known for abandoned once their process was killed.

A process keeps its folder locked, and the kernel lets go of the lock when the process ends, however it ends. So a
folder of ours that can be locked is in no process's use, in whatever pid namespace that may run. Only folders of our
own user count, and only names that are made here: a person's `/tmp/fairlead-backup` is none of them.
Source: flock(2); a lock belongs to the open folder, which no program that we start inherits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PODMAN: Final = "fairlead-podman-"
PAUSE: Final = "fairlead-pause-"
ENGINE: Final = "fairlead-engine-"
DEMO: Final = "fairlead-demo-image-"
SOCKET: Final = ".s"
"""Of a folder beside a socket, in which it is bound before it has its name; short, as sockets' paths must be."""
PREFIXES: Final = (PODMAN, PAUSE, ENGINE, DEMO)
"""How the names of those begin that lie in the system's folder for temporary files."""
_MARK: Final = re.compile(r"[a-z0-9_]{8}")
"""What `tempfile` puts behind it."""
_YOUNG_S: Final = 60.0
"""Between a folder and its lock is a moment; what is younger is left alone."""


@contextlib.contextmanager
def folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Give a folder that nobody else may enter for the length of a block.

    Args:   prefix: how its name begins, one of `PREFIXES` where `within` is None.
            within: where it is made; None: where the system has temporary files.
    Raises: OSError: it cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True) as name:
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(handle)


def find_abandoned(prefixes: tuple[str, ...] = PREFIXES, within: Path | None = None) -> tuple[Path, ...]:
    """Return our folders that no process uses any more, by name. What cannot be looked at is left out."""
    try:
        entries = sorted((within or Path(tempfile.gettempdir())).iterdir())
    except OSError:
        return ()
    return tuple(one for one in entries if _is_named_here(one.name, prefixes) and _is_abandoned(one))


def sweep(prefixes: tuple[str, ...] = PREFIXES, within: Path | None = None) -> tuple[Path, ...]:
    """Remove our folders that no process uses any more, and return which; what cannot be removed stays."""
    found = find_abandoned(prefixes, within)
    for one in found:
        shutil.rmtree(one, ignore_errors=True)
    return found


def _is_named_here(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name.startswith(one) and _MARK.fullmatch(name, len(one)) for one in prefixes)


def _is_abandoned(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022 or time.time() - found.st_mtime < _YOUNG_S:
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True

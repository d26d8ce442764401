"""Finds who could change a file: the file itself, every folder on the way to it, and every link on the way.

What a spec or a hook's program says is done as root, so only root (or our own user) may be able to put another one
in its place. Looking at the file alone is not enough: a link, or a folder above, may be another user's. Imports nothing
that is not built in: this is on a container's start.
"""

import _stat
import posix

_WRITABLE = 0o022
_MOST_LINKS = 40
"""As the kernel's own limit."""


def is_closed(uid: int, mode: int) -> bool:
    """Return whether only root and our own user may write a file or folder of this owner and mode."""
    return uid in {0, posix.geteuid()} and not mode & _WRITABLE


def find_open(path: str) -> str:
    """Return the first place on the way to an absolute path, itself included, that others could change; "": none.

    A folder with the sticky bit counts as closed where the next step in it is ours: others can make names there, and
    cannot take that one away.
    Raises: OSError: something on the way is not there, or leads in a circle.
    """
    done = ""
    left = _parts(path)
    status = posix.lstat("/")
    links = 0
    while True:
        is_sticky = _stat.S_ISDIR(status.st_mode) and bool(status.st_mode & _stat.S_ISVTX) and bool(left)
        if not is_closed(status.st_uid, 0 if is_sticky else status.st_mode):
            return done or "/"
        if not left:
            return ""
        part = left.pop()
        if part == "..":
            done = done.rpartition("/")[0]
            status = posix.lstat(done or "/")
            continue
        place = f"{done}/{part}"
        found = posix.lstat(place)
        if not _stat.S_ISLNK(found.st_mode):
            done, status = place, found
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(40, "too many links", path)
        if not is_closed(found.st_uid, 0):
            return place
        target = posix.readlink(place)
        left += _parts(target)
        if target.startswith("/"):
            done = ""
            status = posix.lstat("/")


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]

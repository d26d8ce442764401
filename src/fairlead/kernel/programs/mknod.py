"""Makes and removes device nodes in a running container: a program of its own that does nothing else.

    python -I -S mknod.py PID STARTED {"make": [{"path", "kind", "major", "minor", "mode", "uid", "gid"}], "remove": …}

It opens /proc/PID once, which stays this process's even where its pid is used again, and refuses a process that was not
started at STARTED (clock ticks since boot) or whose mounts are this host's own. It opens the container's root, joins
its mount namespace, and reaches every path by `openat2` in that root with no link followed: what the image or a
tenant's process puts in the way makes it refuse, never go elsewhere.
A node is made under a temporary name with its final owner and mode and then renamed to its place, so that no process
meets a half-made one. What stands there is looked at first: the same node is kept, another device node is replaced,
anything else is refused. Removed is only a node that has the numbers named.

Prints a JSON list of [path, what was done]: `made`, `kept`, `replaced`, `removed`, `absent`, or `refused: why`.
Nothing of the container runs in it: every module is loaded before it goes in. Standard library only.
Source: openat2(2), setns(2), mknodat(2).
"""

import ctypes
import errno
import json
import os
import stat
import struct
import sys
from typing import Any

CLONE_NEWNS = 0x00020000  # include/uapi/linux/sched.h
OPENAT2 = 437  # asm-generic/unistd.h, the same on every architecture
NO_MAGICLINKS, NO_SYMLINKS, IN_ROOT = 0x02, 0x04, 0x10  # include/uapi/linux/openat2.h
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
ALARM_S = 10
FORMATS = {"c": stat.S_IFCHR, "b": stat.S_IFBLK}

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """Something stands in the way; the message says what."""


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def open_folder(root: int, path: str) -> int:
    """Open a folder inside a root, no link followed. Raises: OSError."""
    how = struct.pack("=QQQ", FOLDER, 0, IN_ROOT | NO_MAGICLINKS | NO_SYMLINKS)
    handle: int = _libc.syscall(OPENAT2, root, os.fsencode(path.lstrip("/") or "."), how, len(how))
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return handle


def parent(root: int, path: str, *, makes: bool) -> tuple[int, str]:
    """Open the folder a path is in; with `makes`, missing ones are made. Raises: OSError, Refused."""
    parts = [part for part in path.split("/") if part]
    if not parts or {".", ".."} & set(parts):
        raise Refused(f"{path} is not a plain path")
    for depth in range(1, len(parts)) if makes else ():
        above = open_folder(root, "/".join(parts[: depth - 1]))
        try:
            os.mkdir(parts[depth - 1], 0o755, dir_fd=above)
        except FileExistsError:
            pass
        finally:
            os.close(above)
    return open_folder(root, "/".join(parts[:-1])), parts[-1]


def make(root: int, node: dict[str, Any]) -> str:
    """Make one node; returns what was done. Raises: OSError, Refused."""
    folder, name = parent(root, node["path"], makes=True)
    try:
        if os.fstatvfs(folder).f_flag & os.ST_NODEV:
            raise Refused("its file system is mounted nodev: no node there can be opened")
        wanted = (FORMATS[node["kind"]], os.makedev(node["major"], node["minor"]))
        found = _existing(folder, name)
        if found == wanted:
            return "kept"
        if found is not None and found[0] not in FORMATS.values():
            raise Refused("something else stands there")
        temporary = f".fairlead-{os.getpid()}-{name}"
        # The mode is final from the start: a later chmod by name could meet another file.
        os.mknod(temporary, wanted[0] | (node.get("mode", 0o666) & 0o7777), wanted[1], dir_fd=folder)
        try:
            os.chown(temporary, node.get("uid", 0), node.get("gid", 0), dir_fd=folder, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
        return "made" if found is None else "replaced"
    finally:
        os.close(folder)


def _existing(folder: int, name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return stat.S_IFMT(found.st_mode), found.st_rdev


def remove(root: int, node: dict[str, Any]) -> str:
    """Remove one node if it has these numbers; returns what was done. Raises: OSError, Refused."""
    try:
        folder, name = parent(root, node["path"], makes=False)
    except FileNotFoundError:
        return "absent"
    try:
        found = _existing(folder, name)
        if found is None:
            return "absent"
        if found != (FORMATS[node["kind"]], os.makedev(node["major"], node["minor"])):
            raise Refused("something else stands there")
        os.unlink(name, dir_fd=folder)
        return "removed"
    finally:
        os.close(folder)


def enter(pid: int, started: str) -> int:
    """Join the mount namespace of a process and return its root, open. Raises: OSError, Refused."""
    process = os.open(f"/proc/{pid}", FOLDER & ~os.O_PATH)
    if _started(process) != started:
        raise Refused(f"process {pid} is another one by now")
    root = os.open("root", FOLDER, dir_fd=process)
    namespace = _open("ns/mnt", process)
    if os.path.sameopenfile(namespace, _open("/proc/self/ns/mnt", process)):
        raise Refused(f"process {pid} is in no container: its mounts are this host's own")
    if not os.path.sameopenfile(_open("ns/user", process), _open("/proc/self/ns/user", process)):
        raise Refused("the container has a user namespace of its own: nodes made in it cannot be opened")
    if _libc.setns(namespace, CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")
    os.fchdir(root)
    sys.path.clear()  # whatever is imported from here on would come from the image
    return root


def _open(path: str, folder: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)


def _started(process: int) -> str:
    with os.fdopen(_open("stat", process)) as file:
        return file.read().rpartition(")")[2].split()[19]


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit code."""
    _libc.alarm(ALARM_S)
    os.umask(0)
    asked = json.loads(arguments[2])
    try:
        root = enter(int(arguments[0]), arguments[1])
    except (OSError, Refused) as error:
        sys.stderr.write(f"{_name(error) if isinstance(error, OSError) else error}\n")
        return 3
    done = []
    for act, key in ((make, "make"), (remove, "remove")):
        for node in asked.get(key, ()):
            try:
                outcome = act(root, node)
            except (OSError, Refused) as error:
                outcome = f"refused: {_name(error) if isinstance(error, OSError) else error}"
            done.append([node["path"], outcome])
    json.dump(done, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

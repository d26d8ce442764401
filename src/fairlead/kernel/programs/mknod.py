"""Makes and removes device nodes in a running container: a program of its own that does nothing else.

    python -I -S mknod.py PID STARTED {"make": [{"path", "kind", "major", "minor", "mode", "uid", "gid", "host"}],
                                       "remove": …}

It opens /proc/PID once, which stays this process's even where its pid is used again, and refuses a process that was not
started at STARTED (clock ticks since boot) or whose mounts are this host's own. It opens the container's root, joins
its mount namespace, and reaches every path by `openat2` in that root with no link followed: what the image or a
tenant's process puts in the way makes it refuse, never go elsewhere.
A node is made under a temporary name with its final owner and mode and then renamed to its place, so that no process
meets a half-made one. What stands there is looked at first: the same node is kept, another device node is replaced,
anything else is refused. Removed is only a node that has the numbers named.

In a container with a user namespace of its own no node can be made that may be opened: the host's (`host`) is bound
over an empty file, as OCI runtimes do, by a mount that is cloned before the container is entered. Folders and files are
made there as the container's root, since the host's has no name in its file systems.

Prints a JSON list of [path, what was done]: `made`, `kept`, `replaced`, `removed`, `absent`, or `refused: why`.
Nothing of the container runs in it: every module is loaded before it goes in. Standard library only.
Source: openat2(2), setns(2), mknodat(2), open_tree(2), move_mount(2), user_namespaces(7).
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
OPENAT2, OPEN_TREE, MOVE_MOUNT = 437, 428, 429  # asm-generic/unistd.h, the same on every architecture
AT_FDCWD, OPEN_TREE_CLONE, FROM_EMPTY_PATH = -100, 1, 4  # include/uapi/linux/{fcntl,mount}.h
DETACH, NOFOLLOW = 2, 8  # MNT_DETACH, UMOUNT_NOFOLLOW: include/linux/fs.h
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


def bind(root: int, node: dict[str, Any], tree: int) -> str:
    """Show a node of the host, by its mount `tree`; returns what was done. Raises: OSError, Refused."""
    wanted = (FORMATS[node["kind"]], os.makedev(node["major"], node["minor"]))
    shown = os.fstat(tree)
    if (stat.S_IFMT(shown.st_mode), shown.st_rdev) != wanted:
        raise Refused(f"{node['host']} is another device by now")
    folder, name = parent(root, node["path"], makes=True)
    try:
        found = _existing(folder, name)
        if found == wanted:
            return "kept"
        if found is not None:
            raise Refused("something else stands there")
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder))
        try:
            _check(_libc.syscall(MOVE_MOUNT, tree, b"", folder, os.fsencode(name), FROM_EMPTY_PATH))
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
        return "made"
    finally:
        os.close(folder)


def _check(code: int) -> int:
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return code


def _trees(nodes: list[dict[str, Any]]) -> list[int | OSError]:
    """Clone the mount of each node on the host, to be shown elsewhere; or return why it cannot be."""
    found: list[int | OSError] = []
    for node in nodes:
        try:
            path = os.fsencode(node["host"])
            found.append(_check(_libc.syscall(OPEN_TREE, AT_FDCWD, path, OPEN_TREE_CLONE | os.O_CLOEXEC)))
        except OSError as error:
            found.append(error)
    return found


def _unbind(folder: int, name: str) -> None:
    """Take a bound node away, by a name in the working folder: the last part of a path is not followed."""
    before = os.open(".", FOLDER)
    try:
        os.fchdir(folder)
        _check(_libc.umount2(os.fsencode(name), DETACH | NOFOLLOW))
    finally:
        os.fchdir(before)
        os.close(before)


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
        try:
            os.unlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _unbind(folder, name)
            os.unlink(name, dir_fd=folder)
        return "removed"
    finally:
        os.close(folder)


def enter(pid: int, started: str, nodes: list[dict[str, Any]]) -> tuple[int, list[int | OSError] | None]:
    """Join the mount namespace of a process; returns its root, open, and what shows each node in a user namespace.

    None: it has none of its own, and nodes are made. Raises: OSError, Refused.
    """
    process = os.open(f"/proc/{pid}", FOLDER & ~os.O_PATH)
    if _started(process) != started:
        raise Refused(f"process {pid} is another one by now")
    root = os.open("root", FOLDER, dir_fd=process)
    namespace = _open("ns/mnt", process)
    if os.path.sameopenfile(namespace, _open("/proc/self/ns/mnt", process)):
        raise Refused(f"process {pid} is in no container: its mounts are this host's own")
    trees = None
    if not os.path.sameopenfile(_open("ns/user", process), _open("/proc/self/ns/user", process)):
        trees = _trees(nodes)
        owners = [_first(process, kind) for kind in ("uid", "gid")]
    if _libc.setns(namespace, CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")
    os.fchdir(root)
    sys.path.clear()  # whatever is imported from here on would come from the image
    if trees is not None:
        _libc.setfsgid(owners[1])
        _libc.setfsuid(owners[0])
    return root, trees


def _first(process: int, kind: str) -> int:
    """Return the host's id of the namespace's root. Raises: Refused: it has none."""
    with os.fdopen(_open(f"{kind}_map", process)) as file:
        for line in file:
            inside, outside, _ = line.split()
            if inside == "0":
                return int(outside)
    raise Refused("the container's user namespace has no root")


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
        root, trees = enter(int(arguments[0]), arguments[1], asked.get("make", ()))
    except (OSError, Refused) as error:
        sys.stderr.write(f"{_name(error) if isinstance(error, OSError) else error}\n")
        return 3
    done = []
    for place, node in enumerate(asked.get("make", ())):
        done.append([node["path"], _said(_made, root, node, None if trees is None else trees[place])])
    done += [[node["path"], _said(remove, root, node)] for node in asked.get("remove", ())]
    json.dump(done, sys.stdout)
    return 0


def _made(root: int, node: dict[str, Any], tree: int | OSError | None) -> str:
    if isinstance(tree, OSError):
        raise tree
    return make(root, node) if tree is None else bind(root, node, tree)


def _said(act: Any, *arguments: Any) -> str:
    try:
        outcome: str = act(*arguments)
    except (OSError, Refused) as error:
        return f"refused: {_name(error) if isinstance(error, OSError) else error}"
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

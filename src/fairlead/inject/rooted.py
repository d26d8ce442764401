"""A container's root file system, opened so that nothing in it can lead out: every path goes through `openat2`.

The image decides what `/etc` or `/dev` are, and may change them while we look. So no path of it is ever checked first
and used later, or followed by the kernel's ordinary rules: `RESOLVE_IN_ROOT` makes absolute and `..` links end inside,
`RESOLVE_NO_MAGICLINKS` refuses `/proc/1/root` and its kind, and what is written goes by name into a folder that is
already open. Writes stay on the root file system itself (`RESOLVE_NO_XDEV`): a link into a volume is refused too.
Mounts go onto open files, never onto names.
Source: openat2(2), open_tree(2), move_mount(2), mount_setattr(2); numbers from asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import os
import stat

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x01, 0x02, 0x04, 0x10
_OPEN_TREE_CLONE, _AT_EMPTY_PATH, _AT_RECURSIVE = 0x1, 0x1000, 0x8000
_MOVE_F_EMPTY, _MOVE_T_EMPTY = 0x04, 0x40
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSYMFOLLOW = 0x1, 0x2, 0x4, 0x8, 0x200000
_MS_PRIVATE = 1 << 18
_READ_LIMIT_BYTES = 16 << 20
_O_PATH, _O_CLOEXEC, _O_DIRECTORY, _O_NOFOLLOW = os.O_PATH, os.O_CLOEXEC, os.O_DIRECTORY, os.O_NOFOLLOW

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | bytes | ctypes.c_void_p) -> int:
    """Make a system call by number. Raises: OSError: as it says."""
    wrapped = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *wrapped))


def checked(result: int) -> int:
    """Return a result of libc. Raises: OSError: it was -1, with errno."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class Root:
    """An open root file system.

    Args: path: of the host, from the bundle; trusted, unlike everything below it.
    """

    def __init__(self, path: str) -> None:
        self.handle = os.open(path, _O_PATH | _O_DIRECTORY | _O_CLOEXEC)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.handle)

    def open(self, path: str, flags: int, *, resolve: int = 0) -> int:
        """Open a path inside, close-on-exec. Raises: OSError: not there, or ELOOP, EXDEV: it would lead out."""
        how = _OpenHow(flags=flags | _O_CLOEXEC, mode=0, resolve=_IN_ROOT | _NO_MAGICLINKS | resolve)
        name = os.fsencode(path.lstrip("/") or ".")
        size = ctypes.sizeof(how)
        return call(_OPENAT2, self.handle, name, ctypes.cast(ctypes.byref(how), ctypes.c_void_p), size)

    def read(self, path: str) -> bytes:
        """Read a regular file, at most 16 MiB. Raises: OSError, also where it is something else (ENOTSUP)."""
        # O_NONBLOCK: a named pipe would hold the container's start.
        handle = self.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _refused(path)
            return read_all(handle)
        finally:
            os.close(handle)

    def list(self, path: str) -> list[str]:
        """List a folder's names, sorted. Raises: OSError."""
        handle = self.open(path, os.O_RDONLY | _O_DIRECTORY)
        try:
            return sorted(os.listdir(handle))  # noqa: PTH208  an open folder has no path
        finally:
            os.close(handle)

    def is_file(self, path: str) -> bool:
        """Whether a regular file is there, links followed inside; a moment later it may not be."""
        try:
            handle = self.open(path, _O_PATH)
        except OSError:
            return False
        try:
            return stat.S_ISREG(os.fstat(handle).st_mode)
        finally:
            os.close(handle)

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Replace a file in one step, folders made where they are missing; a link at its name is replaced itself.

        Raises: OSError: EXDEV where the way leads onto another mount, EROFS.
        """
        folder, name = self._parent(path)
        temporary = f".fairlead-{os.getpid()}-{name}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_NOFOLLOW | _O_CLOEXEC
            handle = os.open(temporary, flags, 0o600, dir_fd=folder)
            try:
                write_all(handle, data)
                os.fchmod(handle, mode)
            finally:
                os.close(handle)
            _replace(folder, temporary, name)
        finally:
            os.close(folder)

    def link(self, target: str, path: str) -> None:
        """Make a symbolic link in one step, whatever stood there; idempotent. The target is text, never followed.

        Raises: OSError: as `write`; EBUSY where a mount has the name.
        """
        folder, name = self._parent(path)
        temporary = f".fairlead-{os.getpid()}-{name}"
        try:
            if _is_link_to(folder, name, target):
                return
            os.symlink(target, temporary, dir_fd=folder)
            _replace(folder, temporary, name)
        finally:
            os.close(folder)

    def cover(self, path: str, data: bytes) -> None:
        """Lay a read-only file over an existing one by a mount: for what cannot be written.

        The content lies in a file of the container's /dev, which is its own memory, and loses its name there at once.
        Raises: OSError: nothing to cover, or mounting is not allowed.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _O_NOFOLLOW | _O_CLOEXEC
        name = f".fairlead-{os.getpid()}"
        target = self.open(path, _O_PATH)
        folder = self.open("/dev", _O_PATH | _O_DIRECTORY, resolve=_NO_SYMLINKS)
        try:
            if not stat.S_ISREG(os.fstat(target).st_mode):
                raise _refused(path)
            source = os.open(name, flags, 0o444, dir_fd=folder)
            try:
                write_all(source, data)
                os.fchmod(source, 0o444)
                mount_over(source, target)
            finally:
                os.close(source)
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)
            os.close(target)

    def folder_to_hide(self, path: str) -> int:
        """Open a folder as a place to mount onto; no link on the way. Raises: OSError."""
        return self.open(path, _O_PATH | _O_DIRECTORY, resolve=_NO_SYMLINKS)

    def _parent(self, path: str) -> tuple[int, str]:
        """Open the folder of a path, made where it is missing, on the root file system itself."""
        folder, _, name = path.rpartition("/")
        made = ""
        for part in [item for item in folder.split("/") if item]:
            above = self.open(made, _O_PATH | _O_DIRECTORY, resolve=_NO_XDEV)
            try:
                os.mkdir(part, 0o755, dir_fd=above)
            except FileExistsError:
                pass
            finally:
                os.close(above)
            made = f"{made}/{part}"
        return self.open(made, _O_PATH | _O_DIRECTORY, resolve=_NO_XDEV), name


def _is_link_to(folder: int, name: str, target: str) -> bool:
    try:
        return os.readlink(name, dir_fd=folder) == target
    except OSError:
        return False


def _replace(folder: int, temporary: str, name: str) -> None:
    try:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(temporary, dir_fd=folder)
        raise


def _refused(path: str) -> OSError:
    return OSError(95, "not a regular file", path)


def read_all(handle: int) -> bytes:
    """Read an open file from where it stands, at most 16 MiB. Raises: OSError: EFBIG where there is more."""
    found = b""
    while chunk := os.read(handle, 1 << 20):
        found += chunk
        if len(found) > _READ_LIMIT_BYTES:
            raise OSError(27, "larger than 16 MiB")
    return found


def write_all(handle: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(handle, data) :]


def mount_over(source: int, target: int) -> None:
    """Mount one open file over another one, read-only and private. Raises: OSError."""
    tree = call(_OPEN_TREE, source, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | _O_CLOEXEC)
    try:
        restrict(tree, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | ATTR_NOSYMFOLLOW)
        call(_MOVE_MOUNT, tree, b"", target, b"", _MOVE_F_EMPTY | _MOVE_T_EMPTY)
    finally:
        os.close(tree)


def restrict(handle: int, attributes: int, *, is_recursive: bool = False) -> None:
    """Take rights from the mount an open file is on, and make it private. Raises: OSError."""
    wanted = _MountAttr(attr_set=attributes, attr_clr=0, propagation=_MS_PRIVATE, userns_fd=0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if is_recursive else 0)
    pointer = ctypes.cast(ctypes.byref(wanted), ctypes.c_void_p)
    call(_MOUNT_SETATTR, handle, b"", flags, pointer, ctypes.sizeof(wanted))

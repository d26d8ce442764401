"""Opens paths in a container's root file system so that none leads out: every path goes through `openat2`.

The image decides what `/etc` or `/dev` are, and may change them while we look. So no path of it is ever checked first
and used later, or followed by the kernel's ordinary rules: `RESOLVE_IN_ROOT` makes absolute and `..` links end inside,
`RESOLVE_NO_MAGICLINKS` refuses `/proc/1/root` and its kind, and what is written goes by name into a folder that is
already open. Writes stay on the root file system itself (`RESOLVE_NO_XDEV`): a link into a volume is refused too.
Mounts go onto open files, never onto names.

A root that is to be read-only for the container is closed before the hook by crun and after it by runc. Where the
runtime closed it, writes go through a mount of the same file system that no other process has; what was read-only
before, by its own nature or by a mount of the operator's, stays so.
Source: openat2(2), open_tree(2), move_mount(2), mount_setattr(2); numbers from asm-generic/unistd.h.
"""

import _stat
import posix

from fairlead.inject import syscall

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x01, 0x02, 0x04, 0x10
_OPEN_TREE_CLONE, _AT_EMPTY_PATH, _AT_RECURSIVE = 0x1, 0x1000, 0x8000
_MOVE_F_EMPTY, _MOVE_T_EMPTY = 0x04, 0x40
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSYMFOLLOW = 0x1, 0x2, 0x4, 0x8, 0x200000
_MS_PRIVATE = 1 << 18
_EROFS = 30
_READ_LIMIT_BYTES = 16 << 20
_FOLDER = posix.O_PATH | posix.O_DIRECTORY
_NEW = posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC


class Root:
    """An open root file system.

    Args: path: of the host, from the bundle; trusted, unlike everything below it.
    """

    def __init__(self, path: str) -> None:
        self.handle = posix.open(path, _FOLDER | posix.O_CLOEXEC)
        self._loose: int | None = None
        """The same file system by a mount of our own that may be written, once that was needed."""

    def close(self) -> None:
        """Close the root."""
        for handle in (self.handle, self._loose):
            if handle is not None:
                posix.close(handle)

    def open(self, path: str, flags: int, *, resolve: int = 0) -> int:
        """Open a path inside, close-on-exec. Raises: OSError: not there, or ELOOP, EXDEV: it would lead out."""
        return _open(self.handle, path, flags, resolve)

    def read(self, path: str) -> bytes:
        """Read a regular file, at most 16 MiB. Raises: OSError, also where it is something else (ENOTSUP)."""
        # O_NONBLOCK: a named pipe would hold the container's start.
        handle = self.open(path, posix.O_RDONLY | posix.O_NONBLOCK)
        try:
            if not _stat.S_ISREG(posix.fstat(handle).st_mode):
                raise _refused(path)
            return read_all(handle)
        finally:
            posix.close(handle)

    def list(self, path: str) -> list[str]:
        """List a folder's names, sorted. Raises: OSError."""
        handle = self.open(path, posix.O_RDONLY | posix.O_DIRECTORY)
        try:
            return sorted(posix.listdir(handle))
        finally:
            posix.close(handle)

    def is_file(self, path: str) -> bool:
        """Whether a regular file is there, links followed inside; a moment later it may not be."""
        try:
            handle = self.open(path, posix.O_PATH)
        except OSError:
            return False
        try:
            return _stat.S_ISREG(posix.fstat(handle).st_mode)
        finally:
            posix.close(handle)

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Replace a file in one step, folders made where they are missing; a link at its name is replaced itself.

        Raises: OSError: EXDEV where the way leads onto another mount, EROFS.
        """
        try:
            self._write(path, data, mode)
        except OSError as error:
            if error.errno != _EROFS or not self._loosen():
                raise
            self._write(path, data, mode)

    def _write(self, path: str, data: bytes, mode: int) -> None:
        folder, name = self._parent(path)
        temporary = f".fairlead-{posix.getpid()}-{name}"
        try:
            handle = posix.open(temporary, posix.O_WRONLY | _NEW, 0o600, dir_fd=folder)
            try:
                write_all(handle, data)
                posix.fchmod(handle, mode)
            finally:
                posix.close(handle)
            _replace(folder, temporary, name)
        finally:
            posix.close(folder)

    def link(self, target: str, path: str) -> None:
        """Make a symbolic link in one step, whatever stood there; idempotent. The target is text, never followed.

        Raises: OSError: as `write`; EBUSY where a mount has the name.
        """
        try:
            self._link(target, path)
        except OSError as error:
            if error.errno != _EROFS or not self._loosen():
                raise
            self._link(target, path)

    def _link(self, target: str, path: str) -> None:
        folder, name = self._parent(path)
        temporary = f".fairlead-{posix.getpid()}-{name}"
        try:
            if _is_link_to(folder, name, target):
                return
            posix.symlink(target, temporary, dir_fd=folder)
            _replace(folder, temporary, name)
        finally:
            posix.close(folder)

    def cover(self, path: str, data: bytes) -> None:
        """Lay a read-only file over an existing one by a mount: for what cannot be written.

        The content lies in a file of the container's /dev, which is its own memory, and loses its name there at once.
        Raises: OSError: nothing to cover, or mounting is not allowed.
        """
        name = f".fairlead-{posix.getpid()}"
        target = self.open(path, posix.O_PATH)
        folder = self.open("/dev", _FOLDER, resolve=_NO_SYMLINKS)
        try:
            if not _stat.S_ISREG(posix.fstat(target).st_mode):
                raise _refused(path)
            source = posix.open(name, posix.O_RDWR | _NEW, 0o444, dir_fd=folder)
            try:
                write_all(source, data)
                posix.fchmod(source, 0o444)
                mount_over(source, target)
            finally:
                posix.close(source)
                posix.unlink(name, dir_fd=folder)
        finally:
            posix.close(folder)
            posix.close(target)

    def folder_to_hide(self, path: str) -> int:
        """Open a folder as a place to mount onto; no link on the way. Raises: OSError."""
        return self.open(path, _FOLDER, resolve=_NO_SYMLINKS)

    def _parent(self, path: str) -> tuple[int, str]:
        """Open the folder of a path, made where it is missing, on the root file system itself."""
        folder, _, name = path.rpartition("/")
        made = ""
        for part in [item for item in folder.split("/") if item]:
            above = self._folder(made)
            try:
                posix.mkdir(part, 0o755, dir_fd=above)
            except FileExistsError:
                pass
            finally:
                posix.close(above)
            made = f"{made}/{part}"
        return self._folder(made), name

    def _folder(self, path: str) -> int:
        """Open a folder to write into; mounts on the way are found in the container's tree, as our clone has none."""
        handle = self.open(path, _FOLDER, resolve=_NO_XDEV)
        if self._loose is None:
            return handle
        posix.close(handle)
        return _open(self._loose, path, _FOLDER, _NO_XDEV)

    def _loosen(self) -> bool:
        """Take a mount of our own of this file system, open for writing; False: there is one, or it may not be."""
        if self._loose is not None or not self._is_closed_by_the_runtime():
            return False
        try:
            tree = syscall.call(
                syscall.OPEN_TREE, self.handle, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | posix.O_CLOEXEC
            )
        except OSError:
            return False
        wanted = syscall.pack(ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC, ATTR_RDONLY, _MS_PRIVATE, 0)
        try:
            syscall.call(syscall.MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, wanted, len(wanted))
        except OSError:
            posix.close(tree)
            return False
        self._loose = tree
        return True

    def _is_closed_by_the_runtime(self) -> bool:
        """Whether the root is a mount that lies on one that may be written: else another program closed it."""
        here, number = _contents(f"/proc/self/fdinfo/{self.handle}"), b""
        for line in here.splitlines():
            if line.startswith(b"mnt_id:"):
                number = line.split()[1]
        mounts = {fields[0]: fields for fields in map(bytes.split, _contents("/proc/self/mountinfo").splitlines())}
        own = mounts.get(number)
        below = mounts.get(own[1]) if own else None
        if own is None or below is None:
            return False
        path = posix.readlink(f"/proc/self/fd/{self.handle}").encode("utf-8", "surrogateescape")
        return unescaped(own[4]) == path and below[5].split(b",")[0] == b"rw"


def _contents(path: str) -> bytes:
    handle = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return read_all(handle)
    finally:
        posix.close(handle)


def unescaped(field: bytes) -> bytes:
    """Return a path of mountinfo as it is."""
    for code in (b"040", b"011", b"012", b"134"):
        field = field.replace(b"\\" + code, bytes([int(code, 8)]))
    return field


def _open(top: int, path: str, flags: int, resolve: int) -> int:
    how = syscall.pack(flags | posix.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGICLINKS | resolve)
    name = (path.lstrip("/") or ".").encode("utf-8", "surrogateescape")
    if b"\0" in name:
        raise OSError(22, "a path cannot hold a zero byte")
    return syscall.call(syscall.OPENAT2, top, name, how, len(how))


def _is_link_to(folder: int, name: str, target: str) -> bool:
    try:
        return posix.readlink(name, dir_fd=folder) == target
    except OSError:
        return False


def _replace(folder: int, temporary: str, name: str) -> None:
    try:
        posix.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        posix.unlink(temporary, dir_fd=folder)
        raise


def _refused(path: str) -> OSError:
    return OSError(95, "not a regular file", path)


def read_all(handle: int) -> bytes:
    """Read an open file from where it stands, at most 16 MiB. Raises: OSError: EFBIG where there is more."""
    found = b""
    while chunk := posix.read(handle, 1 << 20):
        found += chunk
        if len(found) > _READ_LIMIT_BYTES:
            raise OSError(27, "larger than 16 MiB")
    return found


def write_all(handle: int, data: bytes) -> None:
    """Write all bytes, in as many calls as it takes."""
    while data:
        data = data[posix.write(handle, data) :]


def mount_over(source: int, target: int) -> None:
    """Mount one open file over another one, read-only and private. Raises: OSError."""
    tree = syscall.call(syscall.OPEN_TREE, source, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | posix.O_CLOEXEC)
    try:
        restrict(tree, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | ATTR_NOSYMFOLLOW)
        syscall.call(syscall.MOVE_MOUNT, tree, b"", target, b"", _MOVE_F_EMPTY | _MOVE_T_EMPTY)
    finally:
        posix.close(tree)


def restrict(handle: int, attributes: int, *, is_recursive: bool = False) -> None:
    """Take rights from the mount an open file is on, and make it private. Raises: OSError."""
    wanted = syscall.pack(attributes, 0, _MS_PRIVATE, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if is_recursive else 0)
    syscall.call(syscall.MOUNT_SETATTR, handle, b"", flags, wanted, len(wanted))

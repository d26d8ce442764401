"""Builds a container's ld.so cache with the host's ldconfig, without letting the image near the host.

The image is hostile data to a program that runs as root. So ldconfig is a sealed copy in memory of the host's own
program, never the image's; it runs in mount, process, network, IPC and UTS namespaces of its own, with the container's
root as its root (`pivot_root`, the host's detached), read-only, every mount but the driver's libraries taken away,
without capabilities, environment or other open files, for a limited time. What it makes lands in a small memory file
system and comes back as bytes; the hook decides where they go.
Source: ldconfig(8), pivot_root(2), prctl(2) PR_SET_SECUREBITS; musl's dynlink.c for its path file.
"""

import _signal  # type: ignore[import-not-found]  # `signal` alone would cost 3 ms, for its enums
import posix

from fairlead.inject import rootfs, syscall

LDCONFIG = ("/sbin/ldconfig.real", "/usr/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig")
"""Where hosts keep it; some have a script under its name and the program beside it."""
_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
_MS_REC, _MS_BIND, _MS_PRIVATE = 0x4000, 0x1000, 1 << 18
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_PR_SET_PDEATHSIG, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 1, 28, 38
_NOROOT_LOCKED = 0b11
_SEALS = 0x1 | 0x2 | 0x4 | 0x8
_F_ADD_SEALS = 1033
_ELF = b"\x7fELF"
_CACHE = b"glibc-ld.so.cache1.1"
_OLD_CACHE = b"ld.so-1.7.0"
_OUTPUT = ("/dev", "/proc", "/sys", "/run", "/mnt")
"""Folders of an image under which the result may be laid, the first that is one."""
_TIME_LIMIT_S = 15
_FILE_LIMIT_BYTES = 64 << 20
_RLIMIT_CPU, _RLIMIT_FSIZE, _RLIMIT_CORE = 0, 1, 4
_FAILED = 70
_PROGRAM = 3
"""Descriptor from which ldconfig is executed; all above it are closed."""
_SIGKILL = 9


class LinkerError(Exception):
    """The cache could not be made; the text says why."""


def sealed_ldconfig(path: str) -> int:
    """Return a sealed copy of the host's ldconfig as an open file.

    Args:    path: of the host; empty: the usual places.
    Raises:  LinkerError: none is there, it is a script, or others than root could have written it.
    """
    for place in (path,) if path else LDCONFIG:
        try:
            handle = posix.open(place, posix.O_RDONLY | posix.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = posix.fstat(handle)
            if status.st_uid not in {0, posix.geteuid()} or status.st_mode & 0o022:
                raise LinkerError(f"{place} can be written by others than root")
            if posix.pread(handle, len(_ELF), 0) != _ELF:
                continue
            copy = posix.memfd_create("ldconfig", posix.MFD_CLOEXEC | posix.MFD_ALLOW_SEALING)
            while posix.sendfile(copy, handle, None, 1 << 26):
                pass
            syscall.libc("fcntl", copy, _F_ADD_SEALS, _SEALS)
            return copy
        finally:
            posix.close(handle)
    raise LinkerError(f"no ldconfig on the host (looked for {path or ', '.join(LDCONFIG)})")


def build_cache(root: str, folders: list[str], *, ldconfig: str = "") -> bytes:
    """Return the cache for a container.

    Args:    root: its root file system, a path of the host.   folders: of libraries, in its own paths, in rising
             order of the search; those of its own configuration come after them.
    Raises:  LinkerError, OSError.
    """
    program = sealed_ldconfig(ldconfig)
    result = posix.memfd_create("ld.so.cache", posix.MFD_CLOEXEC)
    words = posix.memfd_create("messages", posix.MFD_CLOEXEC)
    child = posix.fork()
    if child == 0:
        _confined(root, folders, program=program, result=result, words=words)
    _, status = posix.waitpid(child, 0)
    data, text = (_content(handle) for handle in (result, words))
    for handle in (program, result, words):
        posix.close(handle)
    if posix.waitstatus_to_exitcode(status) != 0 or not data.startswith((_CACHE, _OLD_CACHE)):
        shown = text.decode("utf-8", "replace").strip()[-300:]
        raise LinkerError(f"ldconfig failed ({posix.waitstatus_to_exitcode(status)}): {shown or 'without a word'}")
    return data


def _content(handle: int) -> bytes:
    posix.lseek(handle, 0, 0)
    return rootfs.read_all(handle)


def _confined(root: str, folders: list[str], *, program: int, result: int, words: int) -> None:
    """Run as the child: enter namespaces, run ldconfig in them, write its result to the parent. Never returns."""
    try:
        output = _enter(root, folders)
        # Not in the worker: process 1 of a pid namespace ignores SIGALRM. It dies with this process (PR_SET_PDEATHSIG).
        _signal.alarm(_TIME_LIMIT_S)
        worker = posix.fork()
        if worker == 0:
            _become_ldconfig([output, *folders], program=program, words=words)
        _, status = posix.waitpid(worker, 0)
        code = posix.waitstatus_to_exitcode(status)
        if code == 0:
            handle = posix.open(output, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK)
            rootfs.write_all(result, rootfs.read_all(handle))
        posix._exit(0 if code == 0 else _FAILED)
    except OSError as error:
        rootfs.write_all(words, f"{error}".encode())
    finally:
        posix._exit(_FAILED)


def _enter(root: str, folders: list[str]) -> str:
    """Make the container's root this process's root, in namespaces of its own; returns where results go inside."""
    syscall.libc("unshare", _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET)
    syscall.libc("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    place = _real(root)
    if not _take_away(place, folders):
        # Only a mount can become a root. Runtimes have made it one already: copying its mounts again costs 2 ms.
        path = place.encode("utf-8", "surrogateescape")
        syscall.libc("mount", path, path, None, _MS_BIND | _MS_REC, None)
    inside = rootfs.Root(place)
    rootfs.restrict(inside.handle, rootfs.ATTR_RDONLY | rootfs.ATTR_NOSUID | rootfs.ATTR_NODEV, is_recursive=True)
    output = _output(inside)
    posix.fchdir(inside.handle)
    syscall.libc("pivot_root", b".", b".")
    syscall.libc("umount2", b".", _MNT_DETACH)
    posix.chdir("/")
    posix.chdir(output)
    return f"{output}/out/ld.so.cache"


def _real(path: str) -> str:
    """Return a folder's path without links, as the kernel names it."""
    handle = posix.open(path, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        return posix.readlink(f"/proc/self/fd/{handle}")
    finally:
        posix.close(handle)


def _output(inside: rootfs.Root) -> str:
    """Lay a memory file system over one of the image's folders; returns its path inside."""
    for place in _OUTPUT:
        try:
            handle = inside.folder_to_hide(place)
        except OSError:
            continue
        target = f"/proc/self/fd/{handle}".encode()
        syscall.libc("mount", b"tmpfs", target, b"tmpfs", 0b1110, b"size=32m,mode=0755")
        posix.close(handle)
        top = inside.folder_to_hide(place)
        posix.mkdir("out", 0o755, dir_fd=top)
        posix.close(top)
        return place
    raise OSError(2, f"the image has none of the folders {', '.join(_OUTPUT)}")


def _take_away(root: str, folders: list[str]) -> bool:
    """Unmount everything below the root but the libraries: /proc leads to the host, volumes are not ours.

    Returns: whether the root is a mount itself.
    """
    below = f"{root.rstrip('/')}/".encode("utf-8", "surrogateescape")
    is_mount = False
    handle = posix.open("/proc/self/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
    lines = rootfs.read_all(handle).splitlines()
    posix.close(handle)
    gone: list[bytes] = []
    for line in lines:
        place = rootfs.unescaped(line.split(b" ")[4])
        is_mount = is_mount or place == below[:-1]
        # Lazily, so what is mounted below goes with it.
        if not place.startswith(below) or place.startswith(tuple(gone)):
            continue
        if not _holds_libraries(place[len(below) - 1 :].decode("utf-8", "surrogateescape"), folders):
            syscall.libc("umount2", place, _MNT_DETACH | _UMOUNT_NOFOLLOW)
            gone.append(place + b"/")
    return is_mount


def _holds_libraries(place: str, folders: list[str]) -> bool:
    """Return whether a mount is a library of these folders, one of the folders, or holds one."""
    folder, _, name = place.rpartition("/")
    is_library = ".so" in name and folder in folders
    return is_library or any(f"{item}/".startswith(f"{place}/") for item in folders)


def _become_ldconfig(paths: list[str], *, program: int, words: int) -> None:
    """Replace this process by ldconfig, without privileges, streams or open files. Never returns."""
    try:
        posix.setsid()
        nothing = posix.open(".", posix.O_PATH)  # standard streams must be something
        for stream in (0, 1):
            posix.dup2(nothing, stream)
        posix.dup2(words, 2)
        if program != _PROGRAM:  # dup3(2) refuses equal numbers
            posix.dup2(program, _PROGRAM, inheritable=False)
        posix.closerange(_PROGRAM + 1, 4096)
        syscall.libc("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        syscall.libc("prctl", _PR_SET_SECUREBITS, _NOROOT_LOCKED, 0, 0, 0)
        syscall.libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        syscall.libc("setrlimit", _RLIMIT_CPU, syscall.pack(_TIME_LIMIT_S, _TIME_LIMIT_S))
        syscall.libc("setrlimit", _RLIMIT_FSIZE, syscall.pack(_FILE_LIMIT_BYTES, _FILE_LIMIT_BYTES))
        syscall.libc("setrlimit", _RLIMIT_CORE, syscall.pack(0, 0))
        arguments = ["ldconfig", "-X", "-f", "/etc/ld.so.conf", "-C", *paths]
        posix.execve(_PROGRAM, arguments, {})
    finally:
        posix._exit(_FAILED)

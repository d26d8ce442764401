"""Makes the system calls that Python 3.11 has no function for, through the C half of `ctypes`.

`import ctypes` costs a cold process 4 ms, its C half a third of that; what is missing is five lines. It is private, so
a Python without it gets `ctypes` itself. Structures are handed over as packed bytes: the kernel only reads them.
Source: syscalls(2); numbers from asm-generic/unistd.h, the same on every architecture since 2018.
"""

import posix

try:
    import _ctypes
except ImportError:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
    _errno = ctypes.get_errno

    def _function(name: str) -> object:
        found = _libc[name]
        found.restype = ctypes.c_long
        return found

    _Long = ctypes.c_long
else:
    _library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type,unused-ignore]  # NULL: this program itself
    _errno = _ctypes.get_errno

    class _Long(_ctypes._SimpleCData):  # type: ignore[no-redef,type-arg]  # not subscriptable when run
        _type_ = "l"

    class _Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = _Long

    def _function(name: str) -> object:
        return _Function(_ctypes.dlsym(_library, name))


OPEN_TREE, MOVE_MOUNT, OPENAT2, MOUNT_SETATTR = 428, 429, 437, 442


def libc(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library. Raises: OSError: it returned -1, with errno."""
    function = _function(name)
    wrapped = [_Long(item) if isinstance(item, int) else item for item in arguments]
    result: int = function(*wrapped)  # type: ignore[operator]
    if result == -1:
        number = _errno()
        raise OSError(number, posix.strerror(number))
    return result


def call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call by number. Raises: OSError: as it says."""
    return libc("syscall", number, *arguments)


def pack(*words: int) -> bytes:
    """Return 64-bit words as the kernel reads them."""
    return b"".join(word.to_bytes(8, "little") for word in words)

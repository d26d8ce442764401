"""Writes to files of sysfs, one after another: a program of its own, because such a write can block for ever.

    python -I -S sysfswrite.py

It prints `UP` once it reads. Each line on standard input is one or more writes, each a path, a NUL and a text, with a
NUL between them. They are done in order, the text and a newline in one call. For each one line is printed: `OK`, or an
errno name, after which the rest of the line is dropped. A line that cannot be printed, since the process that started
this one has ended, is the last. A driver that is told to let go of a device in use waits in the kernel, where no signal
ends it: then this process stays behind, and the one that started it goes on without.

`posix` in place of `os`: without `site` nothing has loaded that yet, and what it imports is a fifth of the start.

Source: kernel Documentation/filesystems/sysfs.rst (a whole value in one write).
"""

import errno
import posix
import sys


def write(path: bytes, text: bytes) -> str:
    """Write a text and a newline to a file that is there; returns `OK` or an errno name."""
    try:
        handle = posix.open(path, posix.O_WRONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
        try:
            posix.write(handle, text + b"\n")
        finally:
            posix.close(handle)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "OK"


def main() -> int:
    """Run the program; returns its exit code."""
    sys.stdout.write("UP\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        words = line.rstrip(b"\n").split(b"\0")
        for path, text in zip(words[::2], words[1::2], strict=False):
            said = write(path, text)
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()  # fails where nobody reads any more: what comes next is another's to decide
            if said != "OK":
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())

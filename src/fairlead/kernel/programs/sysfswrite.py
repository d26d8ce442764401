"""Writes to files of sysfs, one write at a time: a program of its own, because such a write can block for ever.

    python -I -S sysfswrite.py

It prints `UP` once it reads. Each line on standard input is a path, a NUL and a text. The text and a newline are
written to the file in one call, and one line is printed: `OK`, or an errno name. A driver that is told to let go of a
device in use waits in the kernel, where no signal ends it: then this process stays behind, and the one that started it
goes on without.

Source: kernel Documentation/filesystems/sysfs.rst (a whole value in one write).
"""

import errno
import os
import sys


def write(path: str, text: str) -> str:
    """Write a text and a newline to a file that is there; returns `OK` or an errno name."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(handle, f"{text}\n".encode(errors="surrogateescape"))
        finally:
            os.close(handle)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "OK"


def main() -> int:
    """Run the program; returns its exit code."""
    sys.stdout.write("UP\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        path, _, text = line.decode(errors="surrogateescape").rstrip("\n").partition("\0")
        sys.stdout.write(f"{write(path, text)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes one line to one file of sysfs: a program of its own, since such a write may block for ever.

    python -I -S sysfswrite.py PATH TEXT

Whoever starts it waits no longer than it likes; where the kernel does not come back, this process is what hangs. The
file is opened for writing alone, never made, and no link is followed in its last part. Standard library only.
Exit code 0: written; 1: refused, with the error's name and words on standard error.
"""

import errno
import os
import sys


def main(path: str, text: str) -> int:
    """Write the line. Returns the exit code."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)
    except OSError as error:
        sys.stderr.write(f"{errno.errorcode.get(error.errno or 0, error.errno)}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

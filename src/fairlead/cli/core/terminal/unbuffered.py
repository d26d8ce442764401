"""Reads and writes the standard streams past Python's buffers, for threads that the program's end does not wait for.

A buffered stream keeps its lock while it waits for the kernel. A daemon thread that waits there as the interpreter ends
never gives the lock back, and the interpreter, which flushes and closes these streams last, aborts the process: Ctrl-C
or the detach keys would end in SIGABRT. Descriptors have no such lock. What the main thread prints is flushed at once
(`plaintext.echo`), so the order stays.
Source: CPython 3.11, Modules/_io/bufferedio.c (`_enter_buffered_busy`).
"""

from __future__ import annotations

import io
import os
import sys
from typing import BinaryIO, TextIO

from fairlead.cli.core import plaintext


def write(stream: TextIO, data: bytes) -> None:
    """Write all of the data. Raises: OSError, what is then unwritten is lost."""
    try:
        descriptor = stream.fileno()
    except OSError:  # a program called us that keeps what is written in memory
        stream.buffer.write(data)
        stream.buffer.flush()
        return
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def say(text: str) -> None:
    """Print a line on standard error, as `plaintext.echo` does."""
    write(sys.stderr, f"{plaintext.shown(text)}\n".encode(sys.stderr.encoding, sys.stderr.errors or "strict"))


def standard_input() -> BinaryIO:
    """Return standard input as a file whose reads give what is there; nothing of it may have been read before."""
    try:
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    except io.UnsupportedOperation:  # as above
        return sys.stdin.buffer

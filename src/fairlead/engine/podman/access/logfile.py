"""Reads the log that conmon writes of a container's output, to its last byte.

Podman's own `logs -f` (4.3) ends with the container, whatever it has read until then. The file says more and all: a
record is `TIME STREAM F|P DATA`, where P is a piece whose line goes on in the next record of its stream. DATA is any
bytes but a line feed. When the file reaches its largest size conmon begins another in its place; a reader goes on to
the end of the one it has, then to the new one.

conmon writes the log first and then to every attached socket, so a reader that holds such a socket and takes from it
what it has read from the log keeps conmon, and so the program, from running ahead of it: `Throttle`.
Source: conmon 2.1, src/ctr_logging.c (write_k8s_log, reopen_k8s_file) and src/ctr_stdio.c (stdio_cb).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import asyncinotify

from fairlead.model.output import ErrorOutput, LogQuery
from fairlead.wire.text import timestamp

_BLOCK: Final = 1 << 18
_HEAD: Final = re.compile(rb"(\S+) (stdout|stderr) ([FP]) ")
_LOOK_S: Final = 0.25
"""How often a reader looks at whether the container lives, where the file does not change."""


class Brake(Protocol):
    """Keeps the writer from running ahead of the reader."""

    def consumed(self, count: int) -> None:
        """Say that so many bytes of output were read from the log."""
        ...


async def read(
    path: Path, query: LogQuery, *, is_over: Callable[[], bool], brake: Brake | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield output, pieces of standard error as `ErrorOutput`.

    Args: is_over: whether nothing is written any more; what was written before it turned true is read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with asyncinotify.Inotify() as inotify:
            mask = asyncinotify.Mask.MODIFY | asyncinotify.Mask.MOVED_TO
            inotify.add_watch(path.parent, mask | asyncinotify.Mask.ONLYDIR)
            if query.tail is not None:
                os.lseek(file, await asyncio.to_thread(_tail_offset, file, query.tail), os.SEEK_SET)
            records = _Records(query)
            # What was written before the brake was there is not held back by it.
            old = os.fstat(file).st_size - os.lseek(file, 0, os.SEEK_CUR)
            was_over = is_fresh = False
            while True:
                # What has just been written is in memory; older records may have to come from a disk.
                block = os.read(file, _BLOCK) if is_fresh else await asyncio.to_thread(os.read, file, _BLOCK)
                if block:
                    for piece in records.feed(block):
                        yield piece
                    old -= len(block)
                    count = records.taken()
                    if brake is not None and old < 0:
                        brake.consumed(count)
                elif (successor := _successor(path, file)) is not None:
                    os.close(file)
                    file = successor
                elif was_over or not query.follow:
                    return
                elif not (was_over := is_over()):
                    await _changed(inotify)
                    is_fresh = True
    finally:
        os.close(file)


def _successor(path: Path, file: int) -> int | None:
    """Return the file that has taken this one's place, opened; None: none has."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if os.fstat(found).st_ino == os.fstat(file).st_ino:
        os.close(found)
        return None
    return found


async def _changed(inotify: asyncinotify.Inotify) -> None:
    """Return once something in the folder changed, or after a while."""
    try:
        async with asyncio.timeout(_LOOK_S):
            await inotify.get()
    except TimeoutError:
        return


class _Records:
    """Turns blocks of the file into pieces of output."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._rest = b""
        self._begins = {b"stdout": True, b"stderr": True}
        self._taken = 0

    def taken(self) -> int:
        """Return how many bytes of output the records since the last call held, left out or not."""
        count, self._taken = self._taken, 0
        return count

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield the output of whole records, neighbours of one stream joined."""
        *lines, self._rest = (self._rest + block).split(b"\n")
        joined: list[bytes] = []
        current = b"stdout"
        for line in lines:
            head = _HEAD.match(line)
            if head is None:
                continue  # cut short by a full disk: conmon goes on with the next
            moment, stream, flag = head.groups()
            data = line[head.end() :] + (b"\n" if flag == b"F" else b"")
            self._taken += len(data)
            begins, self._begins[stream] = self._begins[stream], flag == b"F"
            if not self._is_wanted(moment):
                continue
            if stream != current and joined:
                yield _piece(current, joined)
                joined = []
            current = stream
            if begins and self._query.timestamps:
                joined.append(moment + b" ")
            joined.append(data)
        if joined:
            yield _piece(current, joined)

    def _is_wanted(self, moment: bytes) -> bool:
        since, until = self._query.since, self._query.until
        if since is None and until is None:
            return True
        at = timestamp.unix_seconds(moment.decode(errors="replace"))
        return (since is None or at >= since) and (until is None or at <= until)


def _piece(stream: bytes, parts: list[bytes]) -> bytes:
    data = b"".join(parts)
    return ErrorOutput(data) if stream == b"stderr" else data


def _tail_offset(file: int, lines: int) -> int:
    """Return where the last lines begin: behind the F record that ends the line before them.

    Read from the end, block by block; a piece without its end counts as a line.
    """
    place = size = os.lseek(file, 0, os.SEEK_END)
    if not lines:
        return size
    rest, found, is_first = b"", 0, True
    while place:
        start = max(0, place - _BLOCK)
        block = os.pread(file, place - start, start) + rest
        records = block.split(b"\n")
        # The first may have begun in the block before this one; the last is empty, or being written.
        offset = start + len(block)
        for record in reversed(records[1:]):
            offset -= len(record)
            if record:
                head = _HEAD.match(record)
                ends_line = head is None or head[3] == b"F"
                if ends_line or is_first:
                    if found == lines:
                        return offset + len(record) + 1
                    found += 1
                is_first = False
            offset -= 1
        rest, place = records[0], start
    head = _HEAD.match(rest)
    ends_line = head is None or head[3] == b"F"
    return len(rest) + 1 if rest and found == lines and ends_line else 0

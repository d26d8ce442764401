"""Reads the log that conmon writes of a container's output, to its last byte.

Podman's own `logs -f` (4.3) ends with the container, whatever it has read until then. The file says more and all: a
record is `TIME STREAM F|P DATA`, where P is a piece whose line goes on in the next record of its stream. DATA is any
bytes but a line feed. When the file reaches its largest size conmon begins another in its place. A reader that finds
the new one reads the old one to its end first: conmon may have gone on writing it after the reader was last there.

conmon writes the log first and then to every attached socket, so a reader that holds such a socket and takes from it
what it has read from the log keeps conmon, and so the program, from running ahead of it: `Throttle`. Without one, or
where the lines are short and the log is smaller than what the socket holds of them, conmon may begin two logs between
two looks of the reader. The renames are counted, and output that was replaced unread is said in the output. No process
counts for a reader that comes later; the container's first log is marked before its start (`startrecord`), so that such
a reader sees that the one it opens is a later one, and says in the output from when on it has it.
Source: conmon 2.1, src/ctr_logging.c (write_k8s_log, reopen_k8s_file) and src/ctr_stdio.c (stdio_cb).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final, Protocol, Self

import asyncinotify

from fairlead.engine.podman import startrecord
from fairlead.model.container.output import ErrorOutput, LogQuery
from fairlead.wire.text import timestamp

_BLOCK: Final = 1 << 18
_HEAD: Final = re.compile(rb"(\S+) (stdout|stderr) ([FP]) ")
_LONGEST_HEAD: Final = 64
_LOOK_S: Final = 0.25
"""How often a reader looks at whether the container lives, where the file does not change."""


class Brake(Protocol):
    """Keeps the writer from running ahead of the reader."""

    def held(self) -> int:
        """Return how much waits here; all of it has been written to the log."""
        ...

    def release(self, amount: int) -> None:
        """Let the writer go on by so much of what waited: it was read from the log."""
        ...


async def read(
    path: Path, query: LogQuery, *, is_over: Callable[[], bool], brake: Brake | None = None, is_marked: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield output, pieces of standard error as `ErrorOutput`.

    Args: is_over: whether nothing is written any more; what was written before it turned true is read.
          is_marked: whether the container's first log was marked.
    """
    with _Log(path) as log:
        whole = True if query.tail is None else await log.skip(query.tail)
        if is_marked and whole and (gone := log.replaced(query.since)):
            yield gone
        records = _Records(query)
        was_over = is_fresh = False
        while True:
            held = 0 if brake is None else brake.held()
            block = await log.read(is_fresh=is_fresh)
            if lost := log.lost():
                records.interrupt()
                yield _loss(lost)
            if block:
                for piece in records.feed(block):
                    yield piece
            elif was_over or not query.follow:
                return
            else:
                # The log was read to its end, so all that the brake held before that has been read.
                if brake is not None:
                    brake.release(held)
                if not (was_over := is_over()):
                    await log.changed()
                    is_fresh = True


def _loss(count: int) -> ErrorOutput:
    """Say in the output that some of it was never read; begins on a line of its own."""
    text = f"fairlead: {count} bytes of the log (times and output) were replaced before they were read here"
    return ErrorOutput(f"\n{text}; a larger engine.log_max_mib keeps more\n".encode())


class _Log:
    """The files of a log, one after the other, and how often conmon began a new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._successor: int | None = None
        self._begun = 0
        """Renames seen in the folder."""
        self._followed = 0
        """How many of those are behind us: begun before we came, followed, or said to be lost."""
        self._full = 0
        """Size of a log that was replaced."""

    def __enter__(self) -> Self:
        """Open the log and count from there on. Raises: FileNotFoundError."""
        with contextlib.ExitStack() as stack:
            self._inotify = stack.enter_context(asyncinotify.Inotify(sync_timeout=0))
            mask = asyncinotify.Mask.MODIFY | asyncinotify.Mask.MOVED_TO | asyncinotify.Mask.ONLYDIR
            self._inotify.add_watch(self._path.parent, mask)
            stack.callback(self._close)
            while True:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._look()
                if self._is_current(self._file):
                    break
                os.close(self._file)
            self._followed = self._begun
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        for file in (self._file, self._successor):
            if file is not None and file >= 0:
                os.close(file)

    async def skip(self, tail: int) -> bool:
        """Go on at the last lines; return whether the log may have begun with fewer than were asked for."""
        offset = os.lseek(self._file, await asyncio.to_thread(_tail_offset, self._file, tail), os.SEEK_SET)
        return bool(tail) and not offset

    def replaced(self, since: float | None) -> ErrorOutput | None:
        """Say that output from `since` on is gone because this is not the container's first log; None: none is."""
        if startrecord.is_first_log(self._file):
            return None
        head = _HEAD.match(os.pread(self._file, _LONGEST_HEAD, 0))
        moment = head[1].decode(errors="replace") if head else ""
        if since is not None and moment and timestamp.unix_seconds(moment) <= since:
            return None
        before = f"output before {moment}" if moment else "earlier output"
        text = f"fairlead: {before} was replaced before it was read here"
        return ErrorOutput(f"{text}; a larger engine.log_max_mib keeps more\n".encode())

    async def read(self, *, is_fresh: bool) -> bytes:
        """Return what comes next; b"": nothing yet.

        Args: is_fresh: it has just been written, so it is in memory; older records may have to come from a disk.
        """
        while True:
            block = os.read(self._file, _BLOCK) if is_fresh else await asyncio.to_thread(os.read, self._file, _BLOCK)
            if block:
                return block
            if self._successor is not None:
                self._full = os.fstat(self._file).st_size
                os.close(self._file)
                self._file, self._successor = self._successor, None
                self._followed += 1
            elif self._is_current(self._file):
                return b""
            else:
                # The old file is whole now, and may have grown since it was read: it is read once more.
                self._successor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def lost(self) -> int:
        """Return the bytes of logs that came and went unread since the last call: each as long as another, to a line.

        Where conmon is ahead of our file it is not known which renames came after it: a later call counts them.
        """
        if self._begun == self._followed and not self._full:
            return 0
        self._look()
        if self._successor is not None or not self._is_current(self._file):
            return 0
        logs = max(0, self._begun - self._followed)  # an event may be a moment behind its rename
        self._followed += logs
        return logs * self._full

    async def changed(self) -> None:
        """Return once something in the folder changed, or after a while."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        loop.add_reader(self._inotify.fd, news.set)
        try:
            async with asyncio.timeout(_LOOK_S):
                await news.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(self._inotify.fd)
        self._look()

    def _look(self) -> None:
        """Count what the kernel has said; not by `Inotify.get`, which loses events where its wait is cut short."""
        while (event := self._inotify.sync_get()) is not None:
            if event.mask & asyncinotify.Mask.MOVED_TO and event.name == Path(self._path.name):
                self._begun += 1

    def _is_current(self, file: int) -> bool:
        """Return whether the file is the one at the log's path; true where nothing is there any more."""
        try:
            return self._path.stat().st_ino == os.fstat(file).st_ino
        except FileNotFoundError:
            return True


class _Records:
    """Turns blocks of the file into pieces of output."""

    def __init__(self, query: LogQuery) -> None:
        self._query = query
        self._since = query.since
        self._moment, self._at = b"", 0.0
        self._rest = b""
        self._begins = {b"stdout": True, b"stderr": True}

    def interrupt(self) -> None:
        """Begin again behind output that was lost: what comes next is not the end of a line begun before."""
        self._rest = b""
        self._begins = {b"stdout": True, b"stderr": True}

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
        if self._since is None and self._query.until is None:
            return True
        if moment != self._moment:  # conmon gives all lines of one read of its pipe the same
            self._moment, self._at = moment, timestamp.unix_seconds(moment.decode(errors="replace"))
        if self._since is not None:
            if self._at < self._since:
                return False
            self._since = None  # what comes after is later, though a clock may be set back
        return self._query.until is None or self._at <= self._query.until


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

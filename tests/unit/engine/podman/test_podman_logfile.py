"""A reader of conmon's log has every byte, wherever conmon begins the log anew, or says how much was replaced."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from fairlead.engine.podman import startrecord
from fairlead.engine.podman.access import attach, logfile
from fairlead.model.container.output import ErrorOutput, LogQuery

HEAD: Final = b"2026-11-22T13:29:16.123456789+00:00 stdout F "


class Conmon:
    """Writes a log as conmon does: records, and now and then another file in the log's place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb", buffering=0)

    def write(self, *lines: bytes) -> None:
        self._file.write(b"".join(HEAD + line + b"\n" for line in lines))

    def begin_anew(self) -> None:
        self._file.close()
        fresh = self.path.with_name(f"{self.path.name}.tmp")
        self._file = fresh.open("wb", buffering=0)
        fresh.rename(self.path)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def conmon(tmp_path: Path) -> Iterator[Conmon]:
    one = Conmon(tmp_path / "ctr.log")
    yield one
    one.close()


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something happen right after a reader has found the end of its file, once."""
    read, acts = os.read, list[Callable[[], None]]()

    def reading(file: int, count: int) -> bytes:
        block = read(file, count)
        if not block and acts and Path(f"/proc/self/fd/{file}").readlink().name == "ctr.log":
            acts.pop()()
        return block

    monkeypatch.setattr(os, "read", reading)
    return acts.append


async def all_of(conmon: Conmon, brake: logfile.Brake | None = None) -> list[bytes]:
    pieces = logfile.read(conmon.path, LogQuery(follow=True), is_over=lambda: True, brake=brake)
    return [piece async for piece in pieces]


async def test_what_is_written_between_the_end_of_a_log_and_the_next_is_read(
    conmon: Conmon, at_the_end: Callable[[Callable[[], None]], None]
) -> None:
    def go_on() -> None:
        conmon.write(b"two", b"three")
        conmon.begin_anew()
        conmon.write(b"four")

    conmon.write(b"one")
    at_the_end(go_on)

    assert b"".join(await all_of(conmon)) == b"one\ntwo\nthree\nfour\n"


async def test_output_that_was_replaced_unread_is_said_in_bytes(
    conmon: Conmon, at_the_end: Callable[[Callable[[], None]], None]
) -> None:
    def run_ahead() -> None:
        conmon.begin_anew()
        conmon.write(b"two")
        conmon.begin_anew()
        conmon.write(b"six")

    conmon.write(b"one")
    at_the_end(run_ahead)
    one, loss, six = await all_of(conmon)

    assert (one, six) == (b"one\n", b"six\n")
    assert isinstance(loss, ErrorOutput)
    assert loss.decode().startswith(f"\nfairlead: {len(HEAD) + 4} bytes of the log ")


@pytest.fixture
def replaced(conmon: Conmon) -> Path:
    """The log of a container that began its second one before anybody read."""
    assert startrecord.mark_log(conmon.path)
    conmon.write(b"lost")
    conmon.begin_anew()
    conmon.write(b"two", b"three")
    return conmon.path


@pytest.mark.parametrize("query", [LogQuery(), LogQuery(tail=9), LogQuery(since=0.0)])
async def test_a_reader_that_comes_late_says_from_when_on_it_has_the_output(replaced: Path, query: LogQuery) -> None:
    pieces = [piece async for piece in logfile.read(replaced, query, is_over=lambda: True, is_marked=True)]

    assert isinstance(pieces[0], ErrorOutput)
    assert pieces[0].startswith(b"fairlead: output before 2026-11-22T13:29:16.123456789+00:00 was replaced ")
    assert pieces[1:] == [b"two\nthree\n"]


@pytest.mark.parametrize("query", [LogQuery(tail=1), LogQuery(since=1795354157.0), LogQuery(tail=0)])
async def test_a_reader_that_asks_for_what_is_there_hears_of_nothing_lost(replaced: Path, query: LogQuery) -> None:
    pieces = [piece async for piece in logfile.read(replaced, query, is_over=lambda: True, is_marked=True)]

    assert not any(isinstance(piece, ErrorOutput) for piece in pieces)


async def test_the_first_log_and_one_that_nobody_marked_are_whole(conmon: Conmon) -> None:
    conmon.write(b"one")
    for is_marked in (False, startrecord.mark_log(conmon.path)):
        pieces = logfile.read(conmon.path, LogQuery(), is_over=lambda: True, is_marked=is_marked)
        assert [piece async for piece in pieces] == [b"one\n"]


async def test_many_logs_one_after_the_other_are_not_taken_for_lost(
    conmon: Conmon, at_the_end: Callable[[Callable[[], None]], None]
) -> None:
    left = list(range(20))

    def next_one() -> None:
        conmon.begin_anew()
        conmon.write(b"%d" % left.pop(0))
        if left:
            at_the_end(next_one)

    at_the_end(next_one)

    assert b"".join(await all_of(conmon)) == b"".join(b"%d\n" % number for number in range(20))


async def test_the_writer_goes_on_though_all_that_holds_it_was_written_before_the_reader_looked(conmon: Conmon) -> None:
    """conmon may fill the socket between our connecting to it and our opening of its log."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        while True:
            conmon.write(b"x" * 8000)
            try:
                theirs.send(b"\x02" + b"x" * 8000 + b"\n")
            except BlockingIOError:
                break
        await all_of(conmon, attach.Throttle(ours))

        assert theirs.send(b"\x02more") == 5


async def test_what_was_not_read_from_the_log_holds_the_writer(conmon: Conmon) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        throttle = attach.Throttle(ours)
        conmon.write(b"one")
        theirs.send(b"\x02one\n")
        pieces = logfile.read(conmon.path, LogQuery(follow=True), is_over=lambda: False, brake=throttle)

        assert await anext(pieces) == b"one\n"
        assert throttle.held() == 5
        await pieces.aclose()


async def test_a_clock_that_is_set_back_hides_no_output(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(
        b"2026-11-22T13:00:00.000000000+00:00 stdout F old\n"
        b"2026-11-22T13:00:02.000000000+00:00 stdout F new\n"
        b"2026-11-22T12:00:00.000000000+00:00 stdout F newer\n"
    )
    since = datetime.datetime(2026, 11, 22, 13, 0, 1, tzinfo=datetime.UTC).timestamp()

    pieces = logfile.read(path, LogQuery(since=since), is_over=lambda: True)

    assert [piece async for piece in pieces] == [b"new\nnewer\n"]

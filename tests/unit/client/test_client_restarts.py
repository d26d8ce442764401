"""A service that is stopped and started again, under clients that wait and follow: they go on from where they were."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import AsyncClient, Client, errors
from fairlead.client import calls
from fairlead.client.session import follow
from fairlead.model.container.output import ErrorOutput, Mark
from fairlead.serve.v1.containers.output import logevents
from tests.unit.cli.liveservice import Service

_COUNTING = ("sh", "-c", "echo 1; echo 2; sleep 1; echo 3; sleep 1; echo 4; exit 3")


def _in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def run() -> None:
        try:
            found.append(act())
        except Exception as error:  # noqa: BLE001 it is what the test compares
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_a_wait_goes_on_after_a_restart(service: Service, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    made = client.run("demo", ["sh", "-c", "sleep 2; exit 3"])
    thread, found = _in_thread(lambda: made.wait().exit_code)
    thread.join(0.3)
    service.stop()
    assert not found
    service.start()
    thread.join(60)
    assert found == [3]
    told = [record.message for record in caplog.records if record.name == "fairlead"]
    assert len(told) == 1
    assert "waiting up to 60 s for it to come back" in told[0]


def test_output_that_is_followed_loses_and_repeats_no_line(service: Service, client: Client) -> None:
    made = client.run("demo", list(_COUNTING))
    lines = iter(made.logs(follow=True))
    seen = [next(lines), next(lines)]
    service.stop()
    service.start()
    assert [*seen, *lines] == ["1", "2", "3", "4"]
    assert list(made.logs()) == ["1", "2", "3", "4"]


def test_output_is_followed_from_its_last_lines_and_by_asyncio(service: Service, client: Client) -> None:
    made = client.run("demo", list(_COUNTING), name="a")
    assert list(made.logs(follow=True)) == ["1", "2", "3", "4"]
    assert list(made.logs(follow=True, tail=1)) == ["4"]

    async def followed() -> list[str]:
        async with AsyncClient(service.env["FAIRLEAD_URL"]) as other:
            one = await other.run("demo", list(_COUNTING), name="b")
            found = []
            async for line in one.logs(follow=True, tail=10):
                found.append(line)
                if len(found) == 2:
                    await asyncio.to_thread(service.stop)
                    await asyncio.to_thread(service.start)
            return found

    assert asyncio.run(followed()) == ["1", "2", "3", "4"]


def test_the_command_line_follows_and_waits_across_a_restart(service: Service, client: Client) -> None:
    """In processes of their own: `run` and `wait` exit with the container's code, `logs -f` with all lines."""
    program = (sys.executable, "-m", "fairlead.cli.main")
    more: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": service.env}
    client.run("demo", ["sh", "-c", "echo 1; sleep 5; echo 2; exit 3"], name="a")
    with (
        subprocess.Popen([*program, "wait", "a"], **more) as waiting,
        subprocess.Popen([*program, "logs", "-f", "a"], **more) as following,
        subprocess.Popen([*program, "run", "--name", "b", "demo", "--", "sh", "-c", "echo 1; sleep 5"], **more) as run,
    ):
        assert following.stdout is not None
        assert following.stdout.readline() == "1\n"
        assert run.stdout is not None
        assert run.stdout.readline() == "1\n"
        service.stop()
        time.sleep(1)  # each has asked in vain by then
        service.start()
        said = [process.communicate(timeout=60) for process in (waiting, following, run)]
    assert [process.returncode for process in (waiting, following, run)] == [3, 0, 0], said
    assert [out for out, _ in said] == ["failed\n", "2\n", ""]
    for _, err in said:
        assert err.count("waiting up to 60 s for it to come back") == 1, err


def test_a_service_that_was_never_there_is_not_waited_for(tmp_path: Path) -> None:
    with Client(str(tmp_path / "api.sock"), retries=0) as client, pytest.raises(errors.Unavailable) as caught:
        client.status()
    assert caught.value.reason == "ServiceUnreachable"


def test_patience_ends(service: Service) -> None:
    with Client(service.env["FAIRLEAD_URL"], retries=0, patience_s=0.1) as client:
        client.status()
        service.stop()
        with pytest.raises(errors.Unavailable) as caught:
            client.status()
    assert caught.value.reason == "ServiceUnreachable"
    service.start()


def test_events_are_followed_on_and_none_comes_twice(service: Service, client: Client) -> None:
    client.run("demo", ["true"], name="a").wait()
    thread, found = _in_thread(lambda: _objects(client, "pod/b"))
    thread.join(0.3)
    service.stop()
    service.start()
    client.run("demo", ["true"], name="b").wait()
    thread.join(60)
    [names] = found
    assert isinstance(names, list)
    assert len(names) == len(set(names))


def _objects(client: Client, last: str) -> list[tuple[object, ...]]:
    """Return the events that come until there is one of an object."""
    names: list[tuple[object, ...]] = []
    for event in client.events(follow=True):
        names.append((event.object, event.reason, event.at, event.message))
        if event.object == last:
            break
    return names


# Marks


def _stamped(*lines: str, at: int = 0) -> list[bytes]:
    return [f"2026-01-31T08:00:{at + index:02}.000000001Z {line}".encode() for index, line in enumerate(lines)]


async def _marked(pieces: list[bytes], last: str = "") -> list[bytes]:
    async def given() -> Any:
        for piece in pieces:
            yield piece

    found = logevents.marked(given(), logevents.read(last), keeps_times=False)
    return [one async for one in found]


async def test_a_mark_stands_only_where_no_line_is_open() -> None:
    one, two, three = _stamped("a\n", "b", "c\n")
    found = await _marked([one, two, ErrorOutput(three), b"more\n"])
    assert [type(piece) for piece in found] == [bytes, Mark, bytes, ErrorOutput, bytes, Mark]
    assert [piece for piece in found if not isinstance(piece, Mark)] == [b"a\n", b"b", b"c\n", b"more\n"]
    assert await _marked([one, two, ErrorOutput(three), b"more\n"], found[1].decode()) == found[2:]
    assert await _marked([one], found[1].decode()) == []


async def test_times_that_come_in_parts_are_taken_off_all_the_same() -> None:
    whole = b"".join(_stamped("a\n", "\n", "long line\n", "end"))
    for size in (1, 3, 7, 40):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        found = [one for one in await _marked(pieces) if not isinstance(one, Mark)]
        assert b"".join(found) == b"a\n\nlong line\nend"


class _Broken:
    """A service whose stream breaks off at every place in turn, and that goes on behind the mark it is sent."""

    patience_s = 60.0

    def __init__(self, frames: list[tuple[int, bytes]]) -> None:
        self.frames, self.breaks = frames, 0

    def stream(self, _method: str, _path: str, *, params: dict[str, Any]) -> Any:
        begin = 0 if params["after"] is None else self.frames.index((4, params["after"].encode())) + 1
        return contextlib.nullcontext(self._pieces(begin))

    def _pieces(self, begin: int) -> Iterator[bytes]:
        self.breaks += 1
        for index in range(begin, len(self.frames)):
            stream, data = self.frames[index]
            if index == self.breaks:
                yield bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data[: len(data) // 2]
                raise errors.Unavailable("it broke off", reason="ServiceBrokeOff")
            yield bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data


def test_wherever_it_breaks_each_byte_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FIRST_WAIT_S", 0.0)
    frames = [(1, b"one\ntwo\n"), (2, b"wrong"), (1, b"three\n"), (2, b"!\n"), (4, b"m1"), (1, b"four\n"), (4, b"m2")]
    service: Any = _Broken(frames)
    found = list(follow.output(service, "/x", {"follow": "true"}))
    for stream in (1, 2):
        wanted = b"".join(data for number, data in frames if number == stream)
        assert b"".join(data for number, data in found if number == stream) == wanted
    assert service.breaks > 5


def test_a_stream_that_breaks_off_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FIRST_WAIT_S", 0.0)
    service: Any = _Broken([(1, b"")] * 100)
    with pytest.raises(errors.Unavailable, match="it broke off"):
        list(follow.output(service, "/x", {"follow": "true"}))

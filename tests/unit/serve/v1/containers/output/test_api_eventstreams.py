"""Server-sent events: lines and events with ids to go on from, heartbeats, and followers that stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fairlead.model.container.output import ErrorOutput
from fairlead.serve.api import eventstream
from fairlead.serve.v1.containers.output import logevents
from fairlead.serve.v1.events import routes
from fairlead.store.port import EVERYTHING, Selector
from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.world import World

ACCEPT = {"accept": "text/event-stream"}
Event = dict[str, Any]


@contextlib.asynccontextmanager
async def followed(door: httpx.AsyncClient, path: str, last: str = "") -> AsyncIterator[AsyncIterator[Event]]:
    headers = ACCEPT | ({"last-event-id": last} if last else {})
    async with asyncio.timeout(20), door.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.aiter_lines())


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    found: Event = {}
    async for line in lines:
        name, _, value = line.partition(": ")
        if line:
            found[name] = json.loads(value) if name == "data" else value
        elif found:
            yield found
            found = {}


async def _run(door: httpx.AsyncClient, *args: str) -> None:
    body = {"image": "demo", "name": "train", "command": list(args)}
    assert (await door.post("/v1/containers", json=body)).is_success


async def test_output_is_followed_to_its_end_and_gone_on_with_behind_any_line(door: httpx.AsyncClient) -> None:
    await _run(door, "echo", "one\ntwo\nthree")
    async with followed(door, "/v1/containers/train/logs") as events:
        found = [one async for one in events]
    texts = [one["data"]["text"] for one in found[:-1]]
    assert texts == ["one", "two", "three"]
    assert found[-1] == {
        "event": "end",
        "id": "end",
        "data": {"reason": "ContainerEnded", "state": "succeeded", "exit_code": 0},
    }
    for number, one in enumerate(found[:-1], 1):
        async with followed(door, "/v1/containers/train/logs", one["id"]) as events:
            assert [more["data"]["text"] async for more in events if "event" not in more] == texts[number:]
    ended = await door.get("/v1/containers/train/logs", headers=ACCEPT | {"last-event-id": "end"})
    assert (ended.status_code, ended.content) == (204, b"")


@pytest.mark.parametrize("path", ["/v1/events", "/v1/containers/train/logs", "/v1/containers/train/events"])
async def test_an_id_of_something_else_is_refused(door: httpx.AsyncClient, path: str) -> None:
    await _run(door, "sleep", "60")
    refused = await door.get(path, headers=ACCEPT | {"last-event-id": "x y"})
    assert (refused.status_code, refused.json()["reason"]) == (400, "LastEventIDInvalid")


@pytest.mark.parametrize("last", ["999999999999.000000000-1", "1.5-1", "-1.000000000-1", "1.000000000-1234567890"])
async def test_an_id_of_a_time_that_nothing_can_write_is_refused(door: httpx.AsyncClient, last: str) -> None:
    await _run(door, "sleep", "60")
    refused = await door.get("/v1/containers/train/logs", headers=ACCEPT | {"last-event-id": last})
    assert (refused.status_code, refused.json()["reason"]) == (400, "LastEventIDInvalid")


async def test_events_go_on_behind_the_last_one_and_none_is_missed(door: httpx.AsyncClient, world: World) -> None:
    await _tell(world, "first")
    async with followed(door, "/v1/events") as events:
        past = [await anext(events) for _ in range(3)]
        current = await anext(events)
    assert "first" in [one["data"]["message"] for one in past]
    assert (current["event"], current["data"]) == ("current", {"events": 3})
    async with followed(door, "/v1/events?tail=1") as events:
        assert [(await anext(events))["data"] for _ in range(2)][1] == {"events": 3}
    await _tell(world, "second")
    await _tell(world, "third")
    async with followed(door, "/v1/events", current["id"]) as events:
        assert (await anext(events))["data"]["message"] == "second"
        third = await anext(events)
        assert third["data"]["message"] == "third"
    async with followed(door, "/v1/events?object=node/other", third["id"]) as events:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.1)


@pytest.mark.parametrize(("accept", "query"), [("text/event-stream", ""), ("*/*", "&follow=true")])
async def test_only_events_of_the_name_are_watched_and_only_those_of_the_kind_are_sent(
    door: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch, accept: str, query: str
) -> None:
    watched, whole = asyncio.Queue[Selector](), world.store.watch

    def noted(kind: Any, selector: Selector = EVERYTHING, *, since: str | None = None) -> AsyncIterator[Any]:
        if kind is core.Event:
            watched.put_nowait(selector)
        return whole(kind, selector, since=since)

    monkeypatch.setattr(world.store, "watch", noted)
    await _tell(world, "before")
    async with asyncio.timeout(20):
        async with door.stream("GET", f"/v1/events?object=pod/train{query}", headers={"accept": accept}) as answer:
            lines = answer.aiter_lines()
            while '"before"' not in await anext(lines):
                pass
            assert (await watched.get()).fields == {"involvedObject.name": "train"}
            await _tell(world, "of another name", name="other")
            await _tell(world, "of another kind", kind="Node")
            await _tell(world, "wanted")
            while '"message":' not in (line := await anext(lines)):
                pass
    assert '"wanted"' in line


class _Ending:
    """A store whose watches end after one change, as an API server's may."""

    def __init__(self, world: World) -> None:
        self._store, self.since = world.store, list[str | None]()

    async def list(self, *args: Any) -> Any:
        return await self._store.list(*args)

    async def watch(self, *args: Any, since: str | None = None) -> AsyncIterator[Any]:
        self.since.append(since)
        async for change in self._store.watch(*args, since=since):
            yield change
            return


async def test_a_watch_that_ends_is_gone_on_with_and_nothing_is_sent_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_AGAIN_S", 0)
    ending: Any = _Ending(world)
    async with asyncio.timeout(20):
        messages = routes._messages(ending, EVERYTHING, lambda _: True, "")
        while (await anext(messages)).event != "current":
            pass
        for name in ("first", "second", "third"):
            await _tell(world, name)
        assert [(await anext(messages)).data.message for _ in range(3)] == ["first", "second", "third"]
    assert len(set(ending.since)) == 3


async def _tell(world: World, message: str, *, kind: str = "Pod", name: str = "train") -> None:
    about = core.ObjectReference(kind=kind, name=name, namespace="default")
    called = message.replace(" ", "-")
    item = core.Event(
        metadata=meta.ObjectMeta(name=called, namespace="default"), involved_object=about, message=message
    )
    await world.store.create(item)


def test_lines_of_one_moment_are_told_apart() -> None:
    reader = logevents._Reader(None)
    stamped = "2026-01-31T09:30:00.25Z"
    ids = [str(one.id) for text in "abc" if (one := reader.message("stdout", f"{stamped} {text}".encode()))]
    assert ids == [f"1769851800.250000000-{number}" for number in (1, 2, 3)]
    again = logevents._Reader(logevents.read(ids[1]))
    left = [again.message("stdout", f"{stamped} {text}".encode()) for text in "abcd"]
    assert [one.data["text"] for one in left if one] == ["c", "d"]


def test_a_clock_that_is_set_back_hides_no_line() -> None:
    again = logevents._Reader(logevents.read("1769851800.250000000-1"))
    lines = (b"2026-01-31T09:30:00.25Z old", b"2026-01-31T08:00:00Z new", b"2026-01-31T09:30:00.25Z newer")
    assert [one.data["text"] for line in lines if (one := again.message("stdout", line))] == ["new", "newer"]


def test_streams_are_kept_apart_within_a_line_and_the_last_line_needs_no_end() -> None:
    lines = logevents._Lines()
    assert lines.feed(b"T a") == []
    assert lines.feed(ErrorOutput(b"T e\n")) == [("stderr", b"T e")]
    assert lines.feed(b"b\nT c") == [("stdout", b"T ab")]
    assert lines.end() == [("stdout", b"T c")]


async def _sent(messages: AsyncIterator[eventstream.Message], send: Any, hang_up: Any = None) -> None:
    queue = asyncio.Queue[eventstream.Message | None](2)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(eventstream._fill(queue, messages))
        tasks.create_task(eventstream._drain(queue, send, hang_up))


async def test_a_follower_that_stops_reading_is_told_why_it_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventstream, "STALL_S", 0.05)
    closed, reads, sent = asyncio.Event(), asyncio.Event(), list[bytes]()

    async def endless() -> AsyncIterator[eventstream.Message]:
        try:
            while True:
                yield eventstream.Message(data="x")
        finally:
            closed.set()

    async def send(message: Any) -> None:
        await reads.wait()
        sent.append(message["body"])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_sent(endless(), send))
        await asyncio.wait_for(closed.wait(), 5)  # what was followed is let go while the follower still stalls
        reads.set()
    assert b"FollowerTooSlow" in b"".join(sent)
    assert len(sent) < 6


async def test_a_follower_that_never_comes_back_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventstream, "STALL_S", 0.02)
    monkeypatch.setattr(eventstream, "HANG_UP_S", 0.05)
    hung = asyncio.Event()

    async def endless() -> AsyncIterator[eventstream.Message]:
        while True:
            yield eventstream.Message(data="x")

    async def send(_message: Any) -> None:
        await asyncio.Event().wait()

    await _sent(endless(), send, hung.set)
    assert hung.is_set()


async def test_silence_is_broken_by_heartbeats(monkeypatch: pytest.MonkeyPatch, door: httpx.AsyncClient) -> None:
    monkeypatch.setattr(eventstream, "HEARTBEAT_S", 0.02)
    async with asyncio.timeout(10), door.stream("GET", "/v1/events", headers=ACCEPT) as answer:
        lines = answer.aiter_lines()
        while await anext(lines) != ": heartbeat":
            pass

"""Watches of an API server that cuts, ends, forgets and restarts: nothing is missed or doubled, and no loop is hot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.store import port
from fairlead.store.kubernetes import store as kubernetes
from fairlead.store.kubernetes import watch
from fairlead.wire.kubernetes import core
from tests.unit.store import virtualtime
from tests.unit.store.kubernetes import scriptedserver as scripted

TEAM = port.Selector(namespace="team")
EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"}
BROKEN = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd is away"}
HANG = scripted.stream(then="hang")


def store_of(server: scripted.Server) -> kubernetes.KubernetesStore:
    return kubernetes.KubernetesStore(scripted.access(server), chance=lambda: 1.0)


def asked_to_watch(server: scripted.Server) -> list[scripted.Call]:
    return [call for call in server.calls if "watch" in call.query]


def bookmark(version: int) -> dict[str, object]:
    nothing = {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}, "spec": {"containers": None}}
    return {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", **nothing}}


async def seen(
    server: scripted.Server, count: int, *, since: str | None = "1", selector: port.Selector = TEAM
) -> list[tuple[str, str]]:
    """Return kind and version of the next changes."""
    found: list[tuple[str, str]] = []
    async with store_of(server) as store, asyncio.timeout(3600):
        stream = store.watch(core.Pod, selector, since=since)
        async for change in stream:
            found.append((change.kind.value, change.object.metadata.resource_version))
            if len(found) == count:
                break
        await stream.aclose()  # type: ignore[attr-defined]  # every watch is an async generator
    return found


@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_whole_however_they_arrive(wanted: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in wanted) + b"cut off"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))

    async def chunks() -> AsyncIterator[bytes]:
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            yield whole[start:end]

    async def scenario() -> list[bytes]:
        return [line async for line in watch.lines(chunks())]

    assert asyncio.run(scenario()) == [line for line in wanted if line]


@pytest.mark.parametrize("then", ["end", "cut"])
def test_a_stream_cut_within_an_event_goes_on_after_the_last_whole_one(then: str) -> None:
    async def scenario() -> None:
        async with scripted.serving(
            scripted.stream(scripted.event("ADDED", "a", 2), b'{"type":"MODIFIED","obj', then=then),
            scripted.page(3),
            scripted.stream(scripted.event("MODIFIED", "a", 3), scripted.event("DELETED", "a", 4), then="hang"),
        ) as server:
            assert await seen(server, 3) == [("ADDED", "2"), ("MODIFIED", "3"), ("DELETED", "4")]
            assert [call.query["resourceVersion"] for call in asked_to_watch(server)] == ["1", "2"]

    virtualtime.run(scenario())


def test_a_bookmark_moves_the_beginning_of_the_next_connection() -> None:
    async def scenario() -> None:
        async with scripted.serving(
            scripted.stream(bookmark(70)),
            scripted.page(70),
            scripted.stream(scripted.event("ADDED", "a", 71), then="hang"),
        ) as server:
            assert await seen(server, 1) == [("ADDED", "71")]
            assert [call.query["resourceVersion"] for call in asked_to_watch(server)] == ["1", "70"]
            assert all(call.query["allowWatchBookmarks"] == "true" for call in asked_to_watch(server))

    virtualtime.run(scenario())


@pytest.mark.parametrize(
    "answer", [scripted.refuse(410, "Expired"), scripted.stream({"type": "ERROR", "object": EXPIRED}, then="hang")]
)
def test_dropped_history_is_gone(answer: scripted.Answer) -> None:
    async def scenario() -> None:
        async with scripted.serving(answer) as server:
            with pytest.raises(errors.Gone):
                await seen(server, 1)
            assert len(server.calls) == 1

    virtualtime.run(scenario())


def test_an_error_in_the_stream_that_may_pass_is_healed() -> None:
    async def scenario() -> None:
        async with scripted.serving(
            scripted.stream(scripted.event("ADDED", "a", 2), {"type": "ERROR", "object": BROKEN}, then="hang"),
            scripted.page(2),
            scripted.stream(scripted.event("ADDED", "b", 3), then="hang"),
        ) as server:
            assert await seen(server, 2) == [("ADDED", "2"), ("ADDED", "3")]

    virtualtime.run(scenario())


def test_a_server_that_ends_every_watch_at_once_meets_no_hot_loop() -> None:
    async def scenario() -> None:
        answers = [scripted.stream(), *([scripted.page(1), scripted.stream()] * 400)]
        async with scripted.serving(*answers) as server:
            with pytest.raises(TimeoutError):
                await seen(server, 1)
            assert 60 <= len(asked_to_watch(server)) <= 130

    virtualtime.run(scenario())


def test_a_storm_of_failures_after_a_cut_meets_no_hot_loop_and_ends_well() -> None:
    async def scenario() -> None:
        storm = [scripted.refuse(code, "No") for code in (500, 503, 429, 403, 404, 500, 504, 502)]
        async with scripted.serving(
            scripted.stream(scripted.event("ADDED", "a", 2), then="cut"),
            *storm,
            scripted.page(2),
            scripted.stream(scripted.event("ADDED", "b", 3), then="hang"),
        ) as server:
            begun = virtualtime.now()
            assert await seen(server, 2) == [("ADDED", "2"), ("ADDED", "3")]
            assert 1 < virtualtime.now() - begun < 120

    virtualtime.run(scenario())


def test_events_that_keep_coming_between_cuts_do_not_slow_the_watch_down() -> None:
    async def scenario() -> None:
        answers = [scripted.stream(scripted.event("ADDED", "a", 2), then="cut")]
        for version in range(3, 13):
            answers += [scripted.page(version), scripted.stream(scripted.event("MODIFIED", "a", version), then="cut")]
        async with scripted.serving(*answers) as server:
            begun = virtualtime.now()
            assert len(await seen(server, 11)) == 11
            assert 1 < virtualtime.now() - begun < 10

    virtualtime.run(scenario())


def test_a_server_that_is_down_for_a_minute_is_waited_for() -> None:
    async def scenario() -> None:
        async with (
            scripted.serving(
                scripted.stream(scripted.event("ADDED", "a", 2), then="hang"),
                scripted.page(3),
                scripted.stream(scripted.event("MODIFIED", "a", 3), then="hang"),
            ) as server,
            asyncio.TaskGroup() as tasks,
        ):
            watching = tasks.create_task(seen(server, 2))
            await asyncio.sleep(5)
            await server.stop()
            await asyncio.sleep(60)
            assert not watching.done()
            await server.start()
            assert await watching == [("ADDED", "2"), ("MODIFIED", "3")]

    virtualtime.run(scenario())


def test_a_server_restored_from_older_data_is_noticed() -> None:
    async def scenario() -> None:
        async with scripted.serving(
            scripted.stream(scripted.event("ADDED", "a", 200), then="cut"), scripted.page(150), HANG
        ) as server:
            with pytest.raises(errors.Gone) as gone:
                await seen(server, 2)
            assert gone.value.reason == "HistoryReplaced"

    virtualtime.run(scenario())


@pytest.mark.parametrize(
    ("code", "kind"), [(403, errors.Denied), (404, errors.NotFound), (500, errors.Unavailable), (400, errors.Invalid)]
)
def test_a_watch_that_never_held_says_why(code: int, kind: type[errors.FairleadError]) -> None:
    async def scenario() -> None:
        async with scripted.serving(scripted.refuse(code, "No")) as server:
            with pytest.raises(kind):
                await seen(server, 1)

    virtualtime.run(scenario())


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b'{"type":"ADDED","object":{"metadata":{"name":7}}}\n', b'{"type":"WHAT","object":{}}\n']
)
def test_what_cannot_be_read_is_the_writers_error(line: bytes) -> None:
    async def scenario() -> None:
        async with scripted.serving(scripted.stream(line, then="hang")) as server:
            with pytest.raises(errors.ProtocolError):
                await seen(server, 1)

    virtualtime.run(scenario())


@pytest.mark.parametrize("since", ["", "0", "abc", "-1"])
def test_versions_no_server_gives_are_gone(since: str) -> None:
    async def scenario() -> None:
        async with scripted.serving(HANG) as server:
            with pytest.raises(errors.Gone):
                await seen(server, 1, since=since)
            assert not server.calls

    virtualtime.run(scenario())


def test_a_watch_from_nowhere_lists_in_pages_and_goes_on_from_the_list() -> None:
    async def scenario() -> None:
        async with scripted.serving(
            scripted.page(8, scripted.pod("a", 2), following="more"),
            scripted.page(8, scripted.pod("b", 5)),
            scripted.stream(scripted.event("DELETED", "a", 9), then="hang"),
        ) as server:
            selector = port.Selector(namespace="team", labels={"app": "x"}, fields={"spec.nodeName": "n,1"})
            found = await seen(server, 3, since=None, selector=selector)
            assert found == [("ADDED", "2"), ("ADDED", "5"), ("DELETED", "9")]
            assert [call.query.get("continue") for call in server.calls] == [None, "more", None]
            assert server.calls[2].query["resourceVersion"] == "8"
            assert {call.query["labelSelector"] for call in server.calls} == {"app=x"}
            assert {call.query["fieldSelector"] for call in server.calls} == {"spec.nodeName=n\\,1"}

    virtualtime.run(scenario())


def test_a_reader_that_leaves_hangs_up() -> None:
    async def scenario() -> None:
        async with (
            scripted.serving(scripted.stream(scripted.event("ADDED", "a", 2), then="hang")) as server,
            store_of(server) as store,
        ):
            stream = store.watch(core.Pod, TEAM, since="1")
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]  # every watch is an async generator
            async with asyncio.timeout(60):
                await server.left.wait()

    virtualtime.run(scenario())


def test_a_reader_that_is_cancelled_hangs_up() -> None:
    async def scenario() -> None:
        async with scripted.serving(HANG) as server, store_of(server) as store, asyncio.TaskGroup() as tasks:

            async def follow() -> None:
                async for _ in store.watch(core.Pod, TEAM, since="1"):
                    pass

            reader = tasks.create_task(follow())
            await asyncio.sleep(1)
            reader.cancel()
            async with asyncio.timeout(60):
                await server.left.wait()

    virtualtime.run(scenario())

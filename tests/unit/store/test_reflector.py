"""Following objects: the list, then every change, and the list again after whatever ends the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from structlog.testing import capture_logs

from fairlead import errors
from fairlead.store import port, reflector
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta
from tests.unit.store import virtualtime

AWAY = errors.Unavailable("connection refused", reason="Refused")


class Moody:
    """A store that refuses while it is told to."""

    def __init__(self) -> None:
        self.inner = memory.MemoryStore()
        self.lists = self.watches = 0
        self.refuses: errors.FairleadError | None = None
        self.cuts: errors.FairleadError | None = None
        """What every watch ends with at once."""

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def list(self, kind: type[core.Node], selector: port.Selector) -> port.Listing[core.Node]:
        self.lists += 1
        if self.refuses is not None:
            raise self.refuses
        return await self.inner.list(kind, selector)

    async def watch(
        self, kind: type[core.Node], selector: port.Selector, *, since: str
    ) -> AsyncIterator[port.Change[core.Node]]:
        self.watches += 1
        if self.cuts is not None:
            raise self.cuts
        async for change in self.inner.watch(kind, selector, since=since):
            yield change


def node(name: str) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name))


@contextlib.asynccontextmanager
async def following(store: Moody, *, is_optional: bool = False) -> AsyncIterator[asyncio.Queue[str]]:
    told: asyncio.Queue[str] = asyncio.Queue()

    def listed(items: tuple[core.Node, ...]) -> None:
        told.put_nowait(f"listed {','.join(item.metadata.name for item in items)}")

    def changed(change: port.Change[core.Node]) -> None:
        told.put_nowait(f"{change.kind.value} {change.object.metadata.name}")

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            reflector.follow(
                store,  # type: ignore[arg-type]  # delegates the rest
                core.Node,
                port.EVERYTHING,
                listed=listed,
                changed=changed,
                is_optional=is_optional,
                chance=lambda: 1.0,
            )
        )
        yield told
        task.cancel()


def test_the_list_comes_first_then_every_change() -> None:
    async def scenario() -> None:
        store = Moody()
        await store.inner.create(node("a"))
        async with following(store) as told:
            assert await told.get() == "listed a"
            await store.inner.create(node("b"))
            await store.inner.delete(core.Node, "a")
            assert [await told.get(), await told.get()] == ["ADDED b", "DELETED a"]

    virtualtime.run(scenario(), moment_s=0)


def test_what_was_seen_of_an_optional_kind_stays_while_it_may_not_be_read() -> None:
    async def scenario() -> None:
        store = Moody()
        await store.inner.create(node("a"))
        store.refuses = errors.Denied("not yet", reason="Forbidden")
        async with following(store, is_optional=True) as told:
            assert await told.get() == "listed "  # nothing waits for a kind that may never be read
            store.refuses, store.cuts = None, errors.Denied("for a moment", reason="Forbidden")
            assert await told.get() == "listed a"
            store.refuses = store.cuts
            await asyncio.sleep(600)
            assert told.empty()
            store.refuses = store.cuts = None
            await store.inner.create(node("b"))
            assert await told.get() == "listed a,b"

    virtualtime.run(scenario(), moment_s=0)


def test_a_denial_of_a_moment_is_no_empty_list_and_one_that_lasts_is() -> None:
    async def scenario() -> None:
        store = Moody()
        await store.inner.create(node("a"))
        store.refuses = errors.Denied("not yet", reason="Forbidden")
        async with following(store, is_optional=True) as told:
            await asyncio.sleep(2)
            assert told.empty()
            store.refuses = None
            assert await told.get() == "listed a"
        store.refuses = errors.Denied("never", reason="Forbidden")
        async with following(store, is_optional=True) as told:
            async with asyncio.timeout(30):
                assert await told.get() == "listed "

    virtualtime.run(scenario(), moment_s=0)


def test_that_an_optional_kind_is_not_served_is_logged_once() -> None:
    async def scenario() -> None:
        store = Moody()
        store.refuses = errors.NotFound("no such kind", reason="NotFound")
        async with following(store, is_optional=True) as told:
            assert [await told.get() for _ in range(3)] == ["listed "] * 3

    with capture_logs() as logs:
        virtualtime.run(scenario(), moment_s=0)
    assert [(line["event"], line["role"]) for line in logs] == [("objects not served, none are there", "Node")]


def test_an_empty_list_is_told_too() -> None:
    async def scenario() -> None:
        async with following(Moody()) as told:
            assert await told.get() == "listed "

    virtualtime.run(scenario(), moment_s=0)


def test_a_store_that_is_away_for_minutes_is_asked_again_and_again_but_not_often() -> None:
    async def scenario() -> None:
        store = Moody()
        store.refuses = AWAY
        with capture_logs() as logs:
            async with following(store) as told:
                await asyncio.sleep(300)
                assert 8 < store.lists < 20
                store.refuses = None
                assert await told.get() == "listed "
        assert [entry["reason"] for entry in logs] == ["Refused"]

    virtualtime.run(scenario(), moment_s=0)


def test_a_stream_that_ends_at_once_each_time_makes_no_hot_loop() -> None:
    async def scenario() -> None:
        store = Moody()
        store.cuts = errors.Gone("compacted", reason="HistoryCompacted")
        async with following(store):
            await asyncio.sleep(300)
        assert store.lists < 20

    virtualtime.run(scenario(), moment_s=0)


def test_after_a_stream_that_cannot_go_on_the_list_is_told_anew() -> None:
    async def scenario() -> None:
        store = Moody()
        store.cuts = errors.Gone("compacted", reason="HistoryCompacted")
        async with following(store) as told:
            assert await told.get() == "listed "
            await store.inner.create(node("a"))
            store.cuts = None
            assert await told.get() == "listed a"
            await store.inner.create(node("b"))
            assert await told.get() == "ADDED b"

    virtualtime.run(scenario(), moment_s=0)

"""The controller manager: watches that begin again, caches that forget, and bugs that are not hidden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.control import manager
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING, Change, Listing, Selector, T
from fairlead.wire.kubernetes import core, meta
from tests.unit.store import virtualtime


class _Controller:
    """Follows nodes and says which keys it was asked to reconcile."""

    name = "test"

    def __init__(self, *, breaks_with: Exception | None = None) -> None:
        self.seen: asyncio.Queue[str] = asyncio.Queue()
        self.resets = 0
        self._breaks_with = breaks_with

    def watches(self) -> tuple[manager.Watch, ...]:
        selector = Selector(labels={"watched": "yes"})
        return (manager.Watch(kind=core.Node, keys=self._keys, selector=selector, reset=self._reset),)

    def _keys(self, change: Change[core.Node]) -> Iterable[str]:
        return (f"{change.kind.value} {change.object.metadata.name}",)

    def _reset(self) -> None:
        self.resets += 1

    async def reconcile(self, key: str) -> float | None:
        self.seen.put_nowait(key)
        if self._breaks_with is not None:
            raise self._breaks_with
        return None

    async def next(self) -> str:
        async with asyncio.timeout(50):
            return await self.seen.get()


class _Flaky(MemoryStore):
    """A store whose first watches break, as after a compaction or a lost connection, with something done meanwhile."""

    def __init__(self, *breaks: errors.FairleadError) -> None:
        super().__init__()
        self._breaks = list(breaks)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        if self._breaks:
            if self.meanwhile is not None:
                await self.meanwhile()
            raise self._breaks.pop(0)
        async for change in super().watch(kind, selector, since=since):
            yield change


def _node(name: str, **labels: str) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name, labels=labels))


async def test_what_is_there_and_what_comes_is_reconciled_and_the_rest_is_not() -> None:
    store, controller = MemoryStore(), _Controller()
    await store.create(_node("first", watched="yes"))
    await store.create(_node("hidden", watched="no"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, (controller,)))
        assert await controller.next() == "ADDED first"
        await store.create(_node("second", watched="yes"))
        assert await controller.next() == "ADDED second"
        await store.delete(core.Node, "first")
        assert await controller.next() == "DELETED first"
        task.cancel()
    assert controller.seen.empty()


async def test_a_broken_watch_lists_again_with_a_cache_that_forgot() -> None:
    gone, away = errors.Gone("compacted", reason="Expired"), errors.Unavailable("away", reason="Away")
    store, controller = _Flaky(gone, away), _Controller()
    await store.create(_node("first", watched="yes"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, (controller,)))
        assert [await controller.next() for _ in range(3)] == ["ADDED first"] * 3
        task.cancel()
    assert controller.resets == 3


async def test_what_went_while_nobody_watched_is_told_before_what_came_under_its_name() -> None:
    store, controller = _Flaky(errors.Gone("compacted", reason="Expired")), _Controller()
    await store.create(_node("first", watched="yes"))
    await store.create(_node("second", watched="yes"))

    async def replace() -> None:
        for name in ("first", "second"):
            await store.delete(core.Node, name)
        await store.create(_node("first", watched="yes"))

    store.meanwhile = replace
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, (controller,)))
        told = [await controller.next() for _ in range(5)]
        task.cancel()
    assert sorted(told[:2]) == ["ADDED first", "ADDED second"]
    assert told[2:] == ["DELETED first", "DELETED second", "ADDED first"]


class _Slow(MemoryStore):
    """A store that lists pods only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = asyncio.Event()
        self.asked = asyncio.Event()

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        if kind is core.Pod:
            self.asked.set()
            await self.may_list.wait()
        return await super().list(kind, selector)


async def test_nothing_is_reconciled_before_every_kind_was_listed() -> None:
    class Both(_Controller):
        def watches(self) -> tuple[manager.Watch, ...]:
            return (*super().watches(), manager.Watch(kind=core.Pod, keys=lambda _: ()))

    store, controller, other = _Slow(), Both(), _Controller()
    await store.create(_node("first", watched="yes"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, (controller, other)))
        await store.asked.wait()
        await other.next()  # has its kinds and goes on
        assert controller.seen.empty()
        store.may_list.set()
        assert await controller.next() == "ADDED first"
        task.cancel()


def test_a_kind_that_may_not_be_there_is_waited_for_so_long_and_no_longer() -> None:
    class Both(_Controller):
        def watches(self) -> tuple[manager.Watch, ...]:
            return (*super().watches(), manager.Watch(kind=core.Pod, keys=lambda _: (), is_optional=True))

    async def scenario() -> float:
        store, controller = _Slow(), Both()
        await store.create(_node("first", watched="yes"))
        async with asyncio.TaskGroup() as tasks:
            begun = virtualtime.now()
            task = tasks.create_task(manager.run_controllers(store, (controller,)))
            async with asyncio.timeout(600):
                await controller.seen.get()
            task.cancel()
        return virtualtime.now() - begun

    with capture_logs() as logs:
        took_s = virtualtime.run(scenario(), moment_s=0)
    assert manager.LISTED_S <= took_s < manager.LISTED_S + 1
    assert [(line["event"], line["role"]) for line in logs] == [("decides without objects", "Pod")]


async def test_several_controllers_each_see_everything() -> None:
    store, controllers = MemoryStore(), (_Controller(), _Controller())
    await store.create(_node("first", watched="yes"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, controllers))
        assert [await controller.next() for controller in controllers] == ["ADDED first"] * 2
        task.cancel()


async def test_a_reconcile_that_fails_with_an_error_of_the_house_is_tried_again() -> None:
    store, controller = MemoryStore(), _Controller(breaks_with=errors.Unavailable("away", reason="Away"))
    await store.create(_node("first", watched="yes"))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.run_controllers(store, (controller,)))
        assert [await controller.next(), await controller.next()] == ["ADDED first"] * 2
        task.cancel()


async def test_a_bug_in_any_controller_ends_them_all() -> None:
    store, good, bad = MemoryStore(), _Controller(), _Controller(breaks_with=KeyError("bug"))
    await store.create(_node("first", watched="yes"))
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(50):
            await manager.run_controllers(store, (good, bad))
    assert caught.group_contains(KeyError)

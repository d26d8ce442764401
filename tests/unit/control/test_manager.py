"""The controller manager: watches that begin again, caches that forget, and bugs that are not hidden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from fairlead import errors
from fairlead.control import manager
from fairlead.store.memory import MemoryStore
from fairlead.store.port import EVERYTHING, Change, Selector, T
from fairlead.wire.kubernetes import core, meta


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
        async with asyncio.timeout(5):
            return await self.seen.get()


class _Flaky(MemoryStore):
    """A store whose first watches break, as after a compaction or a lost connection."""

    def __init__(self, *breaks: errors.FairleadError) -> None:
        super().__init__()
        self._breaks = list(breaks)

    async def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        async for change in super().watch(kind, selector, since=since):
            yield change
            if self._breaks:
                raise self._breaks.pop(0)


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
        async with asyncio.timeout(5):
            await manager.run_controllers(store, (good, bad))
    assert caught.group_contains(KeyError)

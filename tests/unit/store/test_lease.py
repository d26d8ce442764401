"""Elections in virtual time over the memory store: one leader, a successor in time, never two at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import errors
from fairlead.store import lease, port
from fairlead.store.embedded import memory
from fairlead.store.fence import Fence
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import coordination, meta
from tests.unit.store import virtualtime

T = TypeVar("T", bound=meta.Object)

TERMS = lease.Terms(lease_s=15, renew_within_s=10, retry_s=2)


class Fragile:
    """A store that is away at times; `reaches` says whether a failing write happens all the same."""

    def __init__(self, inner: port.Fencible) -> None:
        self.inner = inner
        self.is_away = False
        self.reaches = False

    def fenced(self, fence: Fence) -> port.Store:
        return self.inner.fenced(fence)

    async def _fail(self) -> None:
        if self.is_away:
            await asyncio.sleep(0.5)
            raise errors.Unavailable("store is away", reason="Test")

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        await self._fail()
        return await self.inner.get(kind, name, namespace)

    async def create(self, item: T) -> T:
        made = await self.inner.create(item) if self.reaches or not self.is_away else item
        await self._fail()
        return made

    async def update(self, item: T) -> T:
        made = await self.inner.update(item) if self.reaches or not self.is_away else item
        await self._fail()
        return made

    async def list(self, kind: type[T], selector: port.Selector = port.EVERYTHING) -> port.Listing[T]:
        return await self.inner.list(kind, selector)

    def watch(
        self, kind: type[T], selector: port.Selector = port.EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[port.Change[T]]:
        return self.inner.watch(kind, selector, since=since)

    async def update_status(self, item: T) -> T:
        return await self.inner.update_status(item)

    async def apply(self, item: T, *, manager: str) -> T:
        return await self.inner.apply(item, manager=manager)

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, grace_s: int | None = None, uid: str | None = None
    ) -> None:
        await self.inner.delete(kind, name, namespace, grace_s=grace_s, uid=uid)


class Stage:
    """Candidates and who of them works."""

    def __init__(self) -> None:
        self.store = memory.MemoryStore()
        self.working: set[str] = set()
        self.tokens: list[int] = []
        self.history: list[tuple[float, str]] = []

    def candidate(self, identity: str, store: port.Fencible | None = None) -> lease.Election:
        return lease.Election(
            store or self.store,
            name="control",
            namespace="system",
            identity=identity,
            terms=TERMS,
            chance=random.Random(identity).random,
            awake_clock=virtualtime.now,
        )

    async def stand(self, identity: str, store: port.Fencible | None = None) -> None:
        """Be a candidate until cancelled or beaten."""

        async def work(leading: lease.Leadership) -> None:
            token = leading.token
            assert not self.working
            assert not self.tokens or token > self.tokens[-1]
            self.working.add(identity)
            self.tokens.append(token)
            self.history.append((virtualtime.now(), identity))
            try:
                await asyncio.Event().wait()
            finally:
                self.working.discard(identity)

        await self.candidate(identity, store).run(work)

    async def record(self) -> coordination.Lease:
        return await self.store.get(coordination.Lease, "control", "system")


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def test_one_of_several_leads_and_keeps_leading() -> None:
    async def scenario() -> None:
        stage = Stage()
        tasks = [asyncio.get_running_loop().create_task(stage.stand(name)) for name in "abc"]
        await asyncio.sleep(300)
        assert len(stage.history) == 1
        assert (await stage.record()).spec.holder_identity == stage.history[0][1]
        for task in tasks:
            await cancel(task)

    virtualtime.run(scenario(), moment_s=0)


def test_a_leader_that_ends_in_order_is_followed_at_once() -> None:
    async def scenario() -> None:
        stage = Stage()
        first = asyncio.get_running_loop().create_task(stage.stand("a"))
        await asyncio.sleep(1)
        second = asyncio.get_running_loop().create_task(stage.stand("b"))
        await asyncio.sleep(30)
        ended = virtualtime.now()
        await cancel(first)
        await asyncio.sleep(5)
        assert [name for _, name in stage.history] == ["a", "b"]
        assert stage.history[1][0] - ended <= TERMS.retry_s * 1.2 + 0.1
        await cancel(second)

    virtualtime.run(scenario(), moment_s=0)


def test_a_leader_that_vanishes_is_followed_after_its_time() -> None:
    async def scenario() -> None:
        stage = Stage()
        gone = Fragile(stage.store)
        first = asyncio.get_running_loop().create_task(stage.stand("a", gone))
        await asyncio.sleep(1)
        second = asyncio.get_running_loop().create_task(stage.stand("b"))
        await asyncio.sleep(30)
        gone.is_away = True
        vanished = virtualtime.now()
        await asyncio.sleep(30)
        assert [name for _, name in stage.history] == ["a", "b"]
        assert 13 <= stage.history[1][0] - vanished <= 20
        assert first.done()
        with pytest.raises(errors.Conflict) as lost:
            await first
        assert lost.value.reason == "LeaseLost"
        await cancel(second)

    virtualtime.run(scenario(), moment_s=0)


def test_a_short_outage_is_survived() -> None:
    async def scenario() -> None:
        stage = Stage()
        fragile = Fragile(stage.store)
        leader = asyncio.get_running_loop().create_task(stage.stand("a", fragile))
        await asyncio.sleep(10)
        fragile.is_away = True
        await asyncio.sleep(6)
        fragile.is_away = False
        await asyncio.sleep(60)
        assert stage.working == {"a"}
        assert len(stage.history) == 1
        await cancel(leader)

    virtualtime.run(scenario(), moment_s=0)


def test_a_renewal_whose_answer_was_lost_is_still_ours() -> None:
    async def scenario() -> None:
        stage = Stage()
        fragile = Fragile(stage.store)
        leader = asyncio.get_running_loop().create_task(stage.stand("a", fragile))
        await asyncio.sleep(10)
        fragile.is_away = fragile.reaches = True
        await asyncio.sleep(3)
        fragile.is_away = False
        await asyncio.sleep(60)
        assert stage.working == {"a"}
        await cancel(leader)

    virtualtime.run(scenario(), moment_s=0)


def test_a_leader_that_ends_while_it_renews_lets_go_all_the_same() -> None:
    async def scenario() -> None:
        stage = Stage()
        slow = Fragile(stage.store)
        leader = asyncio.get_running_loop().create_task(stage.stand("a", slow))
        await asyncio.sleep(TERMS.retry_s / 2)
        slow.is_away = slow.reaches = True  # the renewal is written, and its answer comes too late
        await asyncio.sleep(TERMS.retry_s / 2 + 0.1)
        slow.is_away = False
        await cancel(leader)
        assert (await stage.record()).spec.holder_identity == ""

    virtualtime.run(scenario(), moment_s=0)


def test_a_leader_that_ends_takes_nothing_from_its_successor() -> None:
    async def scenario() -> None:
        stage = Stage()
        leader = asyncio.get_running_loop().create_task(stage.stand("a"))
        await asyncio.sleep(1)
        held = await stage.record()
        taken = msgspec.structs.replace(
            held.spec, holder_identity="b", lease_transitions=held.spec.lease_transitions + 1
        )
        await stage.store.update(msgspec.structs.replace(held, spec=taken))
        await cancel(leader)
        assert (await stage.record()).spec.holder_identity == "b"

    virtualtime.run(scenario(), moment_s=0)


def test_a_lease_taken_away_by_hand_ends_the_work_at_the_next_renewal() -> None:
    async def scenario() -> None:
        stage = Stage()
        leader = asyncio.get_running_loop().create_task(stage.stand("a"))
        await asyncio.sleep(5)
        await stage.store.delete(coordination.Lease, "control", "system")
        await asyncio.sleep(3)
        assert not stage.working
        with pytest.raises(errors.Conflict, match="control"):
            await leader

    virtualtime.run(scenario(), moment_s=0)


def test_a_lease_that_was_removed_is_made_anew_only_after_its_time() -> None:
    """Who uninstalls removes it shortly before the candidates: they must not leave one behind."""

    async def scenario() -> None:
        stage = Stage()
        first = asyncio.get_running_loop().create_task(stage.stand("a"))
        await asyncio.sleep(1)
        second = asyncio.get_running_loop().create_task(stage.stand("b"))
        await asyncio.sleep(5)
        await stage.store.delete(coordination.Lease, "control", "system")
        removed = virtualtime.now()
        await asyncio.sleep(TERMS.lease_s - 1)
        assert (await stage.store.list(coordination.Lease)).items == ()
        await asyncio.sleep(10)
        assert [name for _, name in stage.history] == ["a", "b"]
        assert stage.history[1][0] - removed >= TERMS.lease_s
        assert stage.tokens[1] > stage.tokens[0]
        for task in (first, second):
            await cancel(task)

    virtualtime.run(scenario(), moment_s=0)


def test_work_that_ends_lets_go() -> None:
    async def scenario() -> None:
        stage = Stage()

        async def work(_: lease.Leadership) -> None:
            await asyncio.sleep(5)

        await stage.candidate("a").run(work)
        assert (await stage.record()).spec.holder_identity == ""

    virtualtime.run(scenario(), moment_s=0)


def test_work_that_fails_lets_go_and_says_so() -> None:
    async def scenario() -> None:
        stage = Stage()

        async def work(_: lease.Leadership) -> None:
            await asyncio.sleep(5)
            raise errors.Invalid("bad", reason="Bad")

        with pytest.raises(ExceptionGroup) as failed:
            await stage.candidate("a").run(work)
        assert failed.group_contains(errors.Invalid)
        assert (await stage.record()).spec.holder_identity == ""

    virtualtime.run(scenario(), moment_s=0)


def is_beaten(task: asyncio.Task[None]) -> bool:
    """Tell whether a candidate ended as candidates may."""
    return task.cancelled() or isinstance(task.exception(), errors.Conflict)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["away", "reaches", "back", "kill"]), st.floats(0, 25)),
        max_size=12,
    )
)
def test_no_two_lead_at_once_whatever_fails(steps: list[tuple[str, str, float]]) -> None:
    async def scenario() -> None:
        stage = Stage()
        stores = {name: Fragile(stage.store) for name in "abc"}
        loop = asyncio.get_running_loop()
        tasks = {name: loop.create_task(stage.stand(name, stores[name])) for name in "abc"}
        for number, (name, act, pause_s) in enumerate(steps):
            stores[name].is_away = act in {"away", "reaches"}
            stores[name].reaches = act == "reaches"
            if act == "kill":
                await cancel(tasks[name])
            if tasks[name].done():
                assert is_beaten(tasks[name])
                stores[name].is_away = False
                tasks[name] = loop.create_task(stage.stand(f"{name}{number}", stores[name]))
            await asyncio.sleep(pause_s)
        for fragile in stores.values():
            fragile.is_away = False
        tasks["z"] = loop.create_task(stage.stand("z"))
        await asyncio.sleep(60)
        assert len(stage.working) == 1
        for task in tasks.values():
            await cancel(task)
        assert all(is_beaten(task) for task in tasks.values())

    virtualtime.run(scenario(), moment_s=0)


@pytest.mark.parametrize("beside", [False, True])
async def test_work_that_holds_the_event_loop_up_loses_no_lease_that_a_thread_renews(
    tmp_path: Path, *, beside: bool
) -> None:
    @contextlib.asynccontextmanager
    async def again() -> AsyncIterator[port.Store]:
        with sqlite.SQLiteStore(tmp_path / "state.db") as own:
            yield own

    async def work(leading: lease.Leadership) -> None:
        until = time.monotonic() + 1.2
        while time.monotonic() < until:  # no await: nothing else of this event loop runs
            pass
        await asyncio.sleep(0.2)
        leading.fence.check_clock()

    terms = lease.Terms(lease_s=2, renew_within_s=0.9, retry_s=0.05)
    with sqlite.SQLiteStore(tmp_path / "state.db") as store:
        election = lease.Election(
            store, name="x", namespace="y", identity="a", terms=terms, beside=again if beside else None
        )
        if beside:
            await election.run(work)
            assert (await store.get(coordination.Lease, "x", "y")).spec.holder_identity == ""
        else:
            with pytest.raises(errors.Conflict, match="lost"):
                await election.run(work)


async def test_a_process_that_hangs_loses_its_lease_although_a_thread_could_renew_it(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def again() -> AsyncIterator[port.Store]:
        with sqlite.SQLiteStore(tmp_path / "state.db") as own:
            yield own

    async def work(_leading: lease.Leadership) -> None:
        await asyncio.sleep(0.1)
        time.sleep(0.6)  # noqa: ASYNC251 it hangs
        await asyncio.sleep(60)

    terms = lease.Terms(lease_s=9, renew_within_s=8, retry_s=0.05, stalled_s=0.3)
    with sqlite.SQLiteStore(tmp_path / "state.db") as store:
        election = lease.Election(store, name="x", namespace="y", identity="a", terms=terms, beside=again)
        with pytest.raises(errors.Conflict, match=r"has not come to it for 0\.3 s"):
            await election.run(work)


async def test_the_holder_writes_its_marks_on_the_lease_and_leaves_others_alone() -> None:
    store = memory.MemoryStore()
    about = meta.ObjectMeta(name="x", namespace="y", annotations={"theirs": "1", "ours": "old"})
    await store.create(coordination.Lease(metadata=about))
    election = lease.Election(store, name="x", namespace="y", identity="a", marks={"ours": "new"})

    async def work(_leading: lease.Leadership) -> None:
        found = await store.get(coordination.Lease, "x", "y")
        assert found.metadata.annotations == {"theirs": "1", "ours": "new"}

    await election.run(work)

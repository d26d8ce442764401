"""The fence over an API server: the lease is asked for before a write, and a stale clock sends nothing at all."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from fairlead import errors
from fairlead.store.fence import Fence
from fairlead.store.kubernetes import store as kubernetes
from fairlead.wire.kubernetes import core, meta
from tests.unit.store import virtualtime
from tests.unit.store.kubernetes import scriptedserver as scripted


class Clock:
    """Whether the last renewal is recent."""

    def __init__(self) -> None:
        self.is_fresh = True


def lease(holder: str = "a", token: int = 3) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "control", "namespace": "system", "resourceVersion": "5"},
        "spec": {"holderIdentity": holder, "leaseTransitions": token},
    }


def fence(clock: Clock) -> Fence:
    return Fence(lease="control", namespace="system", holder="a", token=3, is_fresh=lambda: clock.is_fresh)


def event() -> core.Event:
    return core.Event(metadata=meta.ObjectMeta(name="e", namespace="team"))


async def refused(store: kubernetes.KubernetesStore, clock: Clock) -> str:
    with pytest.raises(errors.Conflict) as lost:
        await store.fenced(fence(clock)).create(event())
    return lost.value.reason


def test_the_lease_is_read_before_the_first_write_and_not_again_within_a_second() -> None:
    async def scenario() -> None:
        answers = [scripted.reply(lease()), scripted.reply({"metadata": {"name": "e", "namespace": "team"}})]
        async with (
            scripted.serving(*answers) as server,
            kubernetes.KubernetesStore(scripted.access(server), chance=lambda: 1.0) as store,
        ):
            fenced = store.fenced(fence(Clock()))
            await fenced.create(event())
            await fenced.create(event())
            asked = [(call.method, call.path.rpartition("/")[2]) for call in server.calls]
            assert asked == [("GET", "control"), ("POST", "events"), ("POST", "events")]

    virtualtime.run(scenario())


@pytest.mark.parametrize("answer", [lease("b", 4), lease("a", 4), lease("")], ids=["another", "again", "free"])
def test_a_lease_that_moved_on_is_found_before_anything_is_sent(answer: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with (
            scripted.serving(scripted.reply(answer)) as server,
            kubernetes.KubernetesStore(scripted.access(server), chance=lambda: 1.0) as store,
        ):
            assert await refused(store, Clock()) == "LeaseLost"
            assert not server.asked("POST")

    virtualtime.run(scenario())


def test_a_process_that_slept_through_its_lease_asks_nobody() -> None:
    async def scenario() -> None:
        clock = Clock()
        clock.is_fresh = False
        async with (
            scripted.serving(scripted.reply(lease())) as server,
            kubernetes.KubernetesStore(scripted.access(server), chance=lambda: 1.0) as store,
        ):
            assert await refused(store, clock) == "LeaseLost"
            assert not server.calls

    virtualtime.run(scenario())


def test_a_write_that_is_repeated_is_not_sent_again_once_the_lease_is_stale() -> None:
    async def scenario() -> None:
        clock = Clock()

        async def sleeps_through(_: web.Request) -> web.StreamResponse:
            clock.is_fresh = False
            return web.Response(status=429)

        async with (
            scripted.serving(scripted.reply(lease()), sleeps_through) as server,
            kubernetes.KubernetesStore(scripted.access(server), chance=lambda: 1.0) as store,
        ):
            with pytest.raises(errors.Conflict, match="not renewed in time"):
                await store.fenced(fence(clock)).create(event())
            assert len(server.asked("POST")) == 1

    virtualtime.run(scenario())

"""Output that is followed over restarts: run by run, and into the pod that `restart` puts in the place of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import msgspec
import pytest

from fairlead.model.container.output import Notice
from fairlead.serve.v1.containers.output import logs
from fairlead.store.embedded import memory
from fairlead.store.subresource import LogOptions
from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.world import World, application, in_process


class _Written:
    """A `subresource.Logs` in which each run wrote its own id."""

    async def logs(self, pod: core.Pod, container: str, options: LogOptions) -> AsyncGenerator[bytes, None]:
        (status,) = pod.status.container_statuses
        assert status.name == container
        before = status.last_state.terminated
        yield (before.container_id if options.previous and before else status.container_id).encode() + b"\n"


def _pod(run: int, *, code: int = 3, phase: str = "Running") -> core.Pod:
    ended = core.ContainerStateTerminated(exit_code=code, reason="Error", container_id=f"run{run - 1}")
    running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.now()))
    status = core.ContainerStatus(
        name="main",
        state=running,
        last_state=core.ContainerStateUnion(terminated=ended) if run else core.ContainerStateUnion(),
        container_id=f"run{run}",
        restart_count=run,
    )
    return core.Pod(
        metadata=meta.ObjectMeta(name="train", namespace="default"),
        spec=core.PodSpec(node_name="one", containers=(core.Container(name="main", image="demo"),)),
        status=core.PodStatus(phase=phase, container_statuses=(status,)),
    )


async def _take(pieces: AsyncIterator[bytes], count: int) -> list[bytes]:
    return [await asyncio.wait_for(anext(pieces), 10) for _ in range(count)]


async def _become(store: memory.MemoryStore, wanted: core.Pod) -> None:
    found = await store.get(core.Pod, "train", "default")
    await store.update_status(msgspec.structs.replace(found, status=wanted.status))


async def test_each_run_that_begins_is_announced_with_what_the_one_before_ended_with() -> None:
    store = memory.MemoryStore()
    created = await store.create(_pod(0))
    await _become(store, _pod(0))
    wanted = logs.Wanted(container="main", options=LogOptions())
    pieces = logs.follow(store, _Written(), created, wanted)
    assert await _take(pieces, 1) == [b"run0\n"]

    await _become(store, _pod(1))
    announced, *written = await _take(pieces, 2)
    assert isinstance(announced, Notice)
    assert announced == b"train was started again (restart 1; it had ended with 3)\n"
    assert written == [b"run1\n"]

    # Two runs are over before anybody read them: the last but one can still be read, the others cannot.
    await _become(store, _pod(5, code=0))
    announced, *written = await _take(pieces, 3)
    assert (
        announced == b"train was started again (restart 5; it had ended with 0; the output of 2 runs between is gone)\n"
    )
    assert written == [b"run4\n", b"run5\n"]


async def test_a_restart_is_followed_into_the_new_container(world: World) -> None:
    transport = in_process(application(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as api:
        args = ["sh", "-c", "echo here; sleep 60"]
        assert (
            await api.post("/v1/containers", json={"image": "demo", "name": "train", "args": args})
        ).status_code == 201
        await api.get("/v1/containers/train/wait", params={"state": "started"})
        pod = await world.pod("train")
        wanted = logs.Wanted(container=pod.spec.containers[0].name, options=LogOptions())
        pieces = logs.follow(world.store, world.backend.logs, pod, wanted)
        assert await _take(pieces, 1) == [b"here\n"]

        restarting = await api.post("/v1/containers/train:restart", params={"grace": 0})
        assert restarting.status_code == 200, restarting.text
        announced, again = await _take(pieces, 2)
        assert (announced, again) == (b"train was stopped and is started again\n", b"here\n")
        assert isinstance(announced, Notice)

        # A removal ends it.
        await api.delete("/v1/containers/train", params={"grace": 0})
        with pytest.raises(StopAsyncIteration):
            await _take(pieces, 1)


async def test_only_who_asks_for_them_gets_words_of_the_services_own() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        for piece in (b"a\n", Notice(b"train was started again\n"), b"b\n"):
            yield piece

    assert [piece async for piece in logs.without_notices(pieces())] == [b"a\n", b"b\n"]

"""Attach and detach over the API: the wish that is written, and what its answers become."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest

from fairlead import errors
from fairlead.model.step import TraceStep
from fairlead.serve.backend import devicechange as changing
from fairlead.store import tracerecorder
from fairlead.wire.kubernetes import core, devicechange, names
from tests.unit.serve.world import RESOURCE, World, inventory

FOREVER = ["sh", "-c", "sleep 600"]


async def _start(api: httpx.AsyncClient, name: str = "a") -> None:
    answer = await api.post("/v1/containers", json={"image": "demo", "name": name, "args": FOREVER, "gpus": 1})
    assert answer.status_code == 201, answer.text
    await api.get(f"/v1/containers/{name}/wait", params={"state": "started"})


@contextlib.asynccontextmanager
async def kubelet(world: World, answer: TraceStep | None, seen: list[devicechange.Change]) -> AsyncIterator[None]:
    """Play the kubelet's part: take the wish, keep the step that answers it, remove the wish."""

    async def follow() -> None:
        async for change in world.store.watch(core.Pod):
            pod = change.object
            text = pod.metadata.annotations.get(names.DEVICE_CHANGE)
            if text is None:
                continue
            wish = devicechange.parse(text)
            seen.append(wish)
            if answer is not None:
                facts = {**answer.facts, "change": wish.id, "container": wish.container, "device": wish.device}
                step = TraceStep(layer=answer.layer, reason=answer.reason, message="", at=time.time(), facts=facts)
                await tracerecorder.record(world.store, tracerecorder.reference(pod), step)
            notes = {key: value for key, value in pod.metadata.annotations.items() if key != names.DEVICE_CHANGE}
            about = msgspec.structs.replace(pod.metadata, annotations=notes)
            await world.store.update(msgspec.structs.replace(pod, metadata=about))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield
        task.cancel()


def _step(reason: str, **facts: object) -> TraceStep:
    return TraceStep(layer="kernel", reason=reason, message="", at=0.0, facts=facts)


DONE = _step(
    "Attached",
    resource=RESOURCE,
    rules=["c 195:2 rw"],
    nodes=[{"path": "/dev/nvidia2", "done": "made"}],
    opens={"/dev/nvidia2": "ENXIO"},
    ended=[],
    unread=[],
)


def _refusal(error: errors.FairleadError) -> TraceStep:
    return _step("AttachRefused", problem=devicechange.problem_of(error))


async def test_a_wish_is_written_and_its_answer_returned(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    seen: list[devicechange.Change] = []
    async with kubelet(world, DONE, seen):
        answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert answer.status_code == 200, answer.text
    body: Mapping[str, Any] = answer.json()
    assert (body["device"], body["nodes"]) == ("GPU-2", [{"path": "/dev/nvidia2", "done": "made"}])
    (wish,) = seen
    assert (wish.action, wish.resource, wish.device, wish.force) == ("attach", RESOURCE, "GPU-2", False)


async def test_what_the_kubelet_refuses_is_the_same_error_here(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    refusal = _refusal(errors.Conflict("it is open", reason="DeviceInUse", hint="--force"))
    async with kubelet(world, refusal, []):
        answer = await api.post("/v1/containers/a:detach", json={"gpu": "0"})
    body = answer.json()
    assert (answer.status_code, body["reason"], body["detail"], body["hint"]) == (
        409,
        "DeviceInUse",
        "it is open",
        "--force",
    )


async def test_a_detach_may_be_forced(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    seen: list[devicechange.Change] = []
    async with kubelet(world, DONE, seen):
        await api.post("/v1/containers/a:detach", json={"gpu": "GPU-1", "force": True})
    assert (seen[0].action, seen[0].device, seen[0].force) == ("detach", "GPU-1", True)


async def test_two_wishes_at_once_are_refused(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    pod = await world.pod("a")
    change = devicechange.Change(id="1", action="attach", container="x", resource="r", device="d")
    notes = {**pod.metadata.annotations, names.DEVICE_CHANGE: devicechange.emit(change)}
    about = msgspec.structs.replace(pod.metadata, annotations=notes)
    await world.store.update(msgspec.structs.replace(pod, metadata=about))
    answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "ChangePending")


async def test_a_kubelet_that_does_not_know_wishes_is_told_of(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "ANSWER_S", 0.01)
    await _start(api)
    answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (503, "KubeletCannot")
    assert names.DEVICE_CHANGE not in (await world.pod("a")).metadata.annotations


async def test_a_container_that_does_not_run_has_no_devices_to_change(api: httpx.AsyncClient) -> None:
    await api.post("/v1/containers", json={"image": "demo", "name": "a", "args": ["true"]})
    await api.get("/v1/containers/a/wait", params={"state": "ended"})
    answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerNotRunning")
    missing = await api.post("/v1/containers/nobody:attach", json={"gpu": "2"})
    assert missing.status_code == 404


async def test_a_container_that_goes_away_meanwhile_is_told(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    async with kubelet(world, None, []):
        answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerGone")


@pytest.mark.parametrize(
    ("text", "device"),
    [("1", "GPU-1"), ("0000:03:00.0", "GPU-3"), ("GPU-2", "GPU-2"), ("77", "77"), ("mig-1", "mig-1")],
)
def test_gpus_are_called_by_index_address_uuid_or_id(text: str, device: str) -> None:
    assert changing.device_id(inventory().gpus, text) == device


def test_the_beginning_of_several_uuids_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="4 GPUs"):
        changing.device_id(inventory().gpus, "GPU-")

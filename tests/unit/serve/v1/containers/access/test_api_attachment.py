"""Attach and detach over the API: the request that is made, and what its answers become."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest

from fairlead import errors
from fairlead.serve.backend.containers import devicechange as changing
from fairlead.store.port import ChangeKind
from fairlead.wire.kubernetes import core, devicechange
from fairlead.wire.kubernetes.devicechange import DeviceChange, DeviceChangeSpec, DeviceChangeStatus
from tests.unit.serve.world import RESOURCE, World, inventory

FOREVER = ["sh", "-c", "sleep 600"]


async def _start(api: httpx.AsyncClient, name: str = "a") -> None:
    answer = await api.post("/v1/containers", json={"image": "demo", "name": name, "args": FOREVER, "gpus": 1})
    assert answer.status_code == 201, answer.text
    await api.get(f"/v1/containers/{name}/wait", params={"state": "started"})


@contextlib.asynccontextmanager
async def kubelet(world: World, answer: DeviceChangeStatus, seen: list[DeviceChangeSpec]) -> AsyncIterator[None]:
    """Play the kubelet's part: take each request and answer it."""

    async def follow() -> None:
        async for change in world.store.watch(DeviceChange):
            if change.kind is not ChangeKind.DELETED and not change.object.status.phase:
                seen.append(change.object.spec)
                await world.store.update_status(msgspec.structs.replace(change.object, status=answer))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield
        task.cancel()


async def _requests(world: World) -> tuple[DeviceChange, ...]:
    return (await world.store.list(DeviceChange)).items


DONE = DeviceChangeStatus(
    phase="Done",
    outcome=devicechange.Outcome(
        rules=("c 195:2 rw",),
        nodes=(devicechange.ChangedNode(path="/dev/nvidia2", done="made"),),
        opens={"/dev/nvidia2": "ENXIO"},
    ),
)


def _refusal(error: errors.FairleadError) -> DeviceChangeStatus:
    return DeviceChangeStatus(phase="Refused", problem=devicechange.problem_of(error))


async def _ask(world: World, status: DeviceChangeStatus) -> None:
    """Leave a request as an API that was killed leaves it."""
    spec = DeviceChangeSpec(
        pod_name="a",
        pod_uid=(await world.pod("a")).metadata.uid,
        container="x",
        action="attach",
        resource="r",
        device="d",
    )
    left = await world.store.create(devicechange.request(await world.pod("a"), spec))
    await world.store.update_status(msgspec.structs.replace(left, status=status))


async def test_a_request_is_made_and_its_answer_returned(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    seen: list[DeviceChangeSpec] = []
    async with kubelet(world, DONE, seen):
        answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert answer.status_code == 200, answer.text
    body: Mapping[str, Any] = answer.json()
    assert (body["device"], body["nodes"]) == ("GPU-2", [{"path": "/dev/nvidia2", "done": "made"}])
    (asked,) = seen
    assert await _requests(world) == ()
    assert (asked.action, asked.resource, asked.device, asked.force) == ("attach", RESOURCE, "GPU-2", False)


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
    seen: list[DeviceChangeSpec] = []
    async with kubelet(world, DONE, seen):
        await api.post("/v1/containers/a:detach", json={"gpu": "GPU-1", "force": True})
    assert (seen[0].action, seen[0].device, seen[0].force) == ("detach", "GPU-1", True)


async def test_two_requests_at_once_are_refused(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    await _ask(world, DeviceChangeStatus())
    answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "ChangePending")


async def test_an_answered_request_that_was_left_behind_makes_room(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)
    await _ask(world, DONE)
    async with kubelet(world, DONE, []):
        answer = await api.post("/v1/containers/a:attach", json={"gpu": "3"})
    assert (answer.status_code, answer.json()["device"]) == (200, "GPU-3")


async def test_a_kubelet_that_does_not_know_requests_is_told_of(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "ANSWER_S", 0.01)
    await _start(api)
    answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (503, "KubeletCannot")
    assert await _requests(world) == ()


async def test_a_container_that_does_not_run_has_no_devices_to_change(api: httpx.AsyncClient) -> None:
    await api.post("/v1/containers", json={"image": "demo", "name": "a", "args": ["true"]})
    await api.get("/v1/containers/a/wait", params={"state": "ended"})
    answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerNotRunning")
    missing = await api.post("/v1/containers/nobody:attach", json={"gpu": "2"})
    assert missing.status_code == 404


async def test_a_container_that_goes_away_meanwhile_is_told(api: httpx.AsyncClient, world: World) -> None:
    await _start(api)

    async def goes() -> None:
        async for change in world.store.watch(DeviceChange):
            if change.kind is ChangeKind.ADDED:
                await world.store.delete(core.Pod, "a", "default", grace_s=0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(goes())
        answer = await api.post("/v1/containers/a:attach", json={"gpu": "2"})
        task.cancel()
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

"""A claim's page: what it requests, what it holds, for whom, what enforces its share; and what a driver may add."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.serve.console import app as console
from fairlead.serve.console.draw import claimfacts
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.unit.serve.console.test_console_accounts import _logged_in as logged_in
from tests.unit.serve.console.test_console_pages import HOSTILE
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World, application, in_process

MPS = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 25}},
}
SELECTOR = "device.attributes['gpu.nvidia.com'].index < 2"


def _claim(name: str, namespace: str = "default", *, status: Any = None) -> ResourceClaim:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}
    request["exactly"] |= {"allocationMode": "ExactCount", "selectors": [{"cel": {"expression": SELECTOR}}]}  # type: ignore[operator]
    item = {"apiVersion": dialect.V1, "kind": "ResourceClaim", "metadata": {"name": name, "namespace": namespace}}
    found = dialect.read(
        {**item, "spec": {"devices": {"requests": [request]}}, **({"status": status} if status else {})}
    )
    assert isinstance(found.item, ResourceClaim)
    return found.item


async def _keep(world: World, claim: ResourceClaim) -> None:
    made = await world.store.create(claim)
    await world.store.update_status(msgspec.structs.replace(made, status=claim.status))


def _status(*, message: str = "ready for use") -> dict[str, Any]:
    id_ = {"driver": "gpu.nvidia.com", "pool": "one", "device": "gpu-1"}
    opaque = {"driver": "gpu.nvidia.com", "parameters": MPS}
    return {
        "allocation": {
            "allocationTimestamp": "2026-11-29T10:00:00Z",
            "devices": {
                "results": [{**id_, "request": "gpus", "consumedCapacity": {"memory": "20Gi"}, "shareID": "s-1"}],
                "config": [{"source": "FromClaim", "requests": ["gpus"], "opaque": opaque}],
            },
        },
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "u"}],
        "devices": [
            {
                **id_,
                "shareID": "s-1",
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "Prepared",
                        "message": message,
                        "lastTransitionTime": "2026-11-29T10:00:01Z",
                    }
                ],
            }
        ],
    }


async def _publish(world: World, *, enforced_by: str = "MPS") -> None:
    gpu = world.inventory.gpus[1]
    texts = {"uuid": gpu.uuid, "productName": gpu.name, "fairlead.dev/memoryLimitEnforcedBy": enforced_by}
    device = {
        "name": "gpu-1",
        "allowMultipleAllocations": True,
        "attributes": {name: {"string": text} for name, text in texts.items()},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    for generation, devices in ((1, []), (2, [device])):
        spec = {
            "driver": "gpu.nvidia.com",
            "nodeName": "one",
            "pool": {"name": "one", "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        }
        body = {"apiVersion": dialect.V1, "kind": "ResourceSlice", "metadata": {"name": f"s{generation}"}, "spec": spec}
        found = dialect.read(body).item
        assert isinstance(found, ResourceSlice)
        await world.store.create(found)


@pytest.fixture
async def socket(world: World) -> AsyncIterator[httpx.AsyncClient]:
    made: Any = console.create_app(application(world.services), has_login=False)
    headers = {"origin": "http://localhost", "accept": "text/html"}
    async with httpx.AsyncClient(transport=in_process(made), base_url="http://localhost", headers=headers) as client:
        yield client


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def test_a_claim_that_holds_a_shared_gpu_is_shown_whole(world: World, socket: httpx.AsyncClient) -> None:
    await _publish(world)
    await _keep(world, _claim("mine", status=_status()))
    about = core.ObjectReference(kind="ResourceClaim", name="mine", namespace="default")
    named = meta.ObjectMeta(name="e", namespace="default")
    await world.store.create(core.Event(metadata=named, involved_object=about, reason="Kept", message="by hand"))
    text = (await socket.get("/console/claims/default/mine")).text
    uuid = world.inventory.gpus[1].uuid
    for part in (
        "It holds 1 device",
        "Prepared on its node",
        'href="/console/containers/default/train"',
        "index &lt; 2",
        "gpu.nvidia.com/one/gpu-1",
        f'href="/console/gpus/{uuid}"',
        "memory 20Gi",
        "by MPS, each on 25 % of the multiprocessors",
        "MPS holds each program",
        "Ready: True",
        "ready for use",
        "by hand",
    ):
        assert part in text, part
    assert 'href="/console/claims/default/mine"' in (await socket.get("/console/claims")).text
    assert 'href="/console/claims/default/mine"' in (await socket.get(f"/console/gpus/{uuid}")).text
    other = await socket.get(f"/console/gpus/{world.inventory.gpus[2].uuid}")
    assert "Claimed by" not in other.text


@pytest.mark.parametrize(("word", "says"), [("nothing", "it can use more"), ("SRAM", "SRAM enforces"), ("", "")])
async def test_what_enforces_a_share_is_said_as_it_is(
    world: World, socket: httpx.AsyncClient, word: str, says: str
) -> None:
    await _publish(world, enforced_by=word)
    await _keep(world, _claim("mine", status=_status()))
    text = (await socket.get("/console/claims/default/mine")).text
    assert says in text
    assert word or "enforces" not in text


async def test_a_claim_without_devices_says_the_next_step(world: World, socket: httpx.AsyncClient) -> None:
    await _keep(world, _claim("mine"))
    text = (await socket.get("/console/claims/default/mine")).text
    for part in (
        "It holds no devices yet",
        "fairlead run --claim mine IMAGE",
        "No devices yet",
        'href="/console/queue"',
    ):
        assert part in text, part


async def test_devices_that_are_no_longer_published_stay_on_the_page(world: World, socket: httpx.AsyncClient) -> None:
    await _keep(world, _claim("mine", status=_status(message=HOSTILE)))
    text = (await socket.get("/console/claims/default/mine")).text
    assert "not published now" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text


async def test_a_claim_is_its_tenancys_alone(lab: Lab) -> None:
    space = lab.namespaces["red"]
    await _publish(lab.world)
    await _keep(lab.world, _claim("mine", space, status=_status()))
    developer, stranger = await logged_in(lab, "developer"), await logged_in(lab, "stranger")
    uuid = lab.world.inventory.gpus[1].uuid
    assert "It holds 1 device" in (await developer.get(f"/console/claims/{space}/mine")).text
    assert "Claimed by" in (await developer.get(f"/console/gpus/{uuid}")).text
    there = await stranger.get(f"/console/claims/{space}/mine")
    absent = await stranger.get(f"/console/claims/{space[:-1]}x/mine")
    assert (there.status_code, absent.status_code) == (404, 404)
    assert there.text.replace(space, "") == absent.text.replace(f"{space[:-1]}x", "")
    assert "mine" not in (await stranger.get(f"/console/gpus/{uuid}")).text
    viewer = await logged_in(lab, "viewer")
    assert 'id="remove"' not in (await viewer.get(f"/console/claims/{space}/mine")).text
    for path in ("a%2fb", "%00", "nosuch"):
        assert (await developer.get(f"/console/claims/{space}/{path}")).status_code in {404, 303}, path


def test_a_field_that_the_page_does_not_know_is_shown_by_its_name() -> None:
    document = {
        "name": "mine",
        "cleaned": {"state": "Completed", "boot_id": "", "devices": [{"uuid": "GPU-1", "is_ready": True}]},
        "allocated": [{"id": "d/p/x", "request": "r", "cdi_ids": ["a", "b"]}],
    }
    assert [(one.name, one.value) for one in claimfacts.more(document)] == [
        ("cleaned, state", "Completed"),
        ("cleaned, devices, 1, uuid", "GPU-1"),
        ("cleaned, devices, 1, is ready", "yes"),
        ("d/p/x, cdi ids", "a, b"),
    ]
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"x": deep, "y": "z"}
    assert len(claimfacts.more({"deep": deep, **{f"f{n}": n + 1 for n in range(100)}})) <= 24

"""Pods that ask for extended resources go where a class stands for these, and one claim is made for each."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.control.scheduler.controller import Scheduler
from fairlead.plan.claim.life import lifecycle
from fairlead.settings import ControlSettings
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, FINALIZER, ResourceClaim
from tests.unit.control.scheduler.claimplane import DRIVER, ClaimPlane, devices, read
from tests.unit.control.scheduler.plane import GPU


async def _add_class(plane: ClaimPlane, name: str = "gpu", resource: str = GPU) -> None:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    spec = {"selectors": selectors, "extendedResourceName": resource}
    await plane.store.create(read("DeviceClass", {"metadata": {"name": name}, "spec": spec}))


async def _prepare(policy: str = "", **machines: int) -> ClaimPlane:
    plane = ClaimPlane()
    if policy:
        plane.choose(policy)
    await _add_class(plane)
    for name, gpus in (machines or {"a": 2, "b": 4}).items():
        await plane.add_machine(name, gpus)
    return plane


async def _claims(plane: ClaimPlane) -> dict[str, list[ResourceClaim]]:
    """Return the claims that were made, by pod."""
    found = dict[str, list[ResourceClaim]]()
    for one in (await plane.store.list(ResourceClaim)).items:
        owner = lifecycle.owning_pod(one)
        assert owner is not None
        found.setdefault(owner.name, []).append(one)
    return found


async def _whole(plane: ClaimPlane) -> dict[str, int]:
    """Return how many devices each pod that is bound has; every claim is its pod's, and its pod says so."""
    claims, count = await _claims(plane), dict[str, int]()
    await plane.held()
    for pod in (await plane.store.list(core.Pod)).items:
        if not pod.spec.node_name:
            continue
        (claim,) = claims.pop(pod.metadata.name)
        told, allocation = pod.status.extended_resource_claim_status, claim.status.allocation
        assert told is not None
        assert told.resource_claim_name == claim.metadata.name
        assert claim.metadata.annotations[EXTENDED_RESOURCE_CLAIM] == "true"
        assert claim.metadata.finalizers == (FINALIZER,)
        assert [one.uid for one in claim.status.reserved_for] == [pod.metadata.uid]
        assert allocation is not None
        assert {one.pool for one in allocation.devices.results} == {pod.spec.node_name}
        count[pod.metadata.name] = len(allocation.devices.results)
    assert not claims
    return count


@pytest.mark.parametrize("policy", ["", "packed", "binpack"])
async def test_a_pod_gets_a_claim_where_a_class_stands_for_its_gpus(policy: str) -> None:
    plane = await _prepare(policy)
    async with plane.running():
        pod = await plane.add_pod("p", 3)
        assert await plane.until_bound(["p"]) == {"p": "b"}
    assert await _whole(plane) == {"p": 3}
    ((claim,),) = (await _claims(plane)).values()
    assert claim.metadata.name.startswith("p-extended-resources-")
    (request,) = claim.spec.devices.requests or ()
    assert request.exactly is not None
    assert (request.name, request.exactly.device_class_name, request.exactly.count) == (
        "container-0-request-0",
        "gpu",
        3,
    )
    told = (await plane.store.get(core.Pod, "p", pod.metadata.namespace)).status.extended_resource_claim_status
    mapped = core.ContainerExtendedResourceRequest(
        container_name="main", resource_name=GPU, request_name="container-0-request-0"
    )
    assert told is not None
    assert told.request_mappings == (mapped,)


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_node_that_offers_the_resource_itself_decides_by_its_amount(policy: str) -> None:
    plane = await _prepare(policy, a=1)
    await plane.add_node("plugin", 2)
    await plane.publish("plugin", devices(8))
    async with plane.running():
        await plane.add_pod("two", 2)
        assert await plane.until_bound(["two"]) == {"two": "plugin"}
        await plane.add_pod("one", 1)
        assert (await plane.until_bound(["one"]))["one"] == "a"
        await plane.add_pod("none", 1)
        words = await plane.until_said("none", "Insufficient")
        assert f"Insufficient {GPU}" in words
        assert "request container-0-request-0 of claim <extended-resources> wants 1 of 1 devices, and 0 fit" in words
    assert set((await plane.held()).values()) == {one.metadata.name for one in (await _claims(plane))["one"]}


async def test_a_pod_that_waits_goes_once_a_class_stands_for_its_resource_or_the_plugin_leaves() -> None:
    plane = ClaimPlane()
    await plane.add_machine("a", 2)
    await plane.add_node("b", 1)
    await plane.publish("b", devices(4))
    async with plane.running():
        await plane.add_pod("p", 2)
        await plane.until_said("p", f"Insufficient {GPU}")
        await _add_class(plane)
        await plane.until_bound(["p"])
        await plane.add_pod("q", 3)
        await plane.until_said("q", f"Insufficient {GPU}")
        node = await plane.store.get(core.Node, "b")
        status = msgspec.structs.replace(node.status, allocatable={**node.status.allocatable, GPU: "0"})
        await plane.store.update_status(msgspec.structs.replace(node, status=status))
        assert await plane.until_bound(["q"]) == {"p": "a", "q": "b"}
    assert await _whole(plane) == {"p": 2, "q": 3}


async def test_a_class_stands_for_the_resource_of_its_own_name() -> None:
    plane = await _prepare()
    resource = "deviceclass.resource.kubernetes.io/gpu"
    async with plane.running():
        wanted = core.ResourceRequirements(limits={resource: 2}, requests={resource: 2})
        await plane.add_pod("p", 0, containers=(core.Container(name="main", image="i", resources=wanted),))
        await plane.until_bound(["p"])
    assert await _whole(plane) == {"p": 2}


async def test_no_class_stands_for_anything_where_the_gate_is_off() -> None:
    plane = await _prepare()
    plane.scheduler = Scheduler(
        plane.store, plane.placement, ControlSettings(feature_gates="DRAExtendedResource=false")
    )
    async with plane.running():
        await plane.add_pod("p", 1)
        assert f"Insufficient {GPU}" in await plane.until_said("p", "nodes are available")


async def test_no_device_is_given_twice_to_pods_that_come_together() -> None:
    plane = await _prepare(a=8, b=8, c=8)
    async with plane.running():
        names = [f"p-{number}" for number in range(12)]
        await asyncio.gather(*(plane.add_pod(name, 2) for name in names))
        await plane.until_bound(names)
        assert len(await plane.held()) == 24
        await plane.add_pod("late", 1)
        await plane.until_said("late", "cannot allocate all claims")
    assert await _whole(plane) == dict.fromkeys(names, 2)


async def test_a_group_gets_all_of_its_claims_or_makes_none() -> None:
    plane = await _prepare(a=2, b=1)
    async with plane.running():
        await plane.add_gang("g", 4)
        await plane.until_said("g-0", "3 of 4 pods fit")
        assert not await _claims(plane)
        await plane.add_machine("c", 1)
        await plane.until_bound([f"g-{number}" for number in range(4)])
    assert await _whole(plane) == {f"g-{number}": 1 for number in range(4)}


@pytest.mark.parametrize("error", [errors.Conflict, errors.Denied])
async def test_a_pod_that_is_not_bound_leaves_no_claim(error: type[errors.FairleadError], monkeypatch: Any) -> None:
    plane = await _prepare(a=2)
    bind, failed = plane.placement.bind, list[str]()

    async def refuse(pod: core.Pod, node: str) -> None:
        if not failed:
            failed.extend(one.metadata.name for one in (await _claims(plane))["p"])
            raise error("not now", reason="Refused")
        await bind(pod, node)

    monkeypatch.setattr(plane.placement, "bind", refuse)
    monkeypatch.setattr("fairlead.control.scheduler.controller.RETRY_S", 0.05)
    async with plane.running():
        await plane.add_pod("p", 2)
        await plane.until_bound(["p"])
    (left,) = (await _claims(plane))["p"]
    assert failed
    assert left.metadata.name not in failed
    assert await _whole(plane) == {"p": 2}


async def test_a_claim_of_an_earlier_try_is_removed_and_never_used() -> None:
    plane = await _prepare(a=2)
    pod = await plane.add_pod("p", 2)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.metadata.uid, "controller": True}
    about = {
        "name": "p-extended-resources-old",
        "namespace": "default",
        "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
        "ownerReferences": [owner],
        "finalizers": [FINALIZER],
    }
    request = {"name": "container-0-request-0", "exactly": {"deviceClassName": "gpu", "count": 2}}
    body = {"metadata": about, "spec": {"devices": {"requests": [request]}}}
    made = await plane.store.create(read("ResourceClaim", body))
    results = [
        {"request": "container-0-request-0", "driver": DRIVER, "pool": "a", "device": f"gpu-{at}"} for at in range(2)
    ]
    status = read("ResourceClaim", {**body, "status": {"allocation": {"devices": {"results": results}}}}).status
    await plane.store.update_status(msgspec.structs.replace(made, status=status))
    async with plane.running():
        await plane.until_bound(["p"])
    assert await _whole(plane) == {"p": 2}
    assert [one.metadata.name for one in (await _claims(plane))["p"]] != ["p-extended-resources-old"]


async def test_a_claim_that_the_store_refuses_is_said_and_holds_nothing(monkeypatch: Any) -> None:
    plane = await _prepare(a=2)
    create, is_open = plane.store.create, list[bool]()

    async def refuse(item: Any) -> Any:
        if isinstance(item, ResourceClaim) and item.metadata.name.startswith("p-") and not is_open:
            raise errors.Denied("exceeded quota: count/resourceclaims", reason="QuotaExceeded")
        return await create(item)

    monkeypatch.setattr(plane.store, "create", refuse)
    async with plane.running():
        await plane.add_pod("p", 2)
        await plane.until_said("p", "exceeded quota")
        await plane.add_pod("q", 2)
        await plane.until_bound(["q"])
    assert await _whole(plane) == {"q": 2}


@pytest.mark.parametrize("write", ["create", "patch"])
@pytest.mark.parametrize("is_taken", [True, False])
async def test_writes_without_an_answer_lose_and_double_nothing(write: str, is_taken: bool, monkeypatch: Any) -> None:
    plane = await _prepare(a=2)
    real, lost = getattr(plane.store, write), list[str]()

    async def lose(item: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(item, ResourceClaim) and len(lost) < 3:
            lost.append(item.metadata.name)
            if is_taken:
                await real(item, *rest, **more)
            raise errors.Unavailable("no answer", reason="Timeout")
        return await real(item, *rest, **more)

    monkeypatch.setattr(plane.store, write, lose)
    async with plane.running():
        await plane.add_pod("p", 1)
        await plane.add_pod("q", 1)
        await plane.until_bound(["p", "q"])
    assert lost
    assert await _whole(plane) == {"p": 1, "q": 1}


async def test_a_scheduler_that_ends_between_any_two_writes_loses_and_doubles_nothing(monkeypatch: Any) -> None:
    points = [
        "scheduler.before-claim-made",
        "scheduler.after-claim-made",
        "scheduler.before-claim",
        "scheduler.between-claim-writes",
        "scheduler.after-claim",
        "scheduler.after-claim-named",
        "scheduler.after-bind",
    ]
    for point in points:
        plane = await _prepare(a=2)
        reached = asyncio.Event()

        def stop(name: str, point: str = point, reached: asyncio.Event = reached) -> None:
            if name == point and not reached.is_set():
                reached.set()
                raise asyncio.CancelledError

        monkeypatch.setattr("fairlead.telemetry.crash_point", stop)
        try:
            async with asyncio.timeout(10), plane.running():
                await plane.add_pod("p", 2)
                await reached.wait()
                raise asyncio.CancelledError
        except (asyncio.CancelledError, ExceptionGroup):
            pass
        assert reached.is_set(), point
        plane.scheduler = Scheduler(plane.store, plane.placement, ControlSettings())
        async with plane.running():
            await plane.until_bound(["p"])
        assert await _whole(plane) == {"p": 2}, point


async def test_a_pod_of_a_higher_priority_has_those_end_whose_claims_hold_its_devices() -> None:
    plane = await _prepare(a=2)
    async with plane.running():
        await plane.add_pod("low", 2, priority=0)
        await plane.until_bound(["low"])
        await plane.add_pod("high", 2, priority=10)
        assert await plane.until_ended(1) == ["low"]
        for claim in (await _claims(plane)).get("low", ()):  # as the controllers of a cluster do
            about = msgspec.structs.replace(claim.metadata, finalizers=())
            await plane.store.update(msgspec.structs.replace(claim, metadata=about))
        await plane.until_bound(["high"])
    assert await _whole(plane) == {"high": 2}


async def test_nobody_ends_for_devices_that_would_not_fit_without_them() -> None:
    plane = await _prepare(a=2)
    async with plane.running():
        await plane.add_pod("low", 2, priority=0)
        await plane.until_bound(["low"])
        await plane.add_pod("high", 3, priority=10)
        await plane.until_said("high", "cannot allocate all claims")
    assert not plane.placement.ended


async def test_the_resource_counts_once_towards_the_limit_of_a_queue() -> None:
    plane = await _prepare(a=4)
    await plane.add_queue("team", limit={GPU: "3"})
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    async with plane.running():
        for name in ("one", "two", "three"):
            await plane.add_pod(name, 1, labels=labels)
        await plane.until_bound(["one", "two", "three"])
        await plane.add_pod("four", 1, labels=labels)
        await plane.until_said("four", "limit")
    assert len(await plane.held()) == 3


async def test_devices_with_binding_conditions_are_refused_in_words() -> None:
    plane = ClaimPlane()
    await _add_class(plane)
    await plane.add_machine("a", 1, bindingConditions=["ready"], bindingFailureConditions=["broken"])
    async with plane.running():
        await plane.add_pod("p", 1)
        await plane.until_said("p", "device gpu-0 has binding conditions")
    assert not await _claims(plane)


async def test_a_class_that_goes_leaves_pods_waiting_for_the_amount() -> None:
    plane = await _prepare(a=1)
    async with plane.running():
        await plane.add_pod("p", 2)
        await plane.until_said("p", "cannot allocate all claims")
        await plane.store.delete(DeviceClass, "gpu")
        await plane.until_said("p", f"Insufficient {GPU}")

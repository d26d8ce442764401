"""Pods with claims go where their devices are; their claims are allocated once, and before they are bound."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.control.scheduler.controller import Scheduler
from fairlead.settings import ControlSettings
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import (
    AllocatedDeviceStatus,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from tests.unit.control.scheduler.claimplane import DRIVER, ClaimPlane, devices, read
from tests.unit.control.scheduler.plane import GPU


async def _prepare(policy: str = "", **machines: int) -> ClaimPlane:
    plane = ClaimPlane()
    if policy:
        plane.choose(policy)
    await plane.add_class()
    for name, gpus in (machines or {"a": 2, "b": 4}).items():
        await plane.add_machine(name, gpus)
    return plane


def _using(claim: str) -> dict[str, Any]:
    return {"resource_claims": (core.PodResourceClaim(name="gpus", resource_claim_name=claim),)}


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_claim_of_a_template_is_allocated_and_its_pod_bound(policy: str) -> None:
    plane = await _prepare(policy)
    async with plane.running():
        pod = await plane.add_claiming("p", 3)
        assert await plane.until_bound(["p"]) == {"p": "b"}
    claim = await plane.settled("p-gpus")
    (user,) = claim.status.reserved_for
    assert (user.resource, user.name, user.uid) == ("pods", "p", pod.metadata.uid)
    assert claim.status.allocation is not None
    assert [one.device for one in claim.status.allocation.devices.results] == ["gpu-0", "gpu-1", "gpu-2"]
    assert claim.status.allocation.node_selector is not None


async def test_a_pod_waits_for_its_claim_and_its_class_and_says_so() -> None:
    plane = ClaimPlane()
    await plane.add_machine("a", 2)
    async with plane.running():
        reference = core.PodResourceClaim(name="gpus", resource_claim_template_name="two")
        pod = await plane.add_pod("p", 0, resource_claims=(reference,))
        await plane.until_said("p", "waits for claim gpus, which is to be made from template two")
        await plane.make_claim(pod)
        await plane.until_said("p", 'request gpus: device class "gpu" does not exist')
        await plane.add_class()
        await plane.until_bound(["p"])


async def test_a_pod_that_finds_too_few_devices_says_what_each_node_lacks_and_goes_when_they_are_free() -> None:
    plane = await _prepare(a=2)
    async with plane.running():
        await plane.add_claiming("first", 2)
        await plane.until_bound(["first"])
        await plane.add_claiming("second", 1)
        words = await plane.until_said("second", "cannot allocate all claims")
        assert "request gpus of claim gpus wants 1 of 2 devices, and 0 fit: 2 held by other claims" in words
        await plane.finish("first")
        await plane.until_bound(["second"])
    assert set((await plane.held()).values()) == {"second-gpus"}


async def test_slices_that_come_later_are_used() -> None:
    plane = await _prepare(a=1)
    await plane.add_node("late", 0)
    async with plane.running():
        await plane.add_claiming("p", 4)
        await plane.until_said("p", "cannot allocate all claims")
        await plane.publish("late", devices(4))
        assert await plane.until_bound(["p"]) == {"p": "late"}


async def test_pods_that_share_a_claim_go_where_its_devices_are() -> None:
    plane = await _prepare()
    await plane.add_claim("shared", 1)
    async with plane.running():
        names = [f"p-{number}" for number in range(5)]
        for name in names:
            await plane.add_pod(name, 0, **_using("shared"))
        found = await plane.until_bound(names)
    assert len(set(found.values())) == 1
    claim = await plane.settled("shared")
    assert sorted(one.name for one in claim.status.reserved_for) == names


async def test_no_device_is_given_twice_to_pods_that_come_together() -> None:
    plane = await _prepare(a=8, b=8, c=8)
    async with plane.running():
        names = [f"p-{number}" for number in range(12)]
        await asyncio.gather(*(plane.add_claiming(name, 2) for name in names))
        await plane.until_bound(names)
        assert len(await plane.held()) == 24


async def test_no_device_is_given_twice_while_pods_come_and_go() -> None:
    dice = random.Random(7)
    plane = await _prepare(a=4, b=4)
    async with plane.running():
        alive = list[str]()
        for number in range(60):
            if len(alive) == 4 or (alive and dice.random() < 0.3):
                await plane.finish(alive.pop(dice.randrange(len(alive))))
            name = f"p-{number}"
            await plane.add_claiming(name, dice.choice((1, 2)))
            await plane.until_bound([name])
            alive.append(name)
            await plane.held()


async def test_a_group_gets_all_of_its_claims_or_none() -> None:
    plane = await _prepare(a=4)
    async with plane.running():
        for number in range(3):
            labels, told = {"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-total-count": "3"}
            await plane.add_claiming(f"g-{number}", 2, labels=labels, annotations=told)
        await plane.until_said("g-0", "2 of 3 pods fit, the next does not")
        assert await plane.held() == {}
        await plane.add_machine("b", 2)
        await plane.until_bound(["g-0", "g-1", "g-2"])
        assert len(await plane.held()) == 6


async def test_a_claim_that_is_given_to_another_meanwhile_is_decided_anew() -> None:
    plane = await _prepare(a=2, b=2)
    raced = list[str]()
    patch = plane.store.patch

    async def race(before: Any, after: Any, *, is_status: bool = False) -> Any:
        """Let another writer be first, once."""
        if is_status and not raced:
            raced.append(before.metadata.name)
            stored = await plane.store.get(ResourceClaim, before.metadata.name, "default")
            about = msgspec.structs.replace(stored.metadata, labels={"touched": "yes"})
            await plane.store.update(msgspec.structs.replace(stored, metadata=about))
        return await patch(before, after, is_status=is_status)

    plane.store.patch = race  # type: ignore[method-assign]
    async with plane.running():
        await plane.add_claiming("p", 2)
        await plane.until_bound(["p"])
    assert raced == ["p-gpus"]
    assert len(await plane.held()) == 2


async def test_a_write_without_an_answer_holds_its_devices_until_the_store_is_asked() -> None:
    plane = await _prepare(a=2)
    lost = list[str]()
    patch = plane.store.patch

    async def lose(before: Any, after: Any, *, is_status: bool = False) -> Any:
        """Take the first write of a claim, and lose the answer."""
        found = await patch(before, after, is_status=is_status)
        if is_status and not lost:
            lost.append(before.metadata.name)
            raise errors.Unavailable("the connection broke", reason="ConnectionLost")
        return found

    plane.store.patch = lose  # type: ignore[method-assign]
    async with plane.running():
        await plane.add_claiming("p", 1)
        await plane.add_claiming("q", 1)
        await plane.until_bound(["p", "q"])
    assert lost
    assert len(await plane.held()) == 2


async def test_a_scheduler_that_begins_anew_between_allocation_and_binding_loses_and_doubles_nothing() -> None:
    plane = await _prepare(a=2, b=2)
    bind = plane.placement.bind

    async def hang(pod: core.Pod, node: str) -> None:
        await asyncio.Event().wait()

    plane.placement.bind = hang  # type: ignore[method-assign]
    pod = await plane.add_claiming("p", 2)
    async with plane.running():
        await _until_allocated(plane, "p-gpus")
    allocated = await plane.claim("p-gpus")
    assert pod.metadata.name not in await plane.bound()
    plane.placement.bind = bind  # type: ignore[method-assign]
    plane.scheduler = Scheduler(plane.store, plane.placement, ControlSettings())
    async with plane.running():
        await plane.until_bound(["p"])
    assert (await plane.claim("p-gpus")).status.allocation == allocated.status.allocation


async def _until_allocated(plane: ClaimPlane, name: str) -> None:
    async with asyncio.timeout(20):
        async for change in plane.store.watch(ResourceClaim):
            if change.object.metadata.name == name and change.object.status.allocation is not None:
                return


async def test_a_claim_that_is_allocated_where_its_pod_cannot_be_is_given_back() -> None:
    plane = await _prepare(a=2, b=2)
    made = await plane.add_claim("mine", 1)
    allocation = {
        "devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": "gone", "device": "gpu-0"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]
        },
    }
    status = read("ResourceClaim", {"metadata": {"name": "mine"}, "status": {"allocation": allocation}}).status
    await plane.store.update_status(msgspec.structs.replace(made, status=status))
    async with plane.running():
        await plane.add_pod("p", 0, **_using("mine"))
        await plane.until_bound(["p"])
    assert set(await plane.held()) <= {"a/gpu-0", "b/gpu-0"}


async def test_a_claim_that_another_pod_uses_is_not_given_back() -> None:
    plane = await _prepare(a=2, b=2)
    await plane.add_claim("shared", 1)
    async with plane.running():
        await plane.add_pod("p", 0, **_using("shared"))
        there = (await plane.until_bound(["p"]))["p"]
        other = "b" if there == "a" else "a"
        await plane.add_pod("q", 0, node_selector={"kubernetes.io/hostname": other}, **_using("shared"))
        await plane.until_said("q", "0/2 nodes are available")
    claim = await plane.settled("shared")
    assert [one.name for one in claim.status.reserved_for] == ["p"]


async def test_a_claim_with_as_many_users_as_it_may_have_is_said_to_be_in_use() -> None:
    plane = await _prepare(a=2)
    await plane.add_claim("shared", 1)
    async with plane.running():
        await plane.add_pod("p", 0, **_using("shared"))
        await plane.until_bound(["p"])
        claim = await plane.claim("shared")
        users = tuple(ResourceClaimConsumerReference(resource="pods", name=f"u{n}", uid=f"u{n}") for n in range(256))
        await plane.store.update_status(
            msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=users))
        )
        await plane.add_pod("q", 0, **_using("shared"))
        await plane.until_said("q", 'resourceclaim "shared" is in use by 256 pods')


async def test_a_pod_waits_until_its_devices_meet_their_binding_conditions() -> None:
    plane = ClaimPlane()
    await plane.add_class()
    await plane.add_machine("a", 1, bindingConditions=["ready"], bindingFailureConditions=["broken"])
    async with plane.running():
        await plane.add_claiming("p", 1)
        await plane.until_said("p", "room is held on a until the devices of its claims are ready there")
        claim = await plane.settled("p-gpus")
        assert claim.status.allocation is not None
        assert claim.status.allocation.allocation_timestamp is not None
        assert await plane.bound() == {}
        ready = meta.Condition(type="ready", status="True", reason="r", last_transition_time="2026-01-01T00:00:00Z")
        said = AllocatedDeviceStatus(driver=DRIVER, pool="a", device="gpu-0", conditions=(ready,))
        await plane.store.update_status(
            msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, devices=(said,)))
        )
        await plane.until_bound(["p"])


async def test_another_pods_claim_of_a_template_is_refused() -> None:
    plane = await _prepare(a=2)
    reference = core.PodResourceClaim(name="gpus", resource_claim_template_name="gpus")
    async with plane.running():
        first = await plane.add_claiming("first", 1)
        await plane.until_bound(["first"])
        pod = await plane.add_pod("thief", 0, resource_claims=(reference,))
        made = core.PodResourceClaimStatus(name="gpus", resource_claim_name=f"{first.metadata.name}-gpus")
        found = await plane.store.get(core.Pod, pod.metadata.name, "default")
        status = msgspec.structs.replace(found.status, resource_claim_statuses=(made,))
        await plane.store.update_status(
            msgspec.structs.replace(
                found, metadata=msgspec.structs.replace(found.metadata, resource_version=""), status=status
            )
        )
        await plane.until_said("thief", "was not created for pod")


async def test_a_selector_that_fails_refuses_the_nodes_where_it_fails_and_no_others() -> None:
    plane = await _prepare(a=2)
    await plane.add_node("odd", 0)
    await plane.publish("odd", [{"name": "gpu-0"}])
    await plane.add_class("h100", f'device.attributes["{DRIVER}"].model == "H100"')
    await plane.add_class("gone", f'device.attributes["{DRIVER}"].gone == "H100"')
    await plane.add_claim("mine", 1, device_class="h100")
    await plane.add_claim("bad", 1, device_class="gone")
    async with plane.running():
        await plane.add_pod("p", 0, **_using("mine"))
        await plane.add_pod("q", 0, **_using("bad"))
        assert (await plane.until_bound(["p"]))["p"] == "a"
        await plane.until_said("q", "class gone: selector #0: no such key: gone")


async def test_a_pod_of_a_higher_priority_has_those_end_whose_claims_hold_its_devices() -> None:
    plane = await _prepare(a=2, b=2)
    async with plane.running():
        for name in ("low-0", "low-1"):
            await plane.add_claiming(name, 2, priority=1)
        await plane.until_bound(["low-0", "low-1"])
        await plane.add_claiming("small", 1, priority=1)
        await plane.until_said("small", "cannot allocate all claims")
        await plane.add_claiming("high", 2, priority=10)
        (gone,) = await plane.until_ended(1)
        await plane.until_said("high", "it is free soon")
        await plane.finish(gone)
        await plane.until_bound(["high"])
        assert "small" not in await plane.bound()
    kept = {"low-0": "low-1", "low-1": "low-0"}[gone]
    assert set((await plane.held()).values()) == {f"{kept}-gpus", "high-gpus"}


async def test_nobody_ends_for_a_claim_that_would_not_fit_without_them() -> None:
    plane = await _prepare(a=2)
    await plane.add_claim("kept", 1)
    async with plane.running():
        await plane.add_claiming("low", 1, priority=1)
        await plane.add_pod("fixed", 0, priority=20, **_using("kept"))
        await plane.until_bound(["low", "fixed"])
        await plane.add_claiming("high", 2, priority=10)
        await plane.until_said("high", "cannot allocate all claims")
        await asyncio.sleep(0.1)
    assert plane.placement.ended == []


async def _add_group(plane: ClaimPlane, count: int, **more: Any) -> list[str]:
    names = [f"g-{number}" for number in range(count)]
    for name in names:
        labels = {"kueue.x-k8s.io/pod-group-name": "g"}
        told = {"kueue.x-k8s.io/pod-group-total-count": str(count)}
        await plane.add_claiming(name, 1, labels=labels, annotations=told, priority=10, **more)
    return names


async def test_pods_end_for_a_group_with_claims_where_all_of_it_fits_then() -> None:
    plane = await _prepare(a=2, b=2)
    async with plane.running():
        for name in ("one", "two", "three", "four"):
            await plane.add_claiming(name, 1, priority=1)
        await plane.until_bound(["one", "two", "three", "four"])
        names = await _add_group(plane, 3)
        ended = await plane.until_ended(3)
        for name in tuple(ended):
            await plane.finish(name)
        await plane.until_bound(names)
    assert len(ended) == 3
    assert len(await plane.held()) == 4


async def test_nobody_ends_for_a_group_with_claims_that_would_not_fit_without_them() -> None:
    plane = await _prepare(a=2)
    async with plane.running():
        await plane.add_claiming("low", 2, priority=1)
        await plane.until_bound(["low"])
        await _add_group(plane, 3)
        await plane.until_said("g-0", "0 of 3 pods fit")
        await asyncio.sleep(0.1)
    assert plane.placement.ended == []


async def _prepare_shared(a: int, b: int) -> ClaimPlane:
    """Return two nodes that offer GPUs by amount too, whose claimed GPU a pod has that may end, and a claim for one."""
    plane = ClaimPlane()
    await plane.add_class()
    for name, amount in (("a", a), ("b", b)):
        await plane.add_node(name, amount)
        await plane.publish(name, devices(1))
    await plane.add_claim("shared", 1)
    return plane


async def _add_sharing(plane: ClaimPlane, gpus: int) -> list[str]:
    """Add a group of two pods that share a claim. Args: gpus: of each, by amount."""
    for number in range(2):
        labels, told = {"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-total-count": "2"}
        more: dict[str, Any] = {"labels": labels, "annotations": told, "priority": 10}
        await plane.add_pod(f"g-{number}", gpus, **more, **_using("shared"))
    return ["g-0", "g-1"]


async def test_pods_end_for_a_group_that_shares_a_claim_where_all_of_it_fits_then() -> None:
    plane = await _prepare_shared(a=1, b=2)
    async with plane.running():
        for name in ("one", "two"):
            await plane.add_claiming(name, 1, priority=1)
        at = await plane.until_bound(["one", "two"])
        names = await _add_sharing(plane, gpus=1)
        ended = await plane.until_ended(1)
        assert [at[name] for name in ended] == ["b"]
        await plane.finish(ended[0])
        assert (await plane.until_bound(names)).items() >= {"g-0": "b", "g-1": "b"}.items()
    claim = await plane.settled("shared")
    assert {one.name for one in claim.status.reserved_for} == set(names)
    assert len(ended) == 1


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1)])
async def test_a_group_that_shares_a_claim_goes_where_all_of_it_fits(a: int, b: int) -> None:
    plane = await _prepare_shared(a, b)
    async with plane.running():
        names = await _add_sharing(plane, gpus=1)
        node = "a" if a == 2 else "b"
        assert (await plane.until_bound(names)).items() >= dict.fromkeys(names, node).items()
    assert plane.placement.ended == []


async def test_room_that_was_made_for_a_group_is_used_though_its_first_pod_fits_elsewhere() -> None:
    plane = await _prepare_shared(a=1, b=2)
    async with plane.running():
        for name in ("one", "two"):
            await plane.add_claiming(name, 1, priority=1)
        at = await plane.until_bound(["one", "two"])
        left = next(name for name, node in at.items() if node == "a")
        await plane.finish(left)  # a has a GPU for the claim, and room for one of the two pods
        names = await _add_sharing(plane, gpus=1)
        ended = await plane.until_ended(1)
        assert [at[name] for name in ended] == ["b"]
        await plane.finish(ended[0])
        assert (await plane.until_bound(names)).items() >= {"g-0": "b", "g-1": "b"}.items()
    assert len(ended) == 1


async def test_nobody_ends_for_a_group_that_shares_a_claim_and_would_not_fit_beside_it() -> None:
    plane = await _prepare_shared(a=1, b=1)
    async with plane.running():
        for name in ("one", "two"):
            await plane.add_claiming(name, 1, priority=1)
        await plane.until_bound(["one", "two"])
        await _add_sharing(plane, gpus=1)
        await plane.until_said("g-0", "0 of 2 pods fit")
        await asyncio.sleep(0.1)
    assert plane.placement.ended == []


async def test_claimed_devices_count_towards_the_limit_of_a_queue() -> None:
    plane = await _prepare(a=8)
    found = await plane.store.get(DeviceClass, "gpu")
    spec = msgspec.structs.replace(found.spec, extended_resource_name=GPU)
    await plane.store.update(msgspec.structs.replace(found, spec=spec))
    await plane.add_queue("team", namespaces=("default",), limit={GPU: "3"})
    async with plane.running():
        await plane.add_claiming("two", 2)
        await plane.until_bound(["two"])
        await plane.add_claiming("more", 2)
        assert await plane.until_said("more", "limit") == f'queue "team" is at its limit: 2 {GPU} asked, 2 of 3 taken'
        await plane.add_claiming("one", 1)
        await plane.until_bound(["one"])
        await plane.finish("two")
        await plane.until_bound(["more"])


async def test_a_shared_claim_counts_once_and_one_that_only_looks_never() -> None:
    plane = await _prepare(a=8)
    name = "deviceclass.resource.kubernetes.io/gpu"
    await plane.add_queue("team", namespaces=("default",), limit={name: "2"})
    await plane.add_claim("shared", 2)
    await plane.add_claim("looks", 2, adminAccess=True)
    async with plane.running():
        for number in range(3):
            await plane.add_pod(f"p-{number}", 0, **_using("shared"))
        await plane.add_pod("admin", 0, **_using("looks"))
        await plane.until_bound(["p-0", "p-1", "p-2", "admin"])


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_pod_goes_where_its_request_gets_the_first_of_its_alternatives(policy: str) -> None:
    plane = await _prepare(policy, a=2, b=2)
    await plane.add_node("z", 0)
    best = [{"name": "gpu-0", "attributes": {"model": {"string": "B200"}}}]
    await plane.publish("z", best)
    ways = [
        {
            "name": model.lower(),
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}],
        }
        for model in ("B200", "H100")
    ]
    for name in ("first", "second"):
        spec = {"devices": {"requests": [{"name": "gpus", "firstAvailable": ways}]}}
        await plane.store.create(
            read("ResourceClaim", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        )
    async with plane.running():
        await plane.add_pod("p", 0, **_using("first"))
        assert (await plane.until_bound(["p"]))["p"] == "z"
        await plane.add_pod("q", 0, **_using("second"))
        assert (await plane.until_bound(["q"]))["q"] in {"a", "b"}


async def test_a_write_that_is_denied_is_said_and_holds_nothing() -> None:
    plane = await _prepare(a=1)
    patch = plane.store.patch

    async def deny(before: Any, after: Any, *, is_status: bool = False) -> Any:
        if before.metadata.name == "p-gpus":
            raise errors.Denied("resourceclaims/binding is forbidden", reason="Forbidden")
        return await patch(before, after, is_status=is_status)

    plane.store.patch = deny  # type: ignore[method-assign]
    async with plane.running():
        await plane.add_claiming("p", 1)
        await plane.until_said("p", "resourceclaims/binding is forbidden")
        assert (await plane.words("p"))[0] == "SchedulerError"
        await plane.add_claiming("q", 1)
        await plane.until_bound(["q"])
    assert set((await plane.held()).values()) == {"q-gpus"}


async def test_a_write_that_is_denied_while_room_is_held_is_said_and_holds_nothing() -> None:
    plane = ClaimPlane()
    await plane.add_class()
    await plane.add_machine("a", 1, bindingConditions=["ready"], bindingFailureConditions=["broken"])
    patch = plane.store.patch

    async def deny(before: Any, after: Any, *, is_status: bool = False) -> Any:
        if before.metadata.name == "p-gpus":
            raise errors.Denied("resourceclaims/binding is forbidden", reason="Forbidden")
        return await patch(before, after, is_status=is_status)

    plane.store.patch = deny  # type: ignore[method-assign]
    async with plane.running():
        await plane.add_claiming("p", 1)
        await plane.until_said("p", "resourceclaims/binding is forbidden")
        assert (await plane.words("p"))[0] == "SchedulerError"
        await plane.add_claiming("q", 1)
        await plane.until_said("q", "room is held on a")
        await _until_allocated(plane, "q-gpus")
    assert set((await plane.held()).values()) == {"q-gpus"}


async def test_a_claim_that_may_not_be_given_back_is_said() -> None:
    plane = await _prepare(a=1)
    made = await plane.add_claim("mine", 1)
    allocation = {
        "devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": "gone", "device": "gpu-0"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]
        },
    }
    status = read("ResourceClaim", {"metadata": {"name": "mine"}, "status": {"allocation": allocation}}).status
    await plane.store.update_status(msgspec.structs.replace(made, status=status))

    async def deny(before: Any, _: Any, *, is_status: bool = False) -> Any:
        raise errors.Denied(f"no patch of {before.metadata.name}, status {is_status}", reason="Forbidden")

    plane.store.patch = deny  # type: ignore[assignment, method-assign]
    async with plane.running():
        await plane.add_pod("p", 0, **_using("mine"))
        await plane.until_said("p", "no patch of mine, status True")


async def test_of_several_claims_a_lost_write_loses_none() -> None:
    """The second is lost to another writer: the first stays the pod's, the third is free, and both are tried again."""
    plane = await _prepare(a=3, b=3)
    lost = list[str]()
    patch = plane.store.patch

    async def lose(before: Any, after: Any, *, is_status: bool = False) -> Any:
        if is_status and before.metadata.name == "two" and not lost:
            lost.append("two")
            raise errors.Conflict("the claim changed", reason="StaleVersion")
        return await patch(before, after, is_status=is_status)

    plane.store.patch = lose  # type: ignore[method-assign]
    names = ("one", "two", "three")
    for name in names:
        await plane.add_claim(name, 1)
    claims = tuple(core.PodResourceClaim(name=name, resource_claim_name=name) for name in names)
    known = plane.scheduler._cache.constraints["claims"].known  # type: ignore[attr-defined]
    async with plane.running():
        await plane.add_pod("p", 0, resource_claims=claims)
        found = await plane.until_bound(["p"])
    assert lost
    assert not any(entry.ours for entry in known._entries.values() if entry.ends_at == float("inf"))
    assert {device.partition("/")[0] for device in await plane.held()} == {found["p"]}
    assert sorted((await plane.held()).values()) == sorted(names)


async def test_a_pod_that_goes_after_a_lost_write_leaves_nothing_held() -> None:
    plane = await _prepare(a=2)
    patch = plane.store.patch

    async def lose(before: Any, after: Any, *, is_status: bool = False) -> Any:
        if before.metadata.name == "one":
            raise errors.Conflict("the claim changed", reason="StaleVersion")
        return await patch(before, after, is_status=is_status)

    plane.store.patch = lose  # type: ignore[method-assign]
    for name in ("one", "two"):
        await plane.add_claim(name, 1)
    claims = tuple(core.PodResourceClaim(name=name, resource_claim_name=name) for name in ("one", "two"))
    known = plane.scheduler._cache.constraints["claims"].known  # type: ignore[attr-defined]
    async with plane.running():
        with capture_logs() as logs:
            await plane.add_pod("p", 0, resource_claims=claims)
            async with asyncio.timeout(20):
                while not any(one["event"] == "claim not written" for one in logs):  # noqa: ASYNC110 - logs have no event
                    await asyncio.sleep(0.01)
        await plane.end("p")
        await plane.add_claiming("q", 2)
        await plane.until_bound(["q"])
    assert not any(entry.ours for entry in known._entries.values() if entry.ends_at == float("inf"))


@pytest.mark.parametrize(("choice", "numa"), [("first", [0, 1]), ("best", [1, 1])])
async def test_the_devices_of_a_claim_are_the_first_or_those_that_hang_together(choice: str, numa: list[int]) -> None:
    plane = ClaimPlane(claimed_devices=choice)
    await plane.add_class()
    await plane.add_node("a", 0)
    name = "resource.kubernetes.io/numaNode"
    found = [{"name": f"gpu-{at}", "attributes": {name: {"int": node}}} for at, node in enumerate((0, 1, 1))]
    await plane.publish("a", found)
    async with plane.running():
        await plane.add_claiming("p", 2)
        await plane.until_bound(["p"])
    nodes = {one["name"]: one["attributes"][name]["int"] for one in found}  # type: ignore[index]
    assert sorted(nodes[device.partition("/")[2]] for device in await plane.held()) == numa

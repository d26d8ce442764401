"""Pods with claims go where their volumes are; those whose volumes are made for them choose where, once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fairlead.plan.schedule import waiting
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage
from tests.unit.control.scheduler.plane import Plane

_ZONE = "topology.kubernetes.io/zone"
_WAITS, _FIXED = "late", "early"


async def _prepare(policy: str = "", **settings: Any) -> Plane:
    """Return a plane with a full, best node `a` of zone z1 and an empty `b` of z2, and two classes."""
    plane = Plane(**settings)
    if policy:
        plane.choose(policy)
    for name, zone, gpus in (("a", "z1", 2), ("b", "z2", 8)):
        await plane.add_node(name, gpus)
        node = await plane.store.get(core.Node, name)
        about = msgspec.structs.replace(node.metadata, labels={_ZONE: zone, "kubernetes.io/hostname": name})
        await plane.store.update(msgspec.structs.replace(node, metadata=about))
    late = storage.FIRST_CONSUMER
    for name, mode, maker in (
        (_WAITS, late, "csi"),
        (_FIXED, "Immediate", "csi"),
        ("local", late, "kubernetes.io/no-provisioner"),
    ):
        one = storage.StorageClass(metadata=meta.ObjectMeta(name=name), provisioner=maker, volume_binding_mode=mode)
        await plane.store.create(one)
    return plane


async def _add_volume(plane: Plane, name: str, zone: str) -> None:
    term = {"matchExpressions": [{"key": _ZONE, "operator": "In", "values": [zone]}]}
    body = {"metadata": {"name": name}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}
    await plane.store.create(msgspec.convert(body, storage.PersistentVolume))


async def _add_claim(plane: Plane, name: str, storage_class: str, *modes: str, volume: str = "") -> None:
    spec = core.ClaimSpec(storage_class_name=storage_class, access_modes=modes, volume_name=volume)
    notes = {storage.BIND_COMPLETED: "yes"} if volume else {}
    about = meta.ObjectMeta(name=name, namespace="default", annotations=notes)
    await plane.store.create(core.PersistentVolumeClaim(metadata=about, spec=spec))


async def _bind(plane: Plane, claim: str, volume: str) -> None:
    """Do what the volume controller does once a volume is there."""
    found = await plane.store.get(core.PersistentVolumeClaim, claim, "default")
    notes = {**found.metadata.annotations, storage.BIND_COMPLETED: "yes"}
    await plane.store.update(
        msgspec.structs.replace(
            found,
            metadata=msgspec.structs.replace(found.metadata, annotations=notes),
            spec=msgspec.structs.replace(found.spec, volume_name=volume),
        )
    )


def _using(claim: str) -> dict[str, Any]:
    return {"volumes": (core.Volume(name="data", persistent_volume_claim=core.ClaimVolume(claim_name=claim)),)}


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_pod_goes_to_where_its_volume_is(policy: str) -> None:
    plane = await _prepare(policy)
    await _add_volume(plane, "far", "z2")
    await _add_claim(plane, "data", _FIXED, volume="far")
    async with plane.running():
        await plane.add_pod("p", 2, **_using("data"))
        await plane.add_pod("plain", 2)
        assert await plane.until_bound(["p", "plain"]) == {"p": "b", "plain": "a"}


async def test_a_volume_that_no_node_reaches_is_said_and_waited_for() -> None:
    plane = await _prepare()
    await _add_volume(plane, "far", "z9")
    await _add_claim(plane, "data", _FIXED, volume="far")
    async with plane.running():
        await plane.add_pod("p", 2, **_using("data"))
        words = await plane.until_said("p", "node(s) didn't match PersistentVolume's node affinity")
        pod = await plane.store.get(core.Pod, "p", "default")
        nodes, pods = await plane.store.list(core.Node), await plane.store.list(core.Pod)
        assert waiting.why(pod, nodes.items, pods.items, ours="fairlead") == words


async def test_a_claim_that_is_missing_or_unbound_keeps_the_pod_waiting_until_it_is_bound() -> None:
    plane = await _prepare()
    async with plane.running():
        await plane.add_pod("p", 2, **_using("data"))
        await plane.until_said("p", 'persistentvolumeclaim "data" not found')
        await _add_claim(plane, "data", _FIXED)
        await plane.until_said("p", "pod has unbound immediate PersistentVolumeClaims")
        await _add_volume(plane, "near", "z1")
        await _bind(plane, "data", "near")
        assert await plane.until_bound(["p"]) == {"p": "a"}


async def test_a_volume_that_waits_for_its_pod_is_made_where_the_pod_will_be() -> None:
    plane = await _prepare()
    await _add_claim(plane, "data", _WAITS)
    async with plane.running():
        await plane.add_pod("p", 2, **_using("data"))
        await plane.until_said("p", "room is held on a until its claims have their volumes there: data")
        claim = await plane.store.get(core.PersistentVolumeClaim, "data", "default")
        assert claim.metadata.annotations[storage.SELECTED_NODE] == "a"
        await plane.add_pod("other", 2)
        assert (await plane.until_bound(["other"]))["other"] == "b"  # the room on a is held
        await _add_volume(plane, "made", "z1")
        await _bind(plane, "data", "made")
        assert (await plane.until_bound(["p"]))["p"] == "a"


async def test_a_provisioner_that_fails_has_another_node_chosen() -> None:
    plane = await _prepare()
    await _add_claim(plane, "data", _WAITS)
    async with plane.running():
        await plane.add_pod("p", 2, **_using("data"))
        await plane.until_said("p", "room is held on a")
        node = await plane.store.get(core.Node, "a")
        closed = msgspec.structs.replace(node.spec, unschedulable=True)
        await plane.store.update(msgspec.structs.replace(node, spec=closed))
        # Again and again: where the scheduler hears of the claim first, it chooses the closed node once more.
        while (chosen := await _chosen(plane)) != "b":
            if chosen == "a":
                claim = await plane.store.get(core.PersistentVolumeClaim, "data", "default")
                bare = msgspec.structs.replace(claim.metadata, annotations={})
                await plane.store.update(msgspec.structs.replace(claim, metadata=bare))
            await asyncio.sleep(0.02)
        await plane.until_said("p", "room is held on b")


async def _chosen(plane: Plane) -> str:
    """Return the node that the provisioner is told."""
    claim = await plane.store.get(core.PersistentVolumeClaim, "data", "default")
    return claim.metadata.annotations.get(storage.SELECTED_NODE, "")


async def test_a_claim_of_one_pod_alone_is_waited_for_until_that_pod_is_gone() -> None:
    plane = await _prepare()
    await _add_volume(plane, "near", "z1")
    await _add_claim(plane, "data", _FIXED, "ReadWriteOncePod", volume="near")
    async with plane.running():
        await plane.add_pod("first", 1, **_using("data"))
        await plane.until_bound(["first"])
        await plane.add_pod("second", 1, **_using("data"))
        await plane.until_said("second", "ReadWriteOncePod access mode")
        await plane.end("first")
        assert await plane.until_bound(["second"]) == {"second": "a"}


async def _add_local(plane: Plane, name: str, node: str, size: str) -> None:
    """Add a volume that one node alone reaches."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    spec |= {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    await plane.store.create(msgspec.convert({"metadata": {"name": name}, "spec": spec}, storage.PersistentVolume))


async def _ask_local(plane: Plane, name: str, size: str) -> None:
    wanted = core.ResourceRequirements(requests={"storage": size})
    spec = core.ClaimSpec(storage_class_name="local", access_modes=("ReadWriteOnce",), resources=wanted)
    about = meta.ObjectMeta(name=name, namespace="default")
    await plane.store.create(core.PersistentVolumeClaim(metadata=about, spec=spec))


async def _given(plane: Plane) -> dict[str, str]:
    """Return by volume the claim that it was given to."""
    found = await plane.store.list(storage.PersistentVolume)
    return {one.metadata.name: one.spec.claim_ref.name for one in found.items if one.spec.claim_ref is not None}


async def test_a_local_volume_is_given_to_its_claim_and_the_pod_goes_where_it_is() -> None:
    plane = await _prepare()
    for name, node, size in (("large", "b", "9Gi"), ("small", "b", "2Gi"), ("tiny", "a", "1Gi")):
        await _add_local(plane, name, node, size)
    await _ask_local(plane, "data", "2Gi")
    async with plane.running():
        await plane.add_pod("p", 1, **_using("data"))
        await plane.until_said("p", "room is held on b until its claims have their volumes there: data")
        assert await _given(plane) == {"small": "data"}
        found = await plane.store.get(storage.PersistentVolume, "small")
        assert found.metadata.annotations[storage.BY_CONTROLLER] == "yes"
        assert found.spec.claim_ref is not None
        claim = await plane.store.get(core.PersistentVolumeClaim, "data", "default")
        assert found.spec.claim_ref.uid == claim.metadata.uid
        assert storage.SELECTED_NODE not in claim.metadata.annotations
        # Another claim of the same size does not get the same volume.
        await _ask_local(plane, "more", "2Gi")
        await plane.add_pod("q", 1, **_using("more"))
        await plane.until_said("q", "room is held on b")
        assert await _given(plane) == {"small": "data", "large": "more"}
        await _bind(plane, "data", "small")
        assert await plane.until_bound(["p"]) == {"p": "b"}
        await _ask_local(plane, "third", "2Gi")
        await plane.add_pod("r", 1, **_using("third"))
        await plane.until_said("r", "2 node(s) didn't find available persistent volumes to bind")
        await _add_local(plane, "late", "a", "3Gi")
        await plane.until_said("r", "room is held on a")


async def test_a_group_is_bound_once_the_claims_of_all_have_their_volumes_and_holds_its_room_until_then() -> None:
    plane = await _prepare()
    for name in ("data-0", "data-1"):
        await _add_claim(plane, name, _WAITS)
    async with plane.running():
        await plane.add_member("g", 2, 3, 1)
        for number in range(2):
            await plane.add_member("g", number, 3, 1, **_using(f"data-{number}"))
        await plane.until_said("g-0", "until its claims have their volumes there: data-0")
        await plane.until_said("g-2", "until the claims of its group have what they need")
        chosen = {}
        for name in ("data-0", "data-1"):
            claim = await plane.store.get(core.PersistentVolumeClaim, name, "default")
            chosen[name] = claim.metadata.annotations[storage.SELECTED_NODE]
        await plane.add_pod("greedy", 8)
        await plane.until_said("greedy", "Insufficient")  # room is held for the group
        zones = {"a": "z1", "b": "z2"}
        await _add_volume(plane, "made-0", zones[chosen["data-0"]])
        await _bind(plane, "data-0", "made-0")
        await plane.add_pod("later", 1)
        await plane.until_bound(["later"])
        assert set(await plane.bound()) == {"later"}, "not before all of it can be"
        await _add_volume(plane, "made-1", zones[chosen["data-1"]])
        await _bind(plane, "data-1", "made-1")
        bound = await plane.until_bound(["g-0", "g-1", "g-2"])
        assert [bound["g-0"], bound["g-1"]] == [chosen["data-0"], chosen["data-1"]]


async def test_a_group_takes_a_volume_for_each_claim_or_none() -> None:
    plane = await _prepare()
    for number in range(2):
        await _ask_local(plane, f"data-{number}", "2Gi")
    await _add_local(plane, "one", "b", "2Gi")
    async with plane.running():
        for number in range(2):
            await plane.add_member("g", number, 2, 1, **_using(f"data-{number}"))
        said = await plane.until_said("g-0", "1 of 2 pods fit")
        assert "2 node(s) didn't find available persistent volumes to bind" in said
        assert await _given(plane) == {}
        await _ask_local(plane, "other", "2Gi")
        await plane.add_pod("single", 1, **_using("other"))
        await plane.until_said("single", "room is held on b")  # nothing of the group kept it
        assert await _given(plane) == {"one": "other"}
        await _add_local(plane, "two", "b", "2Gi")
        await _add_local(plane, "three", "b", "2Gi")
        await plane.until_said("g-1", "room is held on b")
        given = await _given(plane)
        assert set(given.values()) == {"other", "data-0", "data-1"}
        for volume, claim in given.items():
            await _bind(plane, claim, volume)
        await plane.until_bound(["g-0", "g-1", "single"])


async def test_a_group_waits_for_the_claim_of_any_of_its_pods_and_for_rules_that_are_not_known() -> None:
    plane = await _prepare()
    await _add_volume(plane, "near", "z1")
    async with plane.running():
        await plane.add_member("g", 1, 2, 1, **_using("data"))
        await plane.add_member("g", 0, 2, 1)
        said = await plane.until_said("g-0", "cannot be")
        assert said == (
            'group "g" is placed as a whole, and g-1 cannot be: 0/2 nodes are available: '
            'persistentvolumeclaim "data" not found, and none is known: may they be listed?.'
        )
        await plane.add_member("u", 0, 2, 1)
        await plane.add_member("u", 1, 2, 1, resources=core.ResourceRequirements(requests={"cpu": "1"}))
        await plane.until_said("u-0", "u-1 cannot be: asks for spec.resources")
        assert await plane.bound() == {}
        await _add_claim(plane, "data", _FIXED, volume="near")
        await plane.until_bound(["g-0", "g-1"])
        assert set(await plane.bound()) == {"g-0", "g-1"}


async def _limit(plane: Plane, node: str, count: int) -> None:
    driver = storage.NodeDriver(name="csi", allocatable=storage.DriverLimit(count=count))
    about, spec = meta.ObjectMeta(name=node), storage.CSINodeSpec(drivers=(driver,))
    await plane.store.create(storage.CSINode(metadata=about, spec=spec))


async def _add_attached(plane: Plane, name: str) -> None:
    """Add a volume that a driver attaches anywhere, and a claim bound to it."""
    csi = storage.CSIVolume(driver="csi", volume_handle=name)
    about = meta.ObjectMeta(name=name)
    await plane.store.create(storage.PersistentVolume(metadata=about, spec=storage.VolumeSpec(csi=csi)))
    await _add_claim(plane, name, _FIXED, volume=name)


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_a_node_attaches_no_more_volumes_than_its_driver_says(policy: str) -> None:
    plane = await _prepare(policy)
    await _limit(plane, "a", 1)
    await _limit(plane, "b", 1)
    for name in ("one", "two", "three"):
        await _add_attached(plane, name)
    async with plane.running():
        await plane.add_pod("p", 1, **_using("one"))
        assert await plane.until_bound(["p"]) == {"p": "a"}
        await plane.add_pod("same", 1, **_using("one"))
        assert (await plane.until_bound(["same"]))["same"] == "a"  # it is attached there already
        await plane.add_pod("q", 1, **_using("two"))
        assert (await plane.until_bound(["q"]))["q"] == "b"
        await plane.add_pod("r", 1, **_using("three"))
        await plane.until_said("r", "2 node(s) exceed max volume count")
        await plane.end("q")
        assert (await plane.until_bound(["r"]))["r"] == "b"


async def test_a_limit_that_is_raised_lets_a_pod_in_that_waits() -> None:
    plane = await _prepare()
    await _limit(plane, "a", 0)
    await _limit(plane, "b", 0)
    await _add_attached(plane, "one")
    async with plane.running():
        await plane.add_pod("p", 1, **_using("one"))
        await plane.until_said("p", "2 node(s) exceed max volume count")
        found = await plane.store.get(storage.CSINode, "b")
        driver = storage.NodeDriver(name="csi", allocatable=storage.DriverLimit(count=3))
        await plane.store.update(msgspec.structs.replace(found, spec=storage.CSINodeSpec(drivers=(driver,))))
        assert await plane.until_bound(["p"]) == {"p": "b"}

"""Volumes that a node can attach, counted as claims and volumes come; and why a pod's claims keep it waiting."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.schedule.constraint import Refusal
from fairlead.plan.schedule.volume import claims, wanted
from fairlead.plan.schedule.volume.volumes import NAME
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage
from tests.unit.plan.schedule.cache.test_scheduler_cache import World, _node

DISK = storage.StorageClass(metadata=meta.ObjectMeta(name="disk"), provisioner="csi.example")


def pod(uid: str, *names: str, node: str = "") -> core.Pod:
    found = tuple(core.Volume(name=name, persistent_volume_claim=core.ClaimVolume(claim_name=name)) for name in names)
    return core.Pod(
        metadata=meta.ObjectMeta(name=uid, namespace="d", uid=uid),
        spec=core.PodSpec(
            containers=(core.Container(name="c"),), volumes=found, node_name=node, scheduler_name="fairlead"
        ),
    )


def claim(name: str, volume: str = "", **more: object) -> core.PersistentVolumeClaim:
    spec = core.ClaimSpec(storage_class_name="disk", volume_name=volume)
    about = msgspec.convert({"name": name, "namespace": "d", "uid": f"uid-{name}", **more}, meta.ObjectMeta)
    return core.PersistentVolumeClaim(metadata=about, spec=spec)


def volume(name: str, handle: str = "", **more: Any) -> storage.PersistentVolume:
    made = storage.CSIVolume(driver="csi.example", volume_handle=handle) if handle else None
    spec = msgspec.structs.replace(storage.VolumeSpec(csi=made, storage_class_name="disk"), **more)
    return storage.PersistentVolume(metadata=meta.ObjectMeta(name=name), spec=spec)


def limit(name: str, count: int | None) -> storage.CSINode:
    drivers = [{"name": "csi.example", "allocatable": {"count": count} if count is not None else None}]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, storage.CSINode)


def note(world: World, item: claims.Object, *, is_gone: bool = False) -> None:
    world.cache.note_for(world.cache.constraints[NAME], item, is_gone=is_gone)


def attached(world: World, name: str = "a") -> set[tuple[str, str]]:
    return set(world.views()[name].taken_for.get(NAME, ()))


def test_a_pods_volumes_are_counted_anew_as_its_claims_are_bound() -> None:
    world = World()
    world.cache.note_node(_node("a"))
    note(world, DISK)
    note(world, claim("data"))
    world.cache.note_pod(pod("one", "data", "unknown", node="a"))
    world.cache.note_pod(pod("plain", node="a"))
    assert attached(world) == set()  # no node says what it can attach
    note(world, limit("a", 2))
    assert world.views()["a"].limits == {NAME: {"csi.example": 2}}
    assert attached(world) == {("csi.example", "d/data")}  # yet to be made
    note(world, volume("v", "handle"))
    note(world, claim("data", "v"))
    assert attached(world) == {("csi.example", "handle")}
    note(world, volume("v"))
    assert attached(world) == set()  # of no driver
    note(world, limit("a", None))
    assert world.views()["a"].limits == {}
    note(world, limit("elsewhere", 1))
    assert set(world.views()) == {"a"}
    note(world, limit("a", 2), is_gone=True)
    assert world.views()["a"].limits == {}


def test_a_pod_that_goes_with_its_claim_has_others_looked_at() -> None:
    world = World()
    world.cache.note_node(_node("a"))
    world.cache.note_pod(pod("one", "data", node="a"))
    world.cache.note_pod(pod("two", "data"))
    world.cache.expire()
    world.cache.note_pod(pod("one", "data", node="a"), is_gone=True)
    assert set(world.cache.expire()) == {"two"}
    assert world.cache.expire() == ()


def known(*items: claims.Object, users: tuple[core.Pod, ...] = ()) -> claims.Claims:
    made = claims.Claims(lambda _: users)
    for one in items:
        made.note(one)
    return made


_BOUND = {storage.BIND_COMPLETED: "yes"}
_LATE = msgspec.structs.replace(DISK, volume_binding_mode=storage.FIRST_CONSUMER)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (known(), 'persistentvolumeclaim "data" not found, and none is known: may they be listed?'),
        (known(claim("other")), 'persistentvolumeclaim "data" not found'),
        (known(claim("data", deletionTimestamp="2026-01-01T00:00:00Z")), "is being deleted"),
        (known(claim("data", "v", annotations=_BOUND)), 'bound to non-existent persistentvolume "v"'),
        (known(claim("data")), "unbound immediate PersistentVolumeClaims"),
        (known(claim("data"), DISK), "unbound immediate PersistentVolumeClaims"),
        (known(claim("data", "v"), _LATE), "unbound immediate PersistentVolumeClaims"),
    ],
)
def test_what_keeps_a_pod_from_its_claim_is_said_in_the_clusters_words(found: claims.Claims, why: str) -> None:
    said = found.look_up(pod("p", "data"))
    assert isinstance(said, Refusal)
    assert why in said.why


@pytest.mark.parametrize(("phase", "waits_on"), [("Pending", "a"), ("Bound", "a"), ("", "a"), ("Lost", None)])
def test_a_claim_heard_of_before_the_volume_made_for_it_keeps_its_node_unless_the_volume_is_lost(
    phase: str, waits_on: str | None
) -> None:
    made = claim("data", "v", annotations={**_BOUND, storage.SELECTED_NODE: "a"})
    made = msgspec.structs.replace(made, status=core.ClaimStatus(phase=phase))
    found = known(made, _LATE)
    said = found.look_up(pod("p", "data"))
    if waits_on is None:
        assert said == Refusal('persistentvolumeclaim "data" bound to non-existent persistentvolume "v"')
    else:
        assert said == (wanted.Unbound("data", node=waits_on),)
    found.note(volume("v"))
    assert found.look_up(pod("p", "data")) == (wanted.Bound(core.NodeAffinity(), ()),)


def test_a_claim_of_one_pod_alone_is_in_use_while_another_has_it() -> None:
    alone = claim("data")
    alone = msgspec.structs.replace(alone, spec=msgspec.structs.replace(alone.spec, access_modes=("ReadWriteOncePod",)))
    for other, waits in (("data", True), ("x", False)):
        said = known(alone, _LATE, users=(pod("q", other, node="a"),)).look_up(pod("p", "data"))
        assert isinstance(said, Refusal) is waits


def test_a_claim_made_for_a_pod_is_that_pods() -> None:
    made = core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace="d", uid="p"),
        spec=msgspec.convert({"volumes": [{"name": "x", "ephemeral": {"volumeClaimTemplate": {}}}]}, core.PodSpec),
    )
    mine = claim("p-x", ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"}])
    assert isinstance(known(claim("p-x"), _LATE).look_up(made), Refusal)
    assert not isinstance(known(mine, _LATE).look_up(made), Refusal)


@pytest.mark.parametrize(
    ("more", "takes"),
    [
        ({}, True),
        ({"volume_mode": "Block"}, False),
        ({"storage_class_name": "other"}, False),
        ({"claim_ref": core.ObjectReference(namespace="d", name="other", uid="x")}, False),
        ({"claim_ref": core.ObjectReference(namespace="d", name="data", uid="uid-data")}, True),
        ({"claim_ref": core.ObjectReference(namespace="d", name="data", uid="an older one's")}, False),
        ({"capacity": {"storage": "not a number"}}, True),
    ],
)
def test_only_a_volume_that_would_do_is_taken(more: dict[str, Any], takes: bool) -> None:
    by_hand = msgspec.structs.replace(_LATE, provisioner="kubernetes.io/no-provisioner")
    looked = known(claim("data"), by_hand, volume("v", **more)).look_up(pod("p", "data"))
    assert not isinstance(looked, Refusal)
    assert wanted.chosen(looked, name="n", labels={}) == ({"data": "v"} if takes else None)

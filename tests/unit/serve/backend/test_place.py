"""Places: what is made by whom, in which namespace, and by which rules."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.pod import tenantrule
from fairlead.serve.backend import place
from fairlead.serve.backend.containers.lifecycle import LocalLifecycle
from fairlead.serve.backend.tenancy import member, own
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy, TenancyStatus
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.devicechange import PodReplacementSpec

RED = Tenancy(
    metadata=meta.ObjectMeta(name="red", uid="0f990600-0000-0000-0000-000000000000", generation=1),
    status=TenancyStatus(observed_generation=1, conditions=(meta.Condition(type=kind.READY, status="True"),)),
)


def pod(namespace: str = "default", *, host: str = "", mark: bool = False) -> core.Pod:
    folders = (core.Volume(name="host", host_path=core.HostPathVolume(path=host)),) if host else ()
    about = meta.ObjectMeta(name="train", namespace=namespace, annotations={names.TENANT: namespace} if mark else {})
    return core.Pod(
        metadata=about, spec=core.PodSpec(containers=(core.Container(name="main", image="demo"),), volumes=folders)
    )


async def test_the_pod_of_a_tenancys_member_is_marked_as_a_tenants() -> None:
    """The mark is what the kubelet goes by, who tells no tenant which process of the machine has a port."""
    there = place.Within(part=member.Member(allowed={"t-red": RED}, forbidden={})).new("")
    store = MemoryStore()
    made = await LocalLifecycle(store=store).submit(there.submission(pod()))
    assert (made.metadata.namespace, made.metadata.annotations[names.TENANT]) == ("t-red", "t-red")
    assert [one.metadata.name for one in (await store.list(core.Namespace)).items] == []


async def test_the_namespace_of_a_user_is_made_with_the_first_pod_as_a_tenants() -> None:
    there = place.Within(part=own.User(uid=1000, most_devices=2)).new("default")
    store = MemoryStore()
    await LocalLifecycle(store=store).submit(there.submission(pod()))
    (made,) = (await store.list(core.Namespace)).items
    assert (made.metadata.name, made.metadata.labels[tenantrule.TENANCY]) == ("user-1000", "user-1000")
    assert there.most_devices == 2


def test_a_callers_rule_is_asked_before_anything_is_submitted() -> None:
    for part in (own.User(uid=1000, most_devices=0), member.Member(allowed={"t-red": RED}, forbidden={})):
        with pytest.raises(errors.Denied) as refused:
            place.Within(part=part).new("").submission(pod(host="/etc"))
        assert refused.value.reason == "UserPodForbidden"
    assert place.Everywhere().new("default").submission(pod(host="/etc")).pod == pod(host="/etc")


def test_nobody_makes_something_in_a_namespace_of_others() -> None:
    with pytest.raises(errors.Denied):
        place.Within(part=own.User(uid=1000, most_devices=0)).new("user-1001")
    with pytest.raises(errors.NotFound):
        place.Within(part=member.Member(allowed={"t-red": RED}, forbidden={})).new("t-blue")


@pytest.mark.parametrize("is_tenants", [False, True])
def test_a_tenants_pod_stays_one_when_root_restarts_it(is_tenants: bool) -> None:
    old = pod(mark=is_tenants)
    assert place.Everywhere().again(old).is_tenants is is_tenants
    kept = place.recorded(PodReplacementSpec(pod_uid="1", pod=pod(), is_tenants=is_tenants, most_devices=3))
    assert (kept.place.is_tenants, kept.place.most_devices, kept.place.namespace) == (is_tenants, 3, "default")


async def test_a_pod_that_asks_for_a_slot_of_no_partitions_size_is_told_which_there_are() -> None:
    store = MemoryStore()
    capacity = {"nvidia.com/h100-x1": "8", "nvidia.com/h100-x2": "4", "nvidia.com/h100-x4": "2"}
    node = core.Node(metadata=meta.ObjectMeta(name="n"), status=core.NodeStatus(capacity=capacity))
    await store.create(node)
    limits = core.ResourceRequirements(limits={"nvidia.com/h100-x3": "1"})
    asking = core.PodSpec(containers=(core.Container(name="main", image="demo", resources=limits),))
    asked = msgspec.structs.replace(pod(), spec=asking)
    with pytest.raises(errors.Invalid, match="no NVLink partition has 3 GPUs") as refused:
        await LocalLifecycle(store=store).submit(place.Everywhere().new("default").submission(asked))
    assert "ask for 2 or 4" in str(refused.value.hint)

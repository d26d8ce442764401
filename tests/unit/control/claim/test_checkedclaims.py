"""Claims that a scheduler makes on one machine pass no quota of their namespace, and nothing else is held up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from fairlead import errors
from fairlead.control.claim.checkedclaims import CheckedClaims
from fairlead.plan.dra import deviceclass
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Change, Selector
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.request import DeviceClaim, DeviceRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import EXTENDED_RESOURCE_CLAIM, ResourceClaim, ResourceClaimSpec

_CLASS = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"


def _claim(name: str, count: int, namespace: str = "team") -> ResourceClaim:
    exactly = ExactDeviceRequest(device_class_name="gpu.nvidia.com", allocation_mode="ExactCount", count=count)
    request = DeviceRequest(name="r", exactly=exactly)
    about = meta.ObjectMeta(name=name, namespace=namespace)
    return ResourceClaim(metadata=about, spec=ResourceClaimSpec(devices=DeviceClaim(requests=(request,))))


async def test_a_claim_that_no_quota_has_room_for_is_refused_and_not_stored() -> None:
    inner = MemoryStore()
    store = CheckedClaims(inner)
    hard = core.ResourceQuotaSpec(hard={_CLASS: "3"})
    await store.create(core.ResourceQuota(metadata=meta.ObjectMeta(name="q", namespace="team"), spec=hard))
    await store.create(_claim("one", 2))
    with pytest.raises(errors.Denied, match=r"exceeded quota: q, requested: .*=2, used: .*=2, limited: .*=3"):
        await store.create(_claim("two", 2))
    await store.create(_claim("other", 8, "elsewhere"))
    assert [one.metadata.name for one in (await inner.list(ResourceClaim, Selector(namespace="team"))).items] == ["one"]


async def test_a_user_of_the_machine_has_so_many_devices_by_claims_however_they_are_asked_for() -> None:
    store = CheckedClaims(MemoryStore(), user_devices=4)
    await store.create(_claim("one", 3, "user-1000"))
    with pytest.raises(errors.Denied, match=r"api\.user_gpus"):
        await store.create(_claim("two", 2, "user-1000"))
    await store.create(_claim("many", 32, "team"))


async def test_everything_else_goes_to_the_store_as_it_is() -> None:
    store = CheckedClaims(MemoryStore())
    about = meta.ObjectMeta(name="p", namespace="team")
    pod = await store.create(core.Pod(metadata=about))
    status = core.PodStatus(phase="Running")
    pod = await store.patch(pod, core.Pod(metadata=pod.metadata, spec=pod.spec, status=status), is_status=True)
    assert (await store.get(core.Pod, "p", "team")).status.phase == "Running"
    pod = await store.update_status(
        core.Pod(metadata=pod.metadata, spec=pod.spec, status=core.PodStatus(phase="Failed"))
    )
    await store.update(pod)
    assert (await store.apply(core.Pod(metadata=about), manager="m")).metadata.name == "p"
    assert [change.object.metadata.name async for change in _first(store)] == ["p"]
    await store.delete(core.Pod, "p", "team", grace_s=0)
    assert (await store.list(core.Pod)).items == ()


async def _first(store: CheckedClaims) -> AsyncIterator[Change[core.Pod]]:
    async for change in store.watch(core.Pod):
        yield change
        return


_GPU = "nvidia.com/gpu"


async def _with_quota(limit: int) -> CheckedClaims:
    store = CheckedClaims(MemoryStore())
    for one in deviceclass.classes(_GPU):
        await store.create(one)
    hard = core.ResourceQuotaSpec(hard={f"requests.{_GPU}": str(limit)})
    await store.create(core.ResourceQuota(metadata=meta.ObjectMeta(name="q", namespace="team"), spec=hard))
    return store


async def _add_pod(store: CheckedClaims, name: str, gpus: int) -> core.Pod:
    wanted = core.ResourceRequirements(limits={_GPU: gpus}, requests={_GPU: gpus})
    spec = core.PodSpec(containers=(core.Container(name="main", resources=wanted),))
    return await store.create(core.Pod(metadata=meta.ObjectMeta(name=name, namespace="team"), spec=spec))


async def test_claims_and_pods_take_of_one_resource_together() -> None:
    store = await _with_quota(4)
    await _add_pod(store, "p", 2)
    await store.create(_claim("two", 2))
    words = r"exceeded quota: q, requested: requests\.nvidia\.com/gpu=1, used: .*=4, limited: .*=4"
    with pytest.raises(errors.Denied, match=words):
        await store.create(_claim("more", 1))
    await store.create(_claim("elsewhere", 8, "other"))


@pytest.mark.parametrize("of_class", ["gpu.nvidia.com", "mig.nvidia.com"])
async def test_only_devices_of_the_class_that_stands_for_a_resource_count_as_it(of_class: str) -> None:
    store = await _with_quota(1)
    exactly = ExactDeviceRequest(device_class_name=of_class, allocation_mode="ExactCount", count=2)
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=(DeviceRequest(name="r", exactly=exactly),)))
    claim = ResourceClaim(metadata=meta.ObjectMeta(name="c", namespace="team"), spec=spec)
    if of_class == "mig.nvidia.com":
        await store.create(claim)
        return
    with pytest.raises(errors.Denied):
        await store.create(claim)


def _for(pod: core.Pod, count: int) -> ResourceClaim:
    bare = _claim(f"{pod.metadata.name}-extended", count)
    owner = meta.OwnerReference(
        api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True
    )
    about = msgspec.structs.replace(
        bare.metadata, annotations={EXTENDED_RESOURCE_CLAIM: "true"}, owner_references=(owner,)
    )
    return msgspec.structs.replace(bare, metadata=about)


async def test_the_claim_that_meets_a_pods_requests_counts_once_with_its_pod() -> None:
    store = await _with_quota(4)
    pod = await _add_pod(store, "p", 4)
    await store.create(_for(pod, 4))
    with pytest.raises(errors.Denied):
        await store.create(_claim("more", 1))


async def test_the_claim_of_a_pod_that_asked_by_the_class_itself_counts() -> None:
    store = await _with_quota(4)
    pod = await _add_pod(store, "p", 0)
    with pytest.raises(errors.Denied, match="=8, used"):
        await store.create(_for(pod, 8))


async def test_a_pod_waits_whose_gpus_claims_have_taken_of_the_quota_meanwhile() -> None:
    store = await _with_quota(4)
    await store.create(_claim("first", 3))
    pod = await _add_pod(store, "p", 2)  # a pod's own check counts pods
    with pytest.raises(errors.Denied, match=r"used: .*=5, limited: .*=4"):
        await store.create(_for(pod, 2))

"""Claims that a scheduler makes on one machine pass no quota of their namespace, and nothing else is held up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead import errors
from fairlead.control.claim.checkedclaims import CheckedClaims
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Change, Selector
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.request import DeviceClaim, DeviceRequest, ExactDeviceRequest
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec

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

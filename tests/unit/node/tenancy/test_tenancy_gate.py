"""What holds a pod of a tenancy back on one machine: its tenancy's state, read from the store."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.node.tenancy import gate
from fairlead.plan.tenancy import baseline
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def pod(namespace: str) -> core.Pod:
    return core.Pod(metadata=meta.ObjectMeta(name="train", namespace=namespace))


async def made(store: MemoryStore, *, is_ready: bool = True) -> Tenancy:
    item = await store.create(Tenancy(metadata=meta.ObjectMeta(name="red", finalizers=(kind.FINALIZER,))))
    await store.create(baseline.namespace(item))
    if not is_ready:
        return item
    parts = (kind.NAMESPACE_READY, kind.NETWORK_ISOLATED, kind.QUOTA_APPLIED)
    good = {one: baseline.condition(item, one, None, good="Good") for one in parts}
    return await store.update_status(
        Tenancy(metadata=item.metadata, status=baseline.status(item, good, kind.NetworkStatus()))
    )


async def test_a_pod_of_a_plain_namespace_is_of_no_tenancy(store: MemoryStore) -> None:
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name="plain")))
    assert await gate.find(store, pod("plain")) is None
    assert await gate.find(store, pod("never-made")) is None


async def test_a_ready_tenancy_lets_its_pods_through(store: MemoryStore) -> None:
    item = await made(store)
    found = await gate.find(store, pod(baseline.namespace_name(item)))
    assert found is not None
    assert found.metadata.name == "red"


async def test_a_tenancy_that_is_not_ready_is_waited_for(store: MemoryStore) -> None:
    item = await made(store, is_ready=False)
    with pytest.raises(errors.Unavailable) as caught:
        await gate.find(store, pod(baseline.namespace_name(item)))
    assert caught.value.reason in gate.PATIENT


async def test_a_suspended_or_ending_tenancy_ends_the_try(store: MemoryStore) -> None:
    item = await made(store)
    namespace = baseline.namespace_name(item)
    await store.update(baseline.with_suspended(item, suspended=True))
    with pytest.raises(errors.Denied) as caught:
        await gate.find(store, pod(namespace))
    assert caught.value.reason == "TenancySuspended"
    assert caught.value.reason not in gate.PATIENT
    await store.delete(Tenancy, "red")
    with pytest.raises(errors.Denied, match="is being deleted"):
        await gate.find(store, pod(namespace))


async def test_a_namespace_whose_tenancy_is_gone_takes_no_pod(store: MemoryStore) -> None:
    with pytest.raises(errors.Denied) as caught:  # without its namespace it is no plain pod either
        await gate.find(store, pod("t-red-123456"))
    assert caught.value.reason == "TenancyGone"
    assert await gate.find(store, pod("nowhere")) is None
    gone = core.Namespace(metadata=meta.ObjectMeta(name="t-red-123456", labels={baseline.UID: "gone"}))
    await store.create(gone)
    with pytest.raises(errors.Denied) as caught:
        await gate.find(store, pod("t-red-123456"))
    assert caught.value.reason == "TenancyGone"

"""Tenancies on a cluster: policies before the namespace opens, and what is not enforced is not called isolated."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fairlead import errors
from fairlead.control.tenancy import cluster
from fairlead.control.tenancy.tenancy import Tenancies
from fairlead.plan.tenancy import baseline, policy
from fairlead.settings import ControlSettings
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, gpudevice, gpulease, meta, networking, workload

_CALICO = {"projectcalico.org/IPv4Address": "192.168.5.1/24"}


class Recorded(MemoryStore):
    """A store that notes what is written, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def apply(self, item, *, manager):  # type: ignore[no-untyped-def]
        state = item.metadata.annotations.get(baseline.STATE, "")
        self.written.append(f"{item.KIND} {item.metadata.name}{f' {state}' if state else ''}")
        return await super().apply(item, manager=manager)


@pytest.fixture
def store() -> Recorded:
    return Recorded()


def keeper(store: Recorded, enforcer: str = "auto") -> Tenancies:
    networks = cluster.ClusterNetworks(store, enforcer=enforcer, networks=("10.96.0.0/12",))
    limits = ControlSettings(tenancy_pods=0, tenancy_volumes=0)
    return Tenancies(store, networks, cluster.ClusterPossessions(store), control=limits, follows_pods=False)


async def made(store: Recorded, **spec: object) -> Tenancy:
    about = meta.ObjectMeta(name="red")
    return await store.create(Tenancy(metadata=about, spec=kind.TenancySpec(**spec)))  # type: ignore[arg-type]


async def with_node(store: Recorded, annotations: dict[str, str]) -> None:
    await store.create(core.Node(metadata=meta.ObjectMeta(name="n1", annotations=annotations)))


async def with_cilium(store: Recorded) -> None:
    about = meta.ObjectMeta(name="ciliumnetworkpolicies.cilium.io")
    await store.create(workload.CustomResourceDefinition(metadata=about))


def state_of(space: core.Namespace) -> str:
    return space.metadata.annotations[baseline.STATE]


async def test_everything_stands_before_the_namespace_says_that_it_is_ready(store: Recorded) -> None:
    await with_node(store, _CALICO)
    limits = kind.ContainerLimits(default={"memory": "1Gi"}, max={"memory": "4Gi"})
    item = await made(store, quota={"pods": "3"}, containers=limits)
    await keeper(store).reconcile("red")

    found = await store.get(Tenancy, "red")
    assert found.status.phase == kind.READY
    assert found.status.network.enforced_by == "Calico"
    assert found.metadata.finalizers == (kind.FINALIZER,)
    space = baseline.namespace_name(item)
    assert store.written == [
        f"Namespace {space} Pending",
        "NetworkPolicy tenancy-closed",
        "NetworkPolicy tenancy",
        "ServiceAccount default",
        "LimitRange tenancy",
        "ResourceQuota tenancy",
        f"Namespace {space} Ready",
    ]
    account = await store.get(core.ServiceAccount, "default", space)
    assert account.automount_service_account_token is False
    (limit,) = (await store.get(core.LimitRange, "tenancy", space)).spec.limits
    assert (limit.type, limit.default, limit.max) == ("Container", {"memory": "1Gi"}, {"memory": "4Gi"})


async def test_where_nothing_enforces_the_policies_they_are_stored_and_it_is_not_called_isolated(
    store: Recorded,
) -> None:
    await with_node(store, {})
    item = await made(store)
    await keeper(store).reconcile("red")

    found = await store.get(Tenancy, "red")
    ready = meta.find_condition(found.status.conditions, kind.READY)
    assert found.status.phase == kind.PENDING
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "NotEnforced")
    assert "nothing is known to enforce them on n1" in ready.message
    space = baseline.namespace_name(item)
    assert len((await store.list(networking.NetworkPolicy)).items) == 2
    assert state_of(await store.get(core.Namespace, space)) == kind.PENDING
    refused = baseline.refusal(found)
    assert refused is not None
    assert refused.reason == "TenancyNotReady"


async def test_a_tenancy_that_nodes_stop_to_isolate_is_closed_again(
    store: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "FRESH_S", -1.0)
    await with_node(store, _CALICO)
    item = await made(store)
    one = keeper(store)
    await one.reconcile("red")
    await store.create(core.Node(metadata=meta.ObjectMeta(name="n2")))
    await one.reconcile("red")
    assert state_of(await store.get(core.Namespace, baseline.namespace_name(item))) == kind.PENDING
    assert (await store.get(Tenancy, "red")).status.phase == kind.PENDING


async def test_ciliums_kinds_are_applied_only_where_they_are_served(store: Recorded) -> None:
    await with_node(store, {})
    item = await made(store)
    await keeper(store, "networkpolicy").reconcile("red")
    assert (await store.list(networking.CiliumNetworkPolicy)).items == ()

    await with_cilium(store)
    await keeper(store, "cilium").reconcile("red")
    (clusterwide,) = (await store.list(networking.CiliumClusterwideNetworkPolicy)).items
    assert clusterwide.metadata.name == baseline.namespace_name(item)
    assert (await store.get(Tenancy, "red")).status.network.enforced_by == "Cilium"


async def test_a_policy_of_somebody_else_keeps_a_tenancy_from_being_ready(store: Recorded) -> None:
    await with_node(store, _CALICO)
    item = await made(store)
    about = meta.ObjectMeta(name="open", namespace=baseline.namespace_name(item))
    spec = networking.NetworkPolicySpec(pod_selector=meta.LabelSelector(), policy_types=("Ingress",))
    await store.create(networking.NetworkPolicy(metadata=about, spec=spec))
    await keeper(store).reconcile("red")
    refused = baseline.refusal(await store.get(Tenancy, "red"))
    assert refused is not None
    assert "policies that are not ours may open" in refused.message
    assert policy.NAMES.isdisjoint({"open"})


async def test_a_policy_that_was_deleted_or_changed_is_written_anew(store: Recorded) -> None:
    await with_node(store, _CALICO)
    item = await made(store)
    one, space = keeper(store), baseline.namespace_name(item)
    await one.reconcile("red")
    await store.delete(networking.NetworkPolicy, policy.CLOSED, space)
    opened = await store.get(networking.NetworkPolicy, policy.OPEN, space)
    wide = msgspec.structs.replace(opened.spec, ingress=(networking.NetworkPolicyIngressRule(),))
    await store.update(msgspec.structs.replace(opened, spec=wide))
    await one.reconcile("red")
    await store.get(networking.NetworkPolicy, policy.CLOSED, space)
    assert (await store.get(networking.NetworkPolicy, policy.OPEN, space)).spec == opened.spec


async def test_a_network_of_the_cluster_that_the_spec_allows_is_refused_by_name(store: Recorded) -> None:
    await with_node(store, _CALICO)
    await made(store, network=kind.TenancyNetwork(egress=("10.96.0.0/16",)))
    await keeper(store).reconcile("red")
    ready = meta.find_condition((await store.get(Tenancy, "red")).status.conditions, kind.READY)
    assert ready is not None
    assert ready.reason == "EgressDenied"


async def test_suspending_closes_the_namespace_and_deletes_its_pods(store: Recorded) -> None:
    await with_node(store, _CALICO)
    item = await made(store)
    one, space = keeper(store), baseline.namespace_name(item)
    await one.reconcile("red")
    await store.create(core.Pod(metadata=meta.ObjectMeta(name="train", namespace=space)))
    await store.update(baseline.with_suspended(await store.get(Tenancy, "red"), suspended=True))
    await one.reconcile("red")
    assert state_of(await store.get(core.Namespace, space)) == kind.SUSPENDED
    assert (await store.list(core.Pod)).items == ()


async def test_the_end_closes_the_namespace_first_and_waits_for_gpus_that_are_still_held(store: Recorded) -> None:
    await with_node(store, _CALICO)
    await with_cilium(store)
    item = await made(store)
    one, space = keeper(store), baseline.namespace_name(item)
    await one.reconcile("red")
    holder = gpudevice.Holder(namespace=space, pod="train")
    spec = gpulease.GPULeaseSpec(node_name="n1", gpu="GPU-1", gpu_device="one", epoch=3, held_at=meta.now())
    lease = await store.create(gpulease.GPULease(metadata=meta.ObjectMeta(name="one"), spec=spec))
    told = gpulease.GPULeaseStatus(state=gpulease.RELEASING, holders=(holder,))
    lease = await store.update_status(msgspec.structs.replace(lease, status=told))

    await store.delete(Tenancy, "red")
    await one.reconcile("red")
    assert state_of(await store.get(core.Namespace, space)) == kind.TERMINATING
    ready = meta.find_condition((await store.get(Tenancy, "red")).status.conditions, kind.READY)
    assert ready is not None
    assert ready.reason == "GPUsUnverified"

    ended = msgspec.structs.replace(told, state=gpulease.VERIFIED)
    await store.update_status(msgspec.structs.replace(lease, status=ended))
    for _ in range(3):
        with_left = (await store.list(Tenancy)).items
        if not with_left:
            break
        await one.reconcile("red")
    assert (await store.list(Tenancy)).items == ()
    assert (await store.list(core.Namespace)).items == ()
    assert (await store.list(networking.CiliumClusterwideNetworkPolicy)).items == ()


async def test_clusterwide_policies_of_tenancies_that_are_gone_are_swept(store: Recorded) -> None:
    await with_cilium(store)
    about = meta.ObjectMeta(name="t-old-123456", labels={baseline.UID: "gone"})
    rule = networking.CiliumRule(endpoint_selector=meta.LabelSelector())
    await store.create(networking.CiliumClusterwideNetworkPolicy(metadata=about, spec=rule))
    other = meta.ObjectMeta(name="of-somebody-else")
    await store.create(networking.CiliumClusterwideNetworkPolicy(metadata=other, spec=rule))
    await cluster.ClusterNetworks(store).sweep(())
    left = (await store.list(networking.CiliumClusterwideNetworkPolicy)).items
    assert [one.metadata.name for one in left] == ["of-somebody-else"]


def test_networks_of_the_setting_are_checked() -> None:
    assert cluster.networks_of("10.96.0.0/12, 2001:db8::/48,") == ("10.96.0.0/12", "2001:db8::/48")
    with pytest.raises(errors.Invalid, match="tenancy_networks"):
        cluster.networks_of("10.96.0.1/12")


async def test_the_reconcile_is_asked_for_again(store: Recorded) -> None:
    await made(store)
    assert await asyncio.wait_for(keeper(store).reconcile("red"), 1) == 10.0

"""Tenancies: isolated before they are ready, emptied before they are gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.control import manager
from fairlead.control.tenancy.tenancy import Tenancies
from fairlead.plan.tenancy import baseline
from fairlead.settings import ControlSettings
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import NetworkStatus, Tenancy
from fairlead.wire.kubernetes import core, meta


class Place:
    """`control.tenancy.port.Network` and `Possessions` that note what they are asked, in its order."""

    def __init__(self) -> None:
        self.problem: errors.FairleadError | None = None
        self.in_use: errors.FairleadError | None = None
        """Why what no tenancy has cannot be removed."""
        self.export_problem: errors.FairleadError | None = None
        self.sweeps = 0
        self.swept = asyncio.Event()
        self.unverified: tuple[str, ...] = ()
        self.networks: set[str] = set()
        self.done: list[str] = []
        self.stopped = asyncio.Event()

    async def ensure(self, item: Tenancy, every: Sequence[Tenancy]) -> NetworkStatus:
        assert item.metadata.uid in {one.metadata.uid for one in every}
        if self.problem is not None:
            raise self.problem
        self.networks.add(item.metadata.uid)
        return NetworkStatus(name=f"fl-{item.metadata.uid}", interface="podman7")

    async def remove(self, uid: str, every: Sequence[Tenancy]) -> None:
        assert uid not in {one.metadata.uid for one in every}
        self.networks.discard(uid)
        self.done.append("network")

    async def sweep(self, every: Sequence[Tenancy]) -> None:
        self.sweeps += 1
        if self.in_use is not None:
            raise self.in_use
        self.networks &= {one.metadata.uid for one in every}
        self.swept.set()

    async def mount_volumes(self, item: Tenancy) -> str:
        await self.reach_volumes(item)
        return "Mounted"

    async def reach_volumes(self, item: Tenancy) -> None:
        if self.export_problem is not None:
            raise self.export_problem
        if item.spec.storage.nfs is not None:
            self.done.append("mount")

    async def unmount_volumes(self, namespace: str) -> None:
        assert namespace
        if "mount" in self.done:
            self.done.append("unmount")

    async def remove_volumes(self, namespace: str) -> None:
        assert namespace
        self.done.append("volumes")

    async def forget_credentials(self, uid: str) -> None:
        assert uid
        self.done.append("credentials")

    async def stop(self, pod: core.Pod) -> None:
        self.done.append(f"stop {pod.metadata.name}")
        self.stopped.set()

    async def held_gpus(self, namespace: str) -> tuple[str, ...]:
        assert namespace
        return self.unverified


_LIMITS = ControlSettings(tenancy_resync_s=0.05, tenancy_pods=7, tenancy_volumes=5)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def place() -> Place:
    return Place()


@contextlib.asynccontextmanager
async def _running(store: MemoryStore, place: Place) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        keeper = Tenancies(store, place, place, control=_LIMITS)
        task = tasks.create_task(manager.run_controllers(store, (keeper,)))
        yield
        task.cancel()


async def _until(store: MemoryStore, phase: str, name: str = "alpha") -> Tenancy:
    async for change in store.watch(Tenancy):
        if change.object.metadata.name == name and change.object.status.phase == phase:
            return change.object
    raise AssertionError("a watch never ends")


async def _until_gone(store: MemoryStore, name: str = "alpha") -> None:
    while True:
        if all(one.metadata.name != name for one in (await store.list(Tenancy)).items):
            return
        await asyncio.sleep(0.01)


async def _make(store: MemoryStore, name: str = "alpha", **spec: object) -> Tenancy:
    about = meta.ObjectMeta(name=name, finalizers=(kind.FINALIZER,))
    return await store.create(Tenancy(metadata=about, spec=kind.TenancySpec(**spec)))  # type: ignore[arg-type]


async def _add_pod(store: MemoryStore, item: Tenancy, *, node: str = "") -> core.Pod:
    about = meta.ObjectMeta(name="train", namespace=baseline.namespace_name(item))
    return await store.create(core.Pod(metadata=about, spec=core.PodSpec(node_name=node)))


async def test_a_tenancy_gets_its_namespace_its_network_and_its_quota(store: MemoryStore, place: Place) -> None:
    async with _running(store, place):
        made = await _make(store, quota={"pods": "3"}, images=("registry/team/",))
        ready = await _until(store, kind.READY)
    space = await store.get(core.Namespace, baseline.namespace_name(made))
    quota = await store.get(core.ResourceQuota, baseline.QUOTA, space.metadata.name)
    assert ready.status.network.interface == "podman7"
    assert space.metadata.annotations["fairlead.dev/allowed-images"] == "registry/team/"
    assert quota.spec.hard == {"pods": "3", "persistentvolumeclaims": "5"}


@pytest.mark.parametrize(
    ("own", "hard"),
    [
        ({}, {"pods": "7", "persistentvolumeclaims": "5"}),
        (
            {"requests.nvidia.com/gpu": "2"},
            {"pods": "7", "persistentvolumeclaims": "5", "requests.nvidia.com/gpu": "2"},
        ),
        ({"count/pods": "900"}, {"count/pods": "900", "persistentvolumeclaims": "5"}),
        ({"persistentvolumeclaims": "900"}, {"pods": "7", "persistentvolumeclaims": "900"}),
        (
            {"count/persistentvolumeclaims": "900", "pods": "1"},
            {"count/persistentvolumeclaims": "900", "pods": "1"},
        ),
    ],
)
async def test_how_many_containers_and_volumes_a_tenancy_has_is_limited_where_it_says_nothing_of_them(
    store: MemoryStore, place: Place, own: dict[str, str], hard: dict[str, str]
) -> None:
    async with _running(store, place):
        made = await _make(store, quota=own)
        await _until(store, kind.READY)
    quota = await store.get(core.ResourceQuota, baseline.QUOTA, baseline.namespace_name(made))
    assert quota.spec.hard == hard


async def test_a_tenancy_whose_packets_cannot_be_filtered_is_never_ready_until_they_can(
    store: MemoryStore, place: Place
) -> None:
    place.problem = errors.Unavailable("iptables is missing", reason="NetfilterUnusable")
    async with _running(store, place):
        await _make(store)
        waiting = await _until(store, kind.PENDING)
        place.problem = None
        await _until(store, kind.READY)
    refused = baseline.refusal(waiting)
    assert refused is not None
    assert "iptables is missing" in refused.message


async def test_a_tenancy_is_not_ready_any_more_once_its_rules_are_gone(store: MemoryStore, place: Place) -> None:
    async with _running(store, place):
        await _make(store)
        await _until(store, kind.READY)
        place.problem = errors.Unavailable("flushed", reason="RulesNotInForce")
        await _until(store, kind.PENDING)


async def test_a_namespace_of_that_name_that_is_another_ones_is_not_adopted(store: MemoryStore, place: Place) -> None:
    made = await _make(store)
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=baseline.namespace_name(made))))
    async with _running(store, place):
        found = await _until(store, kind.PENDING)
        while (ready := meta.find_condition(found.status.conditions, kind.READY)) is None:
            found = await _until(store, kind.PENDING)
    assert ready.reason == "NamespaceTaken"
    assert place.networks == set()


async def test_a_suspended_tenancy_has_its_containers_stopped(store: MemoryStore, place: Place) -> None:
    async with _running(store, place):
        made = await _make(store)
        await _until(store, kind.READY)
        await _add_pod(store, made)
        fresh = await store.get(Tenancy, "alpha")
        await store.update(baseline.with_suspended(fresh, suspended=True))
        await _until(store, kind.SUSPENDED)
        await place.stopped.wait()


async def test_containers_then_gpus_then_volumes_then_the_network_end(store: MemoryStore, place: Place) -> None:
    place.unverified = ("GPU-1",)
    async with _running(store, place):
        made = await _make(store)
        await _until(store, kind.READY)
        pod = await _add_pod(store, made, node="one")
        await store.delete(Tenancy, "alpha")
        await _until(store, kind.TERMINATING)
        left = await store.get(core.Pod, "train", pod.metadata.namespace)
        while left.metadata.deletion_timestamp is None:
            await asyncio.sleep(0.01)
            left = await store.get(core.Pod, "train", pod.metadata.namespace)
        assert place.done == []
        await store.delete(core.Pod, "train", pod.metadata.namespace, grace_s=0)  # as its node does

        async for change in store.watch(Tenancy):
            ready = meta.find_condition(change.object.status.conditions, kind.READY)
            if ready is not None and ready.reason == "GPUsUnverified":
                break
        assert place.done == []
        place.unverified = ()
        await _until_gone(store)
    assert place.done == ["volumes", "network", "credentials"]
    with pytest.raises(errors.NotFound):
        await store.get(core.Namespace, pod.metadata.namespace)


async def test_a_tenancy_that_was_deleted_while_nobody_looked_is_ended_by_the_next_start(
    store: MemoryStore, place: Place
) -> None:
    async with _running(store, place):
        await _make(store)
        await _until(store, kind.READY)
    await store.delete(Tenancy, "alpha")
    async with _running(store, place):
        await _until_gone(store)
    assert place.networks == set()


async def test_networks_of_no_tenancy_are_swept(store: MemoryStore, place: Place) -> None:
    place.networks.add("nobody's")
    async with _running(store, place):
        made = await _make(store)
        await _until(store, kind.READY)
    assert place.networks == {made.metadata.uid}


async def test_a_network_of_no_tenancy_that_is_in_use_holds_up_nobody_and_is_said_once(
    store: MemoryStore, place: Place
) -> None:
    place.networks.add("lost")
    place.in_use = errors.Unavailable("device or resource busy", reason="NetworkUnusable")
    with capture_logs() as logged:
        async with _running(store, place):
            await _make(store)
            await _until(store, kind.READY)
            await asyncio.sleep(0.2)
            assert place.sweeps == 1
            place.in_use = None
            await asyncio.wait_for(place.swept.wait(), 5)
            await asyncio.sleep(0.2)
    assert (place.sweeps, "lost" in place.networks) == (2, False)
    assert [one["reason"] for one in logged if one["event"] == "network of no tenancy stays"] == ["NetworkUnusable"]


_EXPORT = kind.TenancyStorage(nfs=kind.NFSExport(server="nas", path="/red"))


async def test_a_tenancy_whose_export_is_not_mounted_is_never_ready_until_it_is(
    store: MemoryStore, place: Place
) -> None:
    place.export_problem = errors.Unavailable("nas does not answer", reason="ExportSilent")
    async with _running(store, place):
        await _make(store, storage=_EXPORT)
        pending = await _until(store, kind.PENDING)
        found = meta.find_condition(pending.status.conditions, kind.VOLUMES_MOUNTED)
        assert found is not None
        assert (found.status, found.reason) == ("False", "ExportSilent")
        place.export_problem = None
        ready = await _until(store, kind.READY)
    assert "mount" in place.done
    found = meta.find_condition(ready.status.conditions, kind.VOLUMES_MOUNTED)
    assert found is not None
    assert found.status == "True"


async def test_the_export_is_there_while_volumes_are_removed_and_goes_after_them(
    store: MemoryStore, place: Place
) -> None:
    async with _running(store, place):
        made = await _make(store, storage=_EXPORT)
        await _until(store, kind.READY)
        place.done.clear()
        await store.delete(Tenancy, made.metadata.name)
        await _until_gone(store)
    order = [step for step in place.done if step in {"mount", "volumes", "unmount"}]
    assert order[-3:] == ["mount", "volumes", "unmount"]


async def test_a_spec_that_changed_meanwhile_is_not_called_ready_by_an_older_look(
    store: MemoryStore, place: Place
) -> None:
    made = await _make(store)
    keeper = Tenancies(store, place, place, control=_LIMITS)
    await keeper.reconcile("alpha")
    fresh = await store.get(Tenancy, "alpha")
    changed = await store.update(
        msgspec.structs.replace(fresh, spec=msgspec.structs.replace(made.spec, display_name="Team Alpha"))
    )
    assert baseline.is_ready(fresh)
    assert not baseline.is_ready(changed)

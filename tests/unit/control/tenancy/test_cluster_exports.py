"""NFS exports on a cluster: one volume for one claim, made anew when it was lost, gone with the tenancy."""

from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.control.tenancy import cluster
from fairlead.control.tenancy.tenancy import Tenancies
from fairlead.plan.tenancy import baseline, exportvolume
from fairlead.serve.backend.place import Everywhere
from fairlead.serve.backend.volumes import ClusterVolumes
from fairlead.settings import ControlSettings
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import NFSExport, Tenancy, TenancySpec, TenancyStorage
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage

_EXPORT = NFSExport(server="nas", path="/exports/red", options=("vers=4.2",))


class Place:
    """A controller over a store that has no volume binder; `bind` plays its part."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        networks = cluster.ClusterNetworks(self.store, enforcer="networkpolicy", networks=("10.96.0.0/12",))
        possessions = cluster.ClusterPossessions(self.store)
        control = ControlSettings(tenancy_pods=0, tenancy_volumes=0)
        self.keeper = Tenancies(self.store, networks, possessions, control=control, follows_pods=False)

    async def make(self, name: str = "red", found: NFSExport | None = _EXPORT) -> Tenancy:
        spec = TenancySpec(storage=TenancyStorage(nfs=found))
        item = await self.store.create(Tenancy(metadata=meta.ObjectMeta(name=name), spec=spec))
        await self.keeper.reconcile(name)
        return item

    async def volume(self, item: Tenancy) -> storage.PersistentVolume:
        return await self.store.get(storage.PersistentVolume, exportvolume.name(baseline.namespace_name(item)))

    async def claim(self, item: Tenancy) -> core.PersistentVolumeClaim:
        return await self.store.get(core.PersistentVolumeClaim, exportvolume.CLAIM, baseline.namespace_name(item))

    async def bind(self, item: Tenancy) -> None:
        claim, volume = await self.claim(item), await self.volume(item)
        await self.store.update_status(msgspec.structs.replace(claim, status=core.ClaimStatus(phase="Bound")))
        await self.store.update_status(msgspec.structs.replace(volume, status=storage.VolumeStatus(phase="Bound")))

    async def condition(self, name: str = "red") -> meta.Condition:
        found = meta.find_condition((await self.store.get(Tenancy, name)).status.conditions, kind.VOLUMES_MOUNTED)
        assert found is not None
        return found


async def test_an_export_is_a_volume_for_the_tenancys_claim_alone() -> None:
    place = Place()
    item = await place.make()
    volume, claim = await place.volume(item), await place.claim(item)
    space = baseline.namespace_name(item)
    assert volume.spec.nfs == storage.NFSVolume(server="nas", path="/exports/red")
    assert volume.spec.mount_options == ("vers=4.2", "nosuid", "nodev")
    assert volume.spec.access_modes == claim.spec.access_modes == ("ReadWriteMany",)
    assert volume.spec.persistent_volume_reclaim_policy == "Retain"
    assert volume.spec.claim_ref is not None
    assert (volume.spec.claim_ref.namespace, volume.spec.claim_ref.name) == (space, "export")
    assert (claim.spec.volume_name, claim.spec.storage_class_name) == (volume.metadata.name, "")
    assert '"storageClassName":""' in msgspec.json.encode(claim).decode()  # else a default class would take it


async def test_a_tenancy_is_ready_once_its_export_is_bound() -> None:
    place = Place()
    item = await place.make()
    found = await place.condition()
    assert (found.status, found.reason) == ("False", "ExportNotBound")
    assert (await place.store.get(Tenancy, "red")).status.phase == kind.PENDING
    await place.bind(item)
    await place.keeper.reconcile("red")
    found = await place.condition()
    assert (found.status, found.reason) == ("True", "Bound")
    assert (await place.store.get(Tenancy, "red")).status.phase == kind.READY


async def test_a_volume_whose_claim_was_deleted_is_made_anew() -> None:
    place = Place()
    item = await place.make()
    await place.bind(item)
    before = await place.volume(item)
    await place.store.delete(core.PersistentVolumeClaim, "export", baseline.namespace_name(item))
    await place.store.update_status(msgspec.structs.replace(before, status=storage.VolumeStatus(phase="Released")))
    await place.keeper.reconcile("red")
    assert (await place.condition()).reason == "ExportNotBound"
    await place.keeper.reconcile("red")
    after = await place.volume(item)
    assert after.metadata.uid != before.metadata.uid
    await place.bind(item)
    await place.keeper.reconcile("red")
    assert (await place.condition()).reason == "Bound"


async def test_what_others_made_is_left_alone_and_said() -> None:
    place = Place()
    item = await place.make(found=None)
    foreign = meta.ObjectMeta(name="export", namespace=baseline.namespace_name(item))
    await place.store.create(core.PersistentVolumeClaim(metadata=foreign))
    fresh = await place.store.get(Tenancy, "red")
    changed = msgspec.structs.replace(fresh.spec, storage=TenancyStorage(nfs=_EXPORT))
    item = await place.store.update(msgspec.structs.replace(fresh, spec=changed))
    await place.keeper.reconcile("red")
    assert (await place.condition()).reason == "ExportTaken"


async def test_another_export_for_the_same_tenancy_is_refused() -> None:
    place = Place()
    await place.make()
    fresh = await place.store.get(Tenancy, "red")
    for found, reason in (
        (NFSExport(server="nas", path="/exports/blue"), "ExportChanged"),
        (NFSExport(server="nas;rm", path="/"), "ExportInvalid"),
    ):
        fresh = await place.store.get(Tenancy, "red")
        changed = msgspec.structs.replace(fresh.spec, storage=TenancyStorage(nfs=found))
        await place.store.update(msgspec.structs.replace(fresh, spec=changed))
        await place.keeper.reconcile("red")
        assert (await place.condition()).reason == reason


@pytest.mark.parametrize("is_bound", [True, False])
async def test_claim_and_volume_go_with_the_tenancy_bound_or_not(is_bound: bool) -> None:
    place = Place()
    item, other = await place.make(), await place.make("blue", NFSExport(server="nas", path="/exports/blue"))
    if is_bound:
        await place.bind(item)
    await place.store.delete(Tenancy, "red")
    for _ in range(3):
        await place.keeper.reconcile("red")
    with pytest.raises(errors.NotFound):
        await place.store.get(Tenancy, "red")
    with pytest.raises(errors.NotFound):
        await place.volume(item)
    assert (await place.volume(other)).spec.nfs == storage.NFSVolume(server="nas", path="/exports/blue")


async def test_a_member_cannot_remove_the_export_and_is_told_how_to_mount_it() -> None:
    place = Place()
    item = await place.make()
    space, volumes = baseline.namespace_name(item), ClusterVolumes(store=place.store)
    with pytest.raises(errors.Denied, match="export that the tenancy was given"):
        await volumes.remove("export", space)
    assert await volumes.prune(space) == ()
    with pytest.raises(errors.Invalid) as refused:
        await volumes.create("data", Everywhere().new(space), labels={}, size="")
    assert "-v export:/PATH" in (refused.value.hint or "")
    assert (await volumes.create("export", Everywhere().new(space), labels={}, size="")).metadata.uid

"""The end of a tenancy takes its secrets with it, and leaves a tenancy of the same name none of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.place import Everywhere
from fairlead.serve.backend.port import Secrets
from fairlead.serve.backend.tenancy.clustersecrets import ClusterSecrets
from fairlead.serve.backend.tenancy.localsecrets import LocalSecrets
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.sealing import Seal
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.tenancy import test_cluster_tenancies as cluster
from tests.unit.control.tenancy import test_tenancy_controller as machine

_VALUES = {"password": b"rosebud"}


async def _ended(kept: Secrets, store: MemoryStore, place: str) -> None:
    """Check that nothing of the secret is left, and that nobody makes another there."""
    for name in ("db", "late"):
        with pytest.raises(errors.NotFound):
            await store.get(core.Secret, name, place)
    assert await kept.list_secrets(None) == ()
    with pytest.raises(errors.FairleadError):
        await kept.create("late", Everywhere().new(place, for_tenancy=True), _VALUES)
    assert (await store.list(core.Secret)).items == ()


async def test_on_one_machine(tmp_path: Path) -> None:
    store, place = MemoryStore(), machine.Place()
    kept = LocalSecrets(store=store, seal=Seal(tmp_path / "secrets.key"))
    async with machine._running(store, place):
        await machine._make(store)
        old = baseline.namespace_name(await machine._until(store, kind.READY))
        await kept.create("db", Everywhere().new(old), _VALUES)
        await store.delete(Tenancy, "alpha")
        await machine._until_gone(store)
        await _ended(kept, store, old)
        await machine._make(store)
        new = baseline.namespace_name(await machine._until(store, kind.READY))
        assert (new != old, await kept.list_secrets(new)) == (True, ())


async def test_what_comes_while_it_ends_goes_with_it(tmp_path: Path) -> None:
    """GPUs that are still to be verified keep a tenancy for minutes, in which an administrator may still write."""
    store, place = MemoryStore(), machine.Place()
    kept = LocalSecrets(store=store, seal=Seal(tmp_path / "secrets.key"))
    async with machine._running(store, place):
        await machine._make(store)
        namespace = baseline.namespace_name(await machine._until(store, kind.READY))
        place.unverified = ("GPU-0",)
        await store.delete(Tenancy, "alpha")
        await machine._until(store, kind.TERMINATING)
        await kept.create("late", Everywhere().new(namespace), _VALUES)
        place.unverified = ()
        await machine._until_gone(store)
        await _ended(kept, store, namespace)


async def test_on_a_cluster() -> None:
    store = cluster.Recorded()
    await cluster.with_node(store, cluster._CALICO)
    item = await cluster.made(store)
    keeper, place = cluster.keeper(store), baseline.namespace_name(item)
    await keeper.reconcile("red")
    kept = ClusterSecrets(store=store)
    await kept.create("db", Everywhere().new(place), _VALUES)
    await store.delete(Tenancy, "red")
    for _ in range(5):
        if (await store.list(Tenancy)).items:
            await keeper.reconcile("red")
    await _ended(kept, store, place)
    new = await cluster.made(store)
    await keeper.reconcile("red")
    assert (baseline.namespace_name(new) != place, await kept.list_secrets(None)) == (True, ())


async def test_a_namespace_that_somebody_else_put_in_its_place_keeps_its_secrets() -> None:
    store = cluster.Recorded()
    await cluster.with_node(store, cluster._CALICO)
    item = await cluster.made(store)
    place = baseline.namespace_name(item)
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=place)))
    about = meta.ObjectMeta(name="theirs", namespace=place)
    await store.create(core.Secret(metadata=about, data={"a": "Yg=="}))
    held = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, finalizers=(kind.FINALIZER,)))
    await store.update(held)
    await store.delete(Tenancy, "red")
    await cluster.keeper(store).reconcile("red")
    assert (await store.get(core.Secret, "theirs", place)).data == {"a": "Yg=="}

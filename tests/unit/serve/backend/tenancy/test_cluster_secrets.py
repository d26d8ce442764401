"""On a cluster a tenancy's secrets are Kubernetes' own, written and never read; what is shown is on the Tenancy."""

from __future__ import annotations

import base64

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.place import Everywhere
from fairlead.serve.backend.tenancy.clustersecrets import ClusterSecrets
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING, Listing, Selector, T
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta


class Unread(MemoryStore):
    """A store whose Secrets the caller may not read."""

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        assert not issubclass(kind, core.Secret)
        return await super().get(kind, name, namespace)

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        assert not issubclass(kind, core.Secret)
        return await super().list(kind, selector)


async def _tenancy(store: MemoryStore, name: str) -> str:
    item = await store.create(Tenancy(metadata=meta.ObjectMeta(name=name)))
    place = baseline.namespace_name(item)
    await store.update_status(
        msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, namespace=place))
    )
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=place)))
    return place


async def _data(store: MemoryStore, name: str, place: str) -> dict[str, bytes]:
    found = await MemoryStore.get(store, core.Secret, name, place)
    return {key: base64.b64decode(value) for key, value in found.data.items()}


async def test_values_are_written_replaced_as_a_whole_and_never_read() -> None:
    store = Unread()
    place, other = await _tenancy(store, "red"), await _tenancy(store, "blue")
    kept = ClusterSecrets(store=store)
    made = await kept.create("db", Everywhere().new(place), {"password": b"rosebud", "user": b"red"})
    assert await _data(store, "db", place) == {"password": b"rosebud", "user": b"red"}

    changed = await kept.replace("db", place, {"password": b"sled"})
    assert await _data(store, "db", place) == {"password": b"sled"}
    assert changed.note.digests.keys() == {"password"}
    assert changed.note.digests["password"] != made.note.digests["password"]
    assert [(one.name, one.namespace) for one in await kept.list_secrets(None)] == [("db", place)]
    assert await kept.list_secrets(other) == ()
    with pytest.raises(errors.NotFound):
        await kept.find("db", other)

    await kept.remove("db", place)
    assert await kept.list_secrets(None) == ()
    with pytest.raises(errors.NotFound):
        await _data(store, "db", place)


async def test_a_secret_that_somebody_else_made_is_left_alone() -> None:
    store = Unread()
    place, kept = await _tenancy(store, "red"), ClusterSecrets(store=store)
    about = meta.ObjectMeta(name="db", namespace=place)
    await store.create(core.Secret(metadata=about, data={"a": "Yg=="}))
    with pytest.raises(errors.Conflict) as refused:
        await kept.create("db", Everywhere().new(place), {"password": b"rosebud"})
    assert (refused.value.reason, await _data(store, "db", place)) == ("SecretForeign", {"a": b"b"})

    await kept.create("own", Everywhere().new(place), {"password": b"rosebud"})
    await store.delete(core.Secret, "own", place)
    await store.create(core.Secret(metadata=meta.ObjectMeta(name="own", namespace=place), data={"a": "Yg=="}))
    with pytest.raises(errors.Conflict):
        await kept.replace("own", place, {"password": b"sled"})
    await kept.remove("own", place)
    assert await _data(store, "own", place) == {"a": b"b"}


async def test_a_namespace_that_is_no_tenancys_has_none() -> None:
    with pytest.raises(errors.Invalid) as refused:
        await ClusterSecrets(store=MemoryStore()).create("db", Everywhere().new("default"), {"password": b"rosebud"})
    assert refused.value.reason == "NotTenancys"

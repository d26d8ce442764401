"""Listings that are remembered: shared while nothing changes, and never older than the last change."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.store import port
from fairlead.store.embedded import listings
from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core, meta


def _namespace(name: str) -> core.Namespace:
    return core.Namespace(metadata=meta.ObjectMeta(name=name, labels={"half": name[0]}))


@pytest.mark.parametrize("is_other", [False, True], ids=["here", "by another process"])
async def test_a_listing_is_shared_until_anything_changes(tmp_path: Path, *, is_other: bool) -> None:
    with SQLiteStore(tmp_path / "state.db") as store, SQLiteStore(tmp_path / "state.db") as second:
        writer = second if is_other else store
        made = await writer.create(_namespace("red"))
        first = await store.list(core.Namespace)
        assert await store.list(core.Namespace) is first
        assert (await store.list(core.Namespace, port.Selector(labels={"half": "b"}))).items == ()

        await writer.create(_namespace("blue"))
        assert [one.metadata.name for one in (await store.list(core.Namespace)).items] == ["blue", "red"]
        found = (await store.list(core.Namespace, port.Selector(labels={"half": "b"}))).items
        assert [one.metadata.name for one in found] == ["blue"]
        await writer.delete(core.Namespace, "red", uid=made.metadata.uid)
        assert [one.metadata.name for one in (await store.list(core.Namespace)).items] == ["blue"]


def test_what_was_read_while_the_state_changed_is_not_kept() -> None:
    kept, listing = listings.Listings(), port.Listing(items=(_namespace("red"),), resource_version="1")
    assert kept.find(core.Namespace, port.EVERYTHING, 1) is None
    assert kept.find(core.Namespace, port.EVERYTHING, 2) is None  # asked meanwhile, after a change
    kept.keep(core.Namespace, port.EVERYTHING, listing, 1)
    assert kept.find(core.Namespace, port.EVERYTHING, 2) is None


def test_no_more_objects_are_kept_than_fit_a_few_megabytes() -> None:
    kept = listings.Listings()
    kept.find(core.Namespace, port.EVERYTHING, 1)
    many = port.Listing(items=tuple(_namespace(f"n{number}") for number in range(300)), resource_version="1")
    for name in ("one", "two"):
        kept.keep(core.Namespace, port.Selector(namespace=name), many, 1)
    assert kept.find(core.Namespace, port.Selector(namespace="one"), 1) is None
    assert kept.find(core.Namespace, port.Selector(namespace="two"), 1) is many
    huge = port.Listing(items=many.items * 2, resource_version="1")
    kept.keep(core.Namespace, port.EVERYTHING, huge, 1)
    assert kept.find(core.Namespace, port.EVERYTHING, 1) is None

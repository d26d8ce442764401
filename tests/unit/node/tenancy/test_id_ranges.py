"""Whose user ids a pod's containers have: a tenancy's, a user's, or the host's own."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.node.tenancy import idranges
from fairlead.plan.tenancy import userids
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead.tenancy import Tenancy, TenancyStatus
from fairlead.wire.kubernetes import core, meta, names

FIRST = userids.FIRST + 8 * userids.SIZE


def namespace(name: str, **annotations: str) -> core.Namespace:
    return core.Namespace(metadata=meta.ObjectMeta(name=name, annotations=annotations))


def pod(name: str) -> core.Pod:
    return core.Pod(metadata=meta.ObjectMeta(name="train", namespace=name))


async def first(ranges: idranges.IDRanges, name: str) -> int:
    owner = await ranges.find(pod(name), None)
    assert owner is not None
    return owner.first


async def test_a_tenancys_ids_are_those_of_its_status() -> None:
    red = Tenancy(metadata=meta.ObjectMeta(name="red"), status=TenancyStatus(first_user_id=FIRST))
    found = await idranges.IDRanges(MemoryStore()).find(pod("t-red-1"), red)
    assert found == userids.Owner(name='tenancy "red"', first=FIRST)


async def test_the_machines_own_pods_have_the_hosts_ids() -> None:
    ranges = idranges.IDRanges(MemoryStore())
    assert [await ranges.find(pod(name), None) for name in ("default", "kube-system", "user-", "user-x")] == [None] * 4


async def test_each_user_has_a_range_chosen_once_and_no_two_have_the_same() -> None:
    store = MemoryStore()
    users = [f"user-{number}" for number in range(1000, 1040)]
    for name in users:
        await store.create(namespace(name))
    ranges = idranges.IDRanges(store)
    found = await asyncio.gather(*(first(ranges, name) for name in users for _ in range(2)))
    assert len(set(found)) == len(users)
    # Another process of the service finds them again.
    again = idranges.IDRanges(store)
    assert [await first(again, name) for name in users] == found[::2]


async def test_a_range_that_a_tenancy_or_another_user_has_is_not_given_again() -> None:
    store = MemoryStore()
    wanted = userids.choose("user-7", (), is_user=True)
    await store.create(namespace("user-7"))
    await store.create(namespace("user-8", **{names.USER_IDS: str(wanted)}))
    given = await first(idranges.IDRanges(store), "user-7")
    assert given not in {0, wanted}


@pytest.mark.parametrize("noted", ["", "0", "-5", "12", "1879048193", "9" * 400, "one", "\u0661"])
async def test_a_note_that_is_no_range_of_ours_is_replaced(noted: str) -> None:
    store = MemoryStore()
    await store.create(namespace("user-7", **{names.USER_IDS: noted}))
    given = await first(idranges.IDRanges(store), "user-7")
    assert userids.base(given) == given >= userids.FIRST


async def test_a_user_whose_namespace_is_gone_has_no_ids() -> None:
    assert await first(idranges.IDRanges(MemoryStore()), "user-7") == 0

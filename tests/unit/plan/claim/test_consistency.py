"""What is wrong between slices, claims and classes, each of which may be right by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.claim import consistency
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_DRIVER = "gpu.example.com"


def _slice(name: str, *devices: dict[str, Any], generation: int = 1, count: int = 1, **spec: Any) -> ResourceSlice:
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": count}
    document = {"metadata": {"name": name}, "spec": {"driver": _DRIVER, "pool": pool, "devices": devices, **spec}}
    return msgspec.convert(document, ResourceSlice)


def _claim(name: str, *results: dict[str, Any], of: str = "gpu") -> ResourceClaim:
    each = [{"request": "a", "driver": _DRIVER, "pool": "n1", **one} for one in results]
    requests = [{"name": "a", "exactly": {"deviceClassName": of}}]
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": each}}} if each else {},
    }
    return msgspec.convert(document, ResourceClaim)


def _said(slices: list[ResourceSlice], claims: list[ResourceClaim], *classes: str) -> list[str]:
    made = [msgspec.convert({"metadata": {"name": name}}, DeviceClass) for name in classes]
    return [f"{one.item}: {one.text}" for one in consistency.problems(slices, claims, made)]


_A, _B = {"name": "a"}, {"name": "b"}


def test_what_is_right_is_said_nothing_of() -> None:
    slices = [_slice("one", _A, count=2), _slice("two", _B, count=2)]
    claims = [_claim("x", {"device": "a"}), _claim("y", {"device": "b"}), _claim("z")]
    assert _said(slices, claims, "gpu") == []
    assert _said([], claims) == []


def test_a_device_that_two_claims_have_is_said_of_both() -> None:
    claims = [_claim("x", {"device": "a"}), _claim("y", {"device": "a"}), _claim("z", {"device": "b"})]
    assert _said([], claims) == [
        f"ResourceClaim team/x: has device {_DRIVER}/n1/a, which is given to ResourceClaim team/y as well",
        f"ResourceClaim team/y: has device {_DRIVER}/n1/a, which is given to ResourceClaim team/x as well",
    ]


def test_who_only_looks_has_nothing() -> None:
    assert _said([], [_claim("x", {"device": "a"}), _claim("y", {"device": "a", "adminAccess": True})]) == []


@pytest.mark.parametrize(("second", "is_wrong"), [("40Gi", False), ("41Gi", True)])
def test_shares_of_a_device_are_counted_against_its_capacity(second: str, is_wrong: bool) -> None:
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    claims = [
        _claim("x", {"device": "a", "shareID": "1", "consumedCapacity": {"memory": "40Gi"}}),
        _claim("y", {"device": "a", "shareID": "2", "consumedCapacity": {"memory": second}}),
    ]
    said = _said([_slice("one", device)], claims)
    assert said == (
        [f"device {_DRIVER}/n1/a: 2 claims have {81 << 30} of its memory, which is 80Gi"] if is_wrong else []
    )


def test_a_whole_device_beside_a_share_of_it_is_given_twice() -> None:
    claims = [_claim("x", {"device": "a", "shareID": "1"}), _claim("y", {"device": "a"})]
    assert len(_said([], claims)) == 2


def test_counters_that_partitions_take_together_are_held_against_their_set() -> None:
    def part(name: str, slices: int) -> dict[str, Any]:
        counters = {"slices": {"value": slices}}
        return {"name": name, "consumesCounters": [{"counterSet": "gpu-0", "counters": counters}]}

    shared = [{"name": "gpu-0", "counters": {"slices": {"value": 8}}}]
    slices = [_slice("counters", count=2, sharedCounters=shared), _slice("parts", part("a", 8), part("b", 1), count=2)]
    assert _said(slices, [_claim("x", {"device": "a"})]) == []
    both = [_claim("x", {"device": "a"}), _claim("y", {"device": "b"})]
    assert _said(slices, both) == [f"pool {_DRIVER}/n1: a, b take 9 of counter slices in gpu-0, which is 8"]


def test_a_pool_in_pieces_is_said() -> None:
    assert _said([_slice("one", _A, count=3)], []) == [
        f"pool {_DRIVER}/n1: has 1 of 3 slices: nothing is allocated of it until all are there"
    ]
    old, new = _slice("old", _A), _slice("new", _B, generation=2)
    assert _said([old, new], []) == [
        "ResourceSlice old: is of generation 1 of its pool, which has 2: nothing is allocated from it"
    ]
    assert _said([_slice("one", _A, count=2), _slice("two", _A, count=2)], []) == [
        f"pool {_DRIVER}/n1: has 2 devices named a: nothing is allocated from it"
    ]
    assert "its slices say 1 and 2 of how many there are" in _said([_slice("one"), _slice("two", count=2)], [])[0]


def test_a_device_that_went_is_said_where_its_pool_is_whole() -> None:
    claim = _claim("x", {"device": "gone"})
    (said,) = _said([_slice("one", _A)], [claim])
    assert said.endswith("/gone, which its driver does not publish any more")
    assert not any("publish" in one for one in _said([_slice("one", _A, count=2)], [claim]))


def test_a_class_that_is_missing_is_said_where_any_is_known() -> None:
    assert _said([], [_claim("x", of="nope")]) == []
    assert _said([], [_claim("x", of="nope")], "gpu") == [
        'ResourceClaim team/x: request a is of DeviceClass "nope", which is not there'
    ]


def test_amounts_that_are_none_do_not_end_it() -> None:
    device = {"name": "a", "capacity": {"memory": {"value": "lots"}}}
    claims = [_claim("x", {"device": "a", "shareID": "1", "consumedCapacity": {"memory": "1Gi"}})]
    assert len(_said([_slice("one", device)], claims)) == 1

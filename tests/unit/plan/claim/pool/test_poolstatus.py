"""What is free of a pool, as the answer to a ResourcePoolStatusRequest of Kubernetes 1.37 says it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.claim.pool import poolstatus
from fairlead.plan.claim.pool.poolstatus import Free
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_TAINT = {"key": "k", "effect": "NoSchedule"}


def _slice(*devices: dict[str, Any], pool: str = "p", of: int = 1, generation: int = 1, **spec: Any) -> ResourceSlice:
    about = {"name": pool, "generation": generation, "resourceSliceCount": of}
    return msgspec.convert(
        {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": about, "devices": [*devices], **spec}},
        ResourceSlice,
    )


def _claim(*devices: str, **more: Any) -> ResourceClaim:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": one, **more} for one in devices]
    return msgspec.convert({"status": {"allocation": {"devices": {"results": results}}}}, ResourceClaim)


def _partition(name: str, slices: str, **attributes: str) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in attributes.items()},
        "consumesCounters": [{"counterSet": "c", "counters": {"slices": {"value": slices}}}],
    }


_SETS = [{"name": "c", "counters": {"slices": {"value": "7"}}}]
_KINDS = (
    *(_partition("whole", "7", kind="whole"), _partition("half-0", "3", kind="half")),
    *(_partition("half-1", "3", kind="half"), _partition("half-2", "3", kind="half")),
)


def _partitioned(*devices: dict[str, Any], **spec: Any) -> list[ResourceSlice]:
    return [_slice(sharedCounters=_SETS, of=2), _slice(*devices, of=2, **spec)]


def _only(found: tuple[Free, ...]) -> Free:
    (one,) = found
    return one


def test_devices_are_total_allocated_unavailable_and_what_is_left() -> None:
    devices = ({"name": "a"}, {"name": "b"}, {"name": "c", "taints": [_TAINT]}, {"name": "d", "taints": []})
    one = _only(poolstatus.free([_slice(*devices, nodeName="n1")], [_claim("a"), _claim("a")])).status
    assert (one.total_devices, one.allocated_devices, one.unavailable_devices) == (4, 1, 1)
    assert (one.available_devices, one.node_name, one.resource_slice_count) == (2, "n1", 1)
    assert (one.validation_error, one.partition_summary, one.shareable_summary) == (None, (), None)


def test_what_is_never_free_twice_and_who_only_looks_on() -> None:
    tainted = {"name": "a", "taints": [_TAINT]}
    one = _only(poolstatus.free([_slice(tainted)], [_claim("a")])).status
    assert (one.total_devices, one.allocated_devices, one.unavailable_devices, one.available_devices) == (1, 1, 1, 0)
    one = _only(poolstatus.free([_slice({"name": "a"})], [_claim("a", adminAccess=True)])).status
    assert (one.allocated_devices, one.available_devices) == (0, 1)


def test_a_taint_without_effect_leaves_a_device_available() -> None:
    device = {"name": "a", "taints": [{"key": "k", "effect": "None"}]}
    assert _only(poolstatus.free([_slice(device)], [])).status.available_devices == 1


def test_older_generations_do_not_count_and_a_pool_in_pieces_has_no_counts() -> None:
    found = poolstatus.free([_slice({"name": "a"}), _slice({"name": "b"}, of=2, generation=2)], [])
    one = _only(found).status
    assert one.validation_error == "PoolIncomplete: pool d/p is incomplete: observed 1/2 slices at generation 2"
    assert (one.total_devices, one.resource_slice_count, one.generation) == (None, None, 2)


def test_pools_are_in_order_and_a_pool_of_several_nodes_names_none() -> None:
    slices = [_slice(pool="q"), _slice(nodeName="n1", of=2), _slice(nodeName="n2", of=2)]
    found = poolstatus.free(slices, [])
    assert [one.status.pool_name for one in found] == ["p", "q"]
    assert [one.status.node_name for one in found] == [None, None]


def test_a_validation_error_has_256_bytes_at_most() -> None:
    one = _only(poolstatus.free([_slice(pool="ü" * 500, of=2)], [])).status
    assert len((one.validation_error or "").encode()) <= 256


def test_available_partitions_whose_counters_are_taken_are_not_usable() -> None:
    slices = _partitioned(*_KINDS)
    free = _only(poolstatus.free(slices, [_claim("half-0")]))
    assert (free.status.available_devices, free.usable) == (3, 2)
    assert _only(poolstatus.free(slices, [_claim("whole")])).usable == 0
    assert _only(poolstatus.free([_slice({"name": "a"})], [])).usable is None


def test_partitions_are_counted_by_type_where_slices_or_the_asker_name_the_attribute() -> None:
    claims = [_claim("half-0")]
    cases: tuple[tuple[list[ResourceSlice], dict[str, Any]], ...] = (
        (_partitioned(*_KINDS, partitionTypeAttribute="d/kind"), {"has_types": True}),
        (_partitioned(*_KINDS), {"default_type_attribute": "d/kind"}),
    )
    for slices, words in cases:
        summary = _only(poolstatus.free(slices, claims, **words)).status.partition_summary
        assert [(one.attribute, one.type, one.total, one.allocatable) for one in summary] == [
            ("d/kind", "half", 3, 1),
            ("d/kind", "whole", 1, 0),
        ]
    assert _only(poolstatus.free(_partitioned(*_KINDS), claims, has_types=True)).status.partition_summary == ()
    assert _only(poolstatus.free(_partitioned(*_KINDS), claims)).status.partition_summary == ()


def test_a_slices_own_attribute_wins_and_what_takes_no_counters_is_no_partition() -> None:
    plain = {"name": "plain", "attributes": {"kind": {"string": "none"}}}
    slices = _partitioned(plain, *_KINDS, partitionTypeAttribute="d/kind")
    summary = _only(poolstatus.free(slices, [], default_type_attribute="d/other")).status.partition_summary
    assert [one.type for one in summary] == ["half", "whole"]


@pytest.mark.parametrize(
    ("slices", "error"),
    [
        (
            [_slice({"name": "a"}, partitionTypeAttribute="d/kind")],
            "PartitionTypeMissing: pool d/p declares partitionTypeAttribute but publishes no sharedCounters",
        ),
        (
            _partitioned(_partition("a", "1"), partitionTypeAttribute="d/kind"),
            'PartitionTypeMissing: device "a" in pool d/p does not carry partition type attribute "d/kind"',
        ),
        (
            _partitioned(_partition("a", "1"), partitionTypeAttribute="e/kind"),
            'PartitionTypeMissing: device "a" in pool d/p does not carry partition type attribute "e/kind"',
        ),
        (
            _partitioned(
                _partition("a", "1", kind="k"), _partition("b", "2", kind="k"), partitionTypeAttribute="d/kind"
            ),
            'PartitionCostMismatch: devices of partition type "k" in pool d/p consume different counters',
        ),
        (
            _partitioned(
                *(_partition(f"a{at}", "0", kind=f"k{at}") for at in range(33)), partitionTypeAttribute="d/kind"
            ),
            "PartitionSummaryOverCap: pool d/p has 33 partition types, exceeding the maximum of 32",
        ),
        (_partitioned(_partition("a", "x")), "QuantityInvalid: "),
    ],
)
def test_a_view_that_cannot_be_made_says_why_and_the_counts_stay(slices: list[ResourceSlice], error: str) -> None:
    one = _only(poolstatus.free(slices, [], has_types=True)).status
    assert (one.validation_error or "").startswith(error)
    assert one.partition_summary == ()
    assert one.total_devices == sum(len(each.spec.devices) for each in slices)


def test_shared_devices_say_what_capacity_is_left() -> None:
    shared = [
        {"name": one, "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}, "n": {"value": 1}}}
        for one in ("a", "b")
    ]
    claims = [_claim("a", shareID="1", consumedCapacity={"memory": "10Gi"}) for _ in range(2)]
    summary = _only(poolstatus.free([_slice(*shared, {"name": "c"})], claims)).status.shareable_summary
    assert summary is not None
    assert (summary.fully_available_devices, summary.partially_available_devices) == (1, 1)
    assert [(one.name, one.total, one.consumed, one.available) for one in summary.capacity] == [
        ("memory", "160Gi", "20Gi", "140Gi"),
        ("n", "2", "0", "2"),
    ]
    over = _claim("b", shareID="2", consumedCapacity={"memory": "1Ti"})
    summary = _only(poolstatus.free([_slice(*shared)], [over])).status.shareable_summary
    assert summary is not None
    assert summary.capacity[0].available == "0"


def test_a_capacity_that_is_none_and_too_many_of_them_are_validation_errors() -> None:
    for capacity, error in (
        ({"memory": {"value": "much"}}, "QuantityInvalid: "),
        ({f"c{at}": {"value": 1} for at in range(33)}, "ShareableSummaryOverCap: pool d/p has 33 shareable capacity"),
    ):
        device = {"name": "a", "allowMultipleAllocations": True, "capacity": capacity}
        one = _only(poolstatus.free([_slice(device)], [])).status
        assert (one.validation_error or "").startswith(error)
        assert one.shareable_summary is None
        assert one.available_devices == 1


def test_the_first_error_is_the_one_that_is_said() -> None:
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "much"}}}
    one = _only(poolstatus.free([_slice(device, partitionTypeAttribute="d/kind")], [], has_types=True)).status
    assert (one.validation_error or "").startswith("PartitionTypeMissing")


def test_a_counter_that_no_slice_has_is_never_left() -> None:
    strange = {**_partition("a", "1"), "consumesCounters": [{"counterSet": "x", "counters": {"y": {"value": "1"}}}]}
    assert _only(poolstatus.free(_partitioned(strange, _partition("b", "7")), [])).usable == 1
    assert _only(poolstatus.free(_partitioned(strange, _partition("b", "7")), [_claim("a")])).usable == 1

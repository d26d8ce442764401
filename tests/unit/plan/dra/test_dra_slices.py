"""Slices of a node's pool: what is in them, and that a pool is never half of one state and half of another."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.plan.claim import gate
from fairlead.plan.claim.pool.pool import Pools, Site
from fairlead.plan.claim.validate import door
from fairlead.plan.dra import offered, share, slices
from fairlead.plan.dra.offered import Choice, plan_devices
from fairlead.plan.dra.slices import Content, Dropped, Place, Server
from fairlead.wire.kubernetes.resource.device import CounterSet, Device, DeviceTaint
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.unit.plan.dra import draworld

_PLACE = Place(node="node-1", node_uid="u-1")
_NOW = "2026-11-28T12:00:00Z"
_LATER = "2026-11-28T13:00:00Z"
_TAINT = DeviceTaint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule")


class Server36:
    """Slices as an API server has them."""

    def __init__(self) -> None:
        self.stored: dict[str, ResourceSlice] = {}
        self._count = 0

    def steps(self, contents: Sequence[Content], now: str = _NOW) -> Iterator[None]:
        """Carry out what is planned, a write at a time."""
        changes = slices.plan_changes(_PLACE, contents, self.stored.values())
        for one in changes.delete:
            del self.stored[one.metadata.name]
            yield
        for before, after in changes.update:
            self.stored[before.metadata.name] = door.admit_slice(after, gate.DEFAULTS, now, old=before).item
            yield
        for one in changes.create:
            self._count += 1
            metadata = msgspec.structs.replace(
                one.metadata,
                name=f"{one.metadata.generate_name}{self._count:05}",
                generate_name="",
                resource_version="1",
            )
            new = msgspec.structs.replace(one, metadata=metadata)
            self.stored[metadata.name] = door.admit_slice(new, gate.DEFAULTS, now).item
            yield

    def publish(self, contents: Sequence[Content], now: str = _NOW) -> int:
        """Carry out everything; returns how many writes it took."""
        return sum(1 for _ in self.steps(contents, now))

    @property
    def visible(self) -> tuple[str, ...] | None:
        """The devices that a scheduler uses, in its order; None: the pool is not whole."""
        site = Site(name="node-1", labels={})
        (pool,) = Pools(self.stored.values(), gate.DEFAULTS).on(site).pools or (None,)
        if pool is None or pool.is_incomplete:
            return None
        assert pool.invalid == ""
        return tuple(one.device.name for one in pool.candidates)

    @property
    def generations(self) -> set[int]:
        return {one.spec.pool.generation for one in self.stored.values()}


def _devices(count: int = 2, *, is_divided: bool = True, **choice: Any) -> tuple[offered.OfferedDevice, ...]:
    gpus = [draworld.h100(at) for at in range(count)]
    chosen = Choice(partitioned={gpu.uuid for gpu in gpus} if is_divided else set(), **choice)
    return plan_devices(draworld.snapshot_of(*gpus), [draworld.partition_of(gpu) for gpu in gpus], chosen)


def _contents(
    count: int = 2, *, tainted: Iterable[str] = (), server: Server | None = None, **choice: Any
) -> tuple[Content, ...]:
    devices = _devices(count, **choice)
    return slices.plan_contents(devices, dict.fromkeys(tainted, (_TAINT,)), server or Server())


def test_counters_have_a_slice_before_those_of_the_gpus() -> None:
    found = _contents(8)
    assert [(len(one.devices), len(one.shared_counters)) for one in found] == [(0, 8), *[(26, 0)] * 8]


def test_more_gpus_than_a_slice_has_counter_sets_have_two() -> None:
    assert [len(one.shared_counters) for one in _contents(10)][:3] == [8, 2, 0]


def test_before_1_35_counters_stand_with_their_devices() -> None:
    server = slices.read_server("v1.34.6")
    proven = Server(has_split_counters=False)
    assert [(len(one.devices), len(one.shared_counters)) for one in _contents(2, server=proven)] == [(26, 1)] * 2
    assert [(len(one.devices), len(one.shared_counters)) for one in _contents(2, server=server)] == [(0, 1)] * 2


@pytest.mark.parametrize(
    ("version", "is_split"), [("v1.34.6", False), ("v1.35.0", True), ("v2.0.0", True), ("?", True)]
)
def test_a_servers_version_says_where_counters_stand(version: str, is_split: bool) -> None:
    assert slices.read_server(version).has_split_counters is is_split


def test_many_devices_are_split_at_what_a_slice_with_taints_may_have() -> None:
    assert [len(one.devices) for one in _contents(130, is_divided=False)] == [64, 64, 2]


def test_nothing_to_offer_is_an_empty_slice() -> None:
    server = Server36()
    server.publish(slices.plan_contents((), {}, Server()))
    assert server.visible == ()
    assert len(server.stored) == 1


def test_what_is_published_is_what_is_offered_in_its_order() -> None:
    server = Server36()
    server.publish(_contents(8))
    assert server.visible == tuple(one.name for one in _devices(8))


def test_a_published_pool_needs_no_write() -> None:
    server = Server36()
    server.publish(_contents(8))
    assert server.publish(_contents(8), _LATER) == 0


def test_a_taint_is_one_write_at_the_same_generation() -> None:
    server = Server36()
    server.publish(_contents(8))
    assert server.publish(_contents(8, tainted=[one.name for one in _devices(1)])) == 1
    assert server.generations == {1}


def test_taints_on_two_gpus_are_a_new_generation_of_every_slice() -> None:
    server = Server36()
    server.publish(_contents(8))
    assert server.publish(_contents(8, tainted=["gpu-0", "gpu-1"])) == 9
    assert server.generations == {2}


def test_a_taint_that_stays_keeps_its_time_through_a_new_generation() -> None:
    server = Server36()
    server.publish(_contents(2, tainted=["gpu-1"]))
    server.publish(_contents(3, tainted=["gpu-1", "gpu-2"]), _LATER)
    times = {
        device.name: taint.time_added
        for one in server.stored.values()
        for device in one.spec.devices
        for taint in device.taints
    }
    assert times == {"gpu-1": _NOW, "gpu-2": _LATER}


def test_a_taint_of_another_value_begins_again() -> None:
    server = Server36()
    server.publish(_contents(1, tainted=["gpu-0"]))
    other = msgspec.structs.replace(_TAINT, value="48")
    server.publish(slices.plan_contents(_devices(1), {"gpu-0": (other,)}, Server()), _LATER)
    (taint,) = [t for one in server.stored.values() for device in one.spec.devices for t in device.taints]
    assert (taint.value, taint.time_added) == ("48", _LATER)


def test_a_taint_keeps_its_time_over_a_wipe() -> None:
    server = Server36()
    server.publish(_contents(1, is_divided=False, tainted=["gpu-0"]))
    remembered = {device.name: device for one in server.stored.values() for device in one.spec.devices}
    wanted = _contents(1, is_divided=False, tainted=["gpu-0"])
    (created,) = slices.plan_changes(_PLACE, wanted, (), remembered).create
    assert created.spec.devices[0].taints[0].time_added == _NOW


def test_names_begin_with_the_place() -> None:
    server = Server36()
    server.publish(_contents(8))
    prefixes = [name.removesuffix(f"{at + 1:05}") for at, name in enumerate(sorted(server.stored))]
    assert prefixes == [f"{at:05x}-gpu.nvidia.com-node-1-" for at in range(9)]


def test_every_slice_goes_with_its_node() -> None:
    server = Server36()
    server.publish(_contents(1))
    owners = {one.metadata.owner_references for one in server.stored.values()}
    assert owners == {(_PLACE.owner,)}


def test_slices_of_a_node_that_was_made_again_get_its_uid() -> None:
    server = Server36()
    server.publish(_contents(1))
    changes = slices.plan_changes(Place(node="node-1", node_uid="u-2"), _contents(1), server.stored.values())
    assert {after.metadata.owner_references[0].uid for _, after in changes.update} == {"u-2"}


def test_foreign_names_older_generations_and_other_pools_go() -> None:
    server = Server36()
    server.publish(_contents(1, is_divided=False))
    (mine,) = server.stored.values()
    odd = {
        "hand-made": mine.spec.pool,
        "00000-old": msgspec.structs.replace(mine.spec.pool, generation=0),
        "00000-else": msgspec.structs.replace(mine.spec.pool, name="elsewhere"),
    }
    for name, pool in odd.items():
        spec = msgspec.structs.replace(mine.spec, pool=pool)
        metadata = msgspec.structs.replace(mine.metadata, name=name)
        server.stored[name] = ResourceSlice(metadata=metadata, spec=spec)
    changes = slices.plan_changes(_PLACE, _contents(1, is_divided=False), server.stored.values())
    assert {one.metadata.name for one in changes.delete} == set(odd)
    assert not changes.update + changes.create


@functools.cache
def _small(count: int, has_parts: bool, tainted: frozenset[str]) -> tuple[Content, ...]:
    """Return the slices of GPUs that are divided in two ways only: what is random here is the order of writes."""
    gpus = [draworld.h100(at) for at in range(count)]
    profiles = draworld.h100_profiles()[-2:]
    parts = [draworld.partition_of(gpu, profiles) for gpu in gpus]
    choice = Choice(partitioned={gpu.uuid for gpu in gpus} if has_parts else set())
    devices = plan_devices(draworld.snapshot_of(*gpus), parts, choice)
    return slices.plan_contents(devices, dict.fromkeys(tainted, (_TAINT,)), Server())


_STATES = st.tuples(st.integers(0, 4), st.booleans(), st.sets(st.sampled_from(["gpu-0", "gpu-1", "gpu-2"])))


@settings(max_examples=40)
@given(_STATES, _STATES, _STATES, st.integers(0, 12), st.sets(st.integers(0, 5)))
def test_a_pool_is_whole_only_as_one_state(
    first: tuple[int, bool, set[str]],
    second: tuple[int, bool, set[str]],
    third: tuple[int, bool, set[str]],
    cut: int,
    wiped: set[int],
) -> None:
    """After every write, and after a crash between two, a scheduler sees one of the states, or an incomplete pool."""
    server = Server36()
    states = [_small(count, parts, frozenset(tainted)) for count, parts, tainted in (first, second, third)]
    names = [tuple(device.name for one in state for device in one.devices) for state in states]
    server.publish(states[0])
    for at, _ in enumerate(server.steps(states[1])):
        assert server.visible in {None, *names[:2]}
        if at == cut:
            break
    for at, name in enumerate(sorted(server.stored)):
        if at in wiped:
            del server.stored[name]
    before = server.visible
    for _ in server.steps(states[2]):
        assert server.visible in {None, before, names[2]}
    assert server.visible == names[2]
    assert server.publish(states[2], _LATER) == 0


def _kept(content: Content, gates: gate.Gates) -> tuple[ResourceSlice, ResourceSlice]:
    (written,) = slices.plan_changes(_PLACE, [content], ()).create
    written = msgspec.structs.replace(written, metadata=msgspec.structs.replace(written.metadata, name="00000-x"))
    return written, door.admit_slice(written, gates, _NOW).item


@pytest.mark.parametrize(
    ("off", "lost"),
    [
        ("DRAPartitionableDevices", Dropped.COUNTERS),
        ("DRAConsumableCapacity", Dropped.SHARING),
    ],
)
def test_what_a_server_drops_is_found(off: str, lost: Dropped) -> None:
    gpu = draworld.h100().uuid
    shared = lost is Dropped.SHARING
    contents = _contents(1, is_divided=not shared, shares={gpu: share.Shares(takes_all=True)} if shared else {})
    gates = gate.chosen([f"{off}=false"])
    found = [slices.find_dropped(*_kept(one, gates)) for one in contents]
    assert {one for each in found for one in each} == {lost}
    assert not all(slices.is_kept(*_kept(one, gates)) for one in contents)


def test_taints_that_a_server_drops_are_found() -> None:
    (content,) = _contents(1, is_divided=False, tainted=["gpu-0"])
    written, stored = _kept(content, gate.DEFAULTS)
    devices = tuple(msgspec.structs.replace(one, taints=()) for one in stored.spec.devices)
    old = msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, devices=devices))
    assert slices.find_dropped(written, old) == {Dropped.TAINTS}


def test_a_server_that_keeps_everything_drops_nothing() -> None:
    kept = [_kept(one, gate.DEFAULTS) for one in _contents(1, tainted=["gpu-0"])]
    assert {slices.find_dropped(*one) for one in kept} == {frozenset()}
    assert all(slices.is_kept(*one) for one in kept)


def test_partitions_are_not_published_where_counters_are_dropped() -> None:
    (content,) = _contents(2, server=Server(dropped=frozenset({Dropped.COUNTERS})))
    assert [(one.name, one.consumes_counters) for one in content.devices] == [("gpu-0", ()), ("gpu-1", ())]


def test_ill_devices_are_not_published_where_taints_are_dropped() -> None:
    server = Server(dropped=frozenset({Dropped.TAINTS}))
    (content,) = _contents(2, is_divided=False, tainted=["gpu-1"], server=server)
    assert [one.name for one in content.devices] == ["gpu-0"]


def test_devices_are_for_one_claim_where_sharing_is_dropped() -> None:
    shares = {draworld.h100().uuid: share.Shares(count=4)}
    server = Server(dropped=frozenset({Dropped.SHARING}))
    assert _contents(1, is_divided=False, shares=shares, server=server) == _contents(1, is_divided=False)


def test_what_slices_do_not_say_is_said() -> None:
    server = Server(dropped=frozenset(Dropped))
    shared = _devices(1, is_divided=False, shares={draworld.h100().uuid: share.Shares()})
    found = slices.explain((*_devices(1)[:-1], *shared), {"gpu-0": (_TAINT,)}, server)
    assert [one.value in text for one, text in zip(Dropped, found, strict=False)] == [True] * 3
    assert found[3:] == ("left out: gpu-0",)


def test_devices_beyond_a_slice_with_counters_are_said() -> None:
    (one, *_) = _devices(1)
    many = [
        dataclasses.replace(one, name=f"d{at}", counters=CounterSet(name="s"), device=Device(name=f"d{at}"))
        for at in range(70)
    ]
    server = Server(has_split_counters=False)
    assert "6 devices of" in slices.explain(many, {}, server)[0]
    assert [len(one.devices) for one in slices.plan_contents(many, {}, server)] == [64]

"""Finds the pools of devices that a node can use, in the order in which their devices are offered.

Slices of a pool count at its highest generation alone, and only where there are as many as they say. A pool without all
of its slices is incomplete, and one that contradicts itself (a device named twice, counters that no slice has) is
invalid: neither gives devices, and each says why. Slices are indexed once; a node looks at its own and at those that
name no node, and at a whole pool only where its own slices are not all of it.
Source: k8s.io/dynamic-resource-allocation v0.37.2 structured/internal/incubating/pools_incubating.go (behaviour).
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors
from fairlead.plan.cel.device import DeviceView
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool.candidate import Candidate, CounterID, DeviceID, GroupUse, billionths
from fairlead.plan.claim.pool.held import PoolName
from fairlead.plan.pod import affinity
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

OPTIONAL_NODE_OPERATIONS: Final = "DRAOptionalNodeOperations"
"""What a node declares that can leave out operations of the kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The node that a claim is allocated for."""

    name: str
    labels: Mapping[str, str]
    features: frozenset[str] = frozenset()
    """What the node declares in `status.declaredFeatures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool as a node sees it."""

    driver: str
    name: str
    is_incomplete: bool = False
    invalid: str = ""
    """What contradicts itself; empty: nothing."""
    candidates: tuple[Candidate, ...] = ()
    totals: Mapping[CounterID, int]
    """Counters that the devices share, in billionths."""
    consumes: Mapping[str, tuple[tuple[CounterID, int], ...]]
    """What each device takes of the counters, by its name; those of other nodes too."""
    groups: Mapping[str, tuple[GroupUse, ...]]
    """Compatibility groups of devices that take counters, as `consumes`."""
    devices: frozenset[str] = frozenset()
    """Names of all devices of this generation, those of other nodes too."""

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePools:
    """Pools of one node, in order, and the devices that they offer."""

    site: Site
    pools: tuple[Pool, ...]
    candidates: tuple[Candidate, ...]
    """Of pools that are complete and valid; each is at its own `at`."""
    by_name: Mapping[PoolName, Pool]
    kept: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """What searches read of the devices once, whatever claims have."""


class Pools:
    """Slices of a cluster, indexed."""

    def __init__(
        self, slices: Iterable[ResourceSlice], gates: Gates, *, views: dict[int, list[DeviceView]] | None = None
    ) -> None:
        """Index slices as they are published.

        Args: views: by identity, devices as selectors see them, kept for pools that are read again.
        """
        self._gates = gates
        self._on_node: dict[str, list[ResourceSlice]] = {}
        self._shared: list[ResourceSlice] = []
        self._pool: dict[PoolName, list[ResourceSlice]] = {}
        self._latest: dict[PoolName, int] = {}
        self._whole: dict[tuple[PoolName, int], _Counters | str] = {}
        self._names: dict[tuple[PoolName, int], frozenset[str]] = {}
        self._views = {} if views is None else views
        for item in slices:
            spec = item.spec
            name = (spec.driver, spec.pool.name)
            self._pool.setdefault(name, []).append(item)
            self._latest[name] = max(self._latest.get(name, spec.pool.generation), spec.pool.generation)
            (self._on_node.setdefault(spec.node_name, []) if spec.node_name else self._shared).append(item)

    def on(self, site: Site) -> NodePools:
        """Return the pools of a node."""
        found: dict[PoolName, list[ResourceSlice]] = {}
        for item in (*self._on_node.get(site.name, ()), *self._shared):
            if self._counts(item) and _is_on(item, site):
                _add(found, item)
        pools = [pool for name, slices in found.items() if (pool := self._read(name, slices, site)) is not None]
        pools.sort(key=lambda pool: (_binds(pool), pool.driver, pool.name))
        return _numbered(site, pools)

    def names(self) -> tuple[PoolName, ...]:
        """Return every pool that has a slice, by driver and name."""
        return tuple(sorted(self._pool))

    def whole(self, name: PoolName) -> Pool:
        """Return a pool as it is published, of all nodes and without candidates: whether it can be used at all."""
        generation = self._latest[name]
        slices = [item for item in self._pool[name] if item.spec.pool.generation == generation]
        counters = self._whole_pool(slices, generation, slices[0].spec.pool.resource_slice_count)
        if counters == _INCOMPLETE:
            return _no_pool(name, is_incomplete=True)
        if twice := _twice(item for item in slices if not self._has_counters(item)):
            return _no_pool(name, invalid=f"duplicate device name {twice}")
        if isinstance(counters, str):
            return _no_pool(name, invalid=counters)
        return Pool(
            driver=name[0],
            name=name[1],
            totals=counters.totals,
            consumes=counters.consumes,
            groups=counters.groups,
            devices=self._published(name, generation),
        )

    def _counts(self, item: ResourceSlice) -> bool:
        spec = item.spec
        if not self._gates.partitionable_devices and (
            spec.per_device_node_selection is not None or spec.shared_counters
        ):
            return False
        return self._gates.device_compatibility_groups or not _has_groups(item)

    def _read(self, name: PoolName, slices: list[ResourceSlice], site: Site) -> Pool | None:
        """Return one pool; None: its slices are of a generation that is being replaced."""
        first = slices[0].spec.pool
        counters: _Counters | str
        if len(slices) == first.resource_slice_count:
            counters = self._read_counters(slices)
        else:
            every = self._pool[name]
            if self._latest[name] > first.generation:
                return None
            key = (name, first.generation)
            if key not in self._whole:
                self._whole[key] = self._whole_pool(every, first.generation, first.resource_slice_count)
            counters = self._whole[key]
        if counters == _INCOMPLETE:
            return _no_pool(name, is_incomplete=True)
        slices = sorted((item for item in slices if not self._has_counters(item)), key=lambda item: item.metadata.name)
        if twice := _twice(slices):
            return _no_pool(name, invalid=f"duplicate device name {twice}")
        if isinstance(counters, str):
            return _no_pool(name, invalid=counters)
        return Pool(
            driver=name[0],
            name=name[1],
            candidates=tuple(self._candidates(name, slices, site, counters)),
            totals=counters.totals,
            consumes=counters.consumes,
            groups=counters.groups,
            devices=self._published(name, first.generation),
        )

    def _published(self, name: PoolName, generation: int) -> frozenset[str]:
        """Return the devices of a pool on all nodes, so that one of another node is not taken for one that is gone.

        Slices that contradict each other about how many they are can be a whole pool to one node, and more to all.
        """
        key = (name, generation)
        if key not in self._names:
            slices = [item for item in self._pool[name] if item.spec.pool.generation == generation]
            self._names[key] = frozenset(device.name for item in slices for device in item.spec.devices)
        return self._names[key]

    def _whole_pool(self, every: Sequence[ResourceSlice], generation: int, count: int) -> _Counters | str:
        slices = [item for item in every if item.spec.pool.generation == generation]
        if not self._gates.device_compatibility_groups:
            slices = [item for item in slices if not _has_groups(item)]
        return self._read_counters(slices) if len(slices) == count else _INCOMPLETE

    def _has_counters(self, item: ResourceSlice) -> bool:
        return self._gates.partitionable_devices and bool(item.spec.shared_counters)

    def _read_counters(self, slices: Sequence[ResourceSlice]) -> _Counters | str:
        """Return the counters of a pool and who takes of them, or what is wrong with them."""
        if not self._gates.partitionable_devices:
            return _Counters(totals={}, consumes={}, groups={}, own={})
        slices = sorted(slices, key=lambda item: item.metadata.name)
        spec = slices[0].spec
        pool: PoolName = (spec.driver, spec.pool.name)
        sets: dict[str, Mapping[str, int]] = {}
        try:
            for item in slices:
                for one in item.spec.shared_counters:
                    if one.name in sets:
                        return f"duplicate counter set name {one.name}"
                    sets[one.name] = {name: billionths(counter.value) for name, counter in one.counters.items()}
            return _consumption(pool, sets, [item for item in slices if not item.spec.shared_counters])
        except errors.Invalid as error:
            return f"a counter that is no quantity: {error.message}"

    def _candidates(
        self, name: PoolName, slices: Sequence[ResourceSlice], site: Site, counters: _Counters
    ) -> Iterator[Candidate]:
        places = itertools.count()
        for item in slices:
            selects = bool(item.spec.per_device_node_selection)
            refused = self._lacks(item, site)
            for device in item.spec.devices:
                takes = bool(device.consumes_counters)
                consumes, groups = counters.own.get(id(device), ((), ())) if takes else ((), ())
                yield Candidate(
                    at=next(places),
                    id=DeviceID(*name, device.name),
                    device=device,
                    slice=item,
                    is_shared=self._gates.consumable_capacity and bool(device.allow_multiple_allocations),
                    is_plain=not self._gates.consumable_capacity or _is_plain(device),
                    barred=self._bars(device),
                    is_elsewhere=selects and not _matches(device, site),
                    refused=refused or self._refuses(device),
                    consumes=consumes,
                    takes_counters=takes,
                    groups=groups,
                    views=self._views.setdefault(id(device), []),
                )

    def _bars(self, device: Device) -> str:
        off = device.binding_conditions and not self._gates.device_binding_conditions
        return "it has binding conditions, and DRADeviceBindingConditions is off" if off else ""

    def _refuses(self, device: Device) -> str:
        off = device.consumes_counters and not self._gates.partitionable_devices
        return "it takes counters, and DRAPartitionableDevices is off" if off else ""

    def _lacks(self, item: ResourceSlice, site: Site) -> str:
        if not item.spec.skip_node_operations:
            return ""
        if not self._gates.optional_node_operations:
            return f"it leaves out operations of the node, and {OPTIONAL_NODE_OPERATIONS} is off"
        has = OPTIONAL_NODE_OPERATIONS in site.features
        return "" if has else f"it leaves out operations of the node, which does not declare {OPTIONAL_NODE_OPERATIONS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    totals: Mapping[CounterID, int]
    consumes: Mapping[str, tuple[tuple[CounterID, int], ...]]
    groups: Mapping[str, tuple[GroupUse, ...]]
    own: Mapping[int, tuple[tuple[tuple[CounterID, int], ...], tuple[GroupUse, ...]]]
    """What a device itself takes, by its identity; another node may have one of its name."""


_INCOMPLETE: Final = "incomplete"


def site_of(node: core.Node, features: Iterable[str] = ()) -> Site:
    """Return a node as the search takes it."""
    return Site(name=node.metadata.name, labels=node.metadata.labels, features=frozenset(features))


def _consumption(
    pool: PoolName, sets: Mapping[str, Mapping[str, int]], slices: Sequence[ResourceSlice]
) -> _Counters | str:
    consumes: dict[str, tuple[tuple[CounterID, int], ...]] = {}
    groups: dict[str, tuple[GroupUse, ...]] = {}
    own: dict[int, tuple[tuple[tuple[CounterID, int], ...], tuple[GroupUse, ...]]] = {}
    for item in slices:
        for device in item.spec.devices:
            taken: list[tuple[CounterID, int]] = []
            uses: list[GroupUse] = []
            for used in device.consumes_counters:
                counters = sets.get(used.counter_set)
                if counters is None:
                    return f"counter set {used.counter_set} not found"
                for name, counter in used.counters.items():
                    if name not in counters:
                        return f"counter {name} not found in counter set {used.counter_set}"
                    amount = billionths(counter.value)
                    if amount < 0:
                        return f"device {device.name} takes less than nothing of counter {used.counter_set}/{name}"
                    taken.append((CounterID(*pool, used.counter_set, name), amount))
                uses.append(GroupUse(*pool, used.counter_set, frozenset(used.compatibility_groups)))
            if uses:
                own[id(device)] = (tuple(taken), tuple(uses))
                consumes[device.name] = (*consumes.get(device.name, ()), *taken)
                groups[device.name] = (*groups.get(device.name, ()), *uses)
    totals = {CounterID(*pool, name, key): value for name, one in sets.items() for key, value in one.items()}
    return _Counters(totals=totals, consumes=consumes, groups=groups, own=own)


def _add(found: dict[PoolName, list[ResourceSlice]], item: ResourceSlice) -> None:
    """Keep a slice with those of its pool, if it is of the highest generation so far."""
    name = (item.spec.driver, item.spec.pool.name)
    known = found.get(name)
    generation = item.spec.pool.generation
    if known is None or generation > known[0].spec.pool.generation:
        found[name] = [item]
    elif generation == known[0].spec.pool.generation:
        known.append(item)


def _is_on(item: ResourceSlice, site: Site) -> bool:
    spec = item.spec
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return _matches(spec, site)
    return bool(spec.per_device_node_selection) and any(_matches(device, site) for device in spec.devices)


def _matches(where: Device | object, site: Site) -> bool:
    """Return whether a slice's spec or a device that says where it is takes the node."""
    node_name, all_nodes = getattr(where, "node_name", None), getattr(where, "all_nodes", None)
    if node_name:
        return bool(node_name == site.name)
    selector: core.NodeSelector | None = getattr(where, "node_selector", None)
    if all_nodes or selector is None:
        return bool(all_nodes)
    wanted = core.NodeAffinity(required_during_scheduling_ignored_during_execution=selector)
    return affinity.is_allowed({}, wanted, name=site.name, labels=site.labels)


def _has_groups(item: ResourceSlice) -> bool:
    return any(used.compatibility_groups for device in item.spec.devices for used in device.consumes_counters)


def _is_plain(device: Device) -> bool:
    def is_positive(value: str | float) -> bool:
        try:
            return billionths(value) >= 0
        except errors.Invalid:
            return False

    return not device.allow_multiple_allocations and all(
        one.request_policy is None and is_positive(one.value) for one in device.capacity.values()
    )


def _twice(slices: Iterable[ResourceSlice]) -> str:
    seen: set[str] = set()
    for item in slices:
        for device in item.spec.devices:
            if device.name in seen:
                return device.name
            seen.add(device.name)
    return ""


def _no_pool(name: PoolName, *, is_incomplete: bool = False, invalid: str = "") -> Pool:
    return Pool(
        driver=name[0], name=name[1], is_incomplete=is_incomplete, invalid=invalid, totals={}, consumes={}, groups={}
    )


def _binds(pool: Pool) -> bool:
    return any(one.device.binding_conditions for one in pool.candidates)


def _numbered(site: Site, pools: Iterable[Pool]) -> NodePools:
    """Give each device of each pool its place in the node's order."""
    placed: list[Pool] = []
    every: list[Candidate] = []
    for pool in pools:
        # The first pool's devices have their places already: most nodes have one pool.
        candidates = pool.candidates if not every else tuple(_at(one, len(every) + one.at) for one in pool.candidates)
        placed.append(_with(pool, candidates) if every else pool)
        every += candidates
    by_name = {(pool.driver, pool.name): pool for pool in placed}
    return NodePools(site=site, pools=tuple(placed), candidates=tuple(every), by_name=by_name)


def _at(one: Candidate, at: int) -> Candidate:
    fields = {name: getattr(one, name) for name in Candidate.__slots__}
    return Candidate(**{**fields, "at": at, "values": {}})


def _with(pool: Pool, candidates: tuple[Candidate, ...]) -> Pool:
    return Pool(**{**{name: getattr(pool, name) for name in Pool.__slots__}, "candidates": candidates})

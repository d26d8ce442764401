"""Keeps what drivers publish, and the pools of each node as the allocator reads them.

A node's pools are read when the first claim is tried there, and kept until a slice of them changes. Taints of
DeviceTaintRules are added to the devices that they select, as kube-scheduler does.
Source: k8s.io/dynamic-resource-allocation v0.37.2 resourceslice/tracker/tracker.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from fairlead.plan.cel.device import DeviceView
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool import taintrule
from fairlead.plan.claim.pool.candidate import CounterID, DeviceID, billionths
from fairlead.plan.claim.pool.held import PoolName
from fairlead.plan.claim.pool.pool import NodePools, Pools, Site
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

K = TypeVar("K")
Object = ResourceSlice | DeviceClass | DeviceTaintRule
KINDS: Final = (ResourceSlice, DeviceClass, DeviceTaintRule)
EVERYWHERE: Final = None
"""Stands for every node."""
Gone = tuple[DeviceID, tuple[tuple[CounterID, int], ...]]
"""A device that a slice does not have any more, and what it took of counters."""


class Published:
    """Slices, device classes and taint rules of a cluster."""

    def __init__(self, gates: Gates) -> None:
        """Begin without any."""
        self._gates = gates
        self.classes: Mapping[str, DeviceClass] = {}
        """By name; another mapping after each change."""
        self._rules: dict[str, DeviceTaintRule] = {}
        self._slices: dict[str, ResourceSlice] = {}
        """By name, as they were published."""
        self._of_node: dict[str, dict[str, None]] = {}
        """By node: names of slices that are its own; of "" those that name no node."""
        self._of_pool: dict[PoolName, dict[str, None]] = {}
        self._tainted: dict[str, ResourceSlice] = {}
        """By name, with the taints of rules."""
        self._pools: dict[str, tuple[Mapping[str, str], NodePools]] = {}
        """By node: its labels, and its pools."""
        self._views: dict[int, list[DeviceView]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no driver publishes anything."""
        return not self._slices

    def note(self, item: Object, *, is_gone: bool) -> tuple[Collection[str] | None, tuple[Gone, ...]]:
        """Take in what the watch says; returns the nodes that it concerns (`EVERYWHERE`), and devices that are gone."""
        name = item.metadata.name
        known = self._find(item)
        if known is not None and not is_gone and known.spec == item.spec:
            return (), ()  # a label, a status
        if isinstance(item, ResourceSlice):
            return self._note_slice(item, is_gone=is_gone)
        if isinstance(item, DeviceClass):
            others = {key: one for key, one in self.classes.items() if key != name}
            self.classes = others if is_gone else {**others, name: item}
            return EVERYWHERE, ()
        self._rules.pop(name, None)
        self._rules |= {} if is_gone else {name: item}
        if not self._gates.device_taints:
            return (), ()
        for one in tuple(self._slices.values()):
            self._taint(one)
        self._pools.clear()
        return EVERYWHERE, ()

    def _find(self, item: Object) -> Object | None:
        """Return what is known under the name of an object."""
        name = item.metadata.name
        if isinstance(item, ResourceSlice):
            return self._slices.get(name)
        return self.classes.get(name) if isinstance(item, DeviceClass) else self._rules.get(name)

    def forget(self, kind: type[Object]) -> None:
        """Reset one kind: a list follows."""
        if kind is DeviceClass:
            self.classes = {}
        elif kind is DeviceTaintRule:
            self._rules.clear()
        else:
            for known in (self._slices, self._of_node, self._of_pool, self._tainted, self._pools, self._views):
                known.clear()

    def pools(self, node: str, labels: Mapping[str, str]) -> NodePools:
        """Return the pools of a node."""
        known = self._pools.get(node)
        if known is not None and known[0] == labels:
            return known[1]
        found = self._read(node, labels)
        self._pools[node] = (labels, found)
        return found

    def pool_names(self, node: str) -> set[PoolName]:
        """Return the pools of which slices may be on a node."""
        names = (*self._of_node.get(node, ()), *self._of_node.get("", ()))
        return {_pool(self._slices[name]) for name in names}

    def nodes_of(self, pools: Iterable[PoolName]) -> Collection[str] | None:
        """Return the nodes that may have slices of pools; None: every node."""
        slices = (self._slices[name] for pool in pools for name in self._of_pool.get(pool, ()))
        found = {one.spec.node_name or "" for one in slices}
        return EVERYWHERE if "" in found else found

    def _note_slice(self, item: ResourceSlice, *, is_gone: bool) -> tuple[Collection[str] | None, tuple[Gone, ...]]:
        name, old = item.metadata.name, self._slices.get(item.metadata.name)
        touched = self.nodes_of({_pool(one) for one in (old, item) if one is not None})
        if old is not None:
            self._drop(old)
        if not is_gone:
            self._slices[name] = item
            self._of_node.setdefault(item.spec.node_name or "", {})[name] = None
            self._of_pool.setdefault(_pool(item), {})[name] = None
            self._taint(item)
        if touched is not EVERYWHERE:
            touched = EVERYWHERE if not item.spec.node_name else {*touched, item.spec.node_name}
        for node in tuple(self._pools) if touched is EVERYWHERE else touched:
            self._pools.pop(node, None)
        return touched, tuple(self._gone(old)) if old is not None else ()

    def _drop(self, old: ResourceSlice) -> None:
        name = old.metadata.name
        for device in self._tainted.pop(name).spec.devices:
            self._views.pop(id(device), None)
        _leave(self._of_node, old.spec.node_name or "", name)
        _leave(self._of_pool, _pool(old), name)
        del self._slices[name]

    def _gone(self, old: ResourceSlice) -> Iterator[Gone]:
        """Yield devices that no slice of the pool has any more, where they took of counters."""
        pool = _pool(old)
        takers = [one for one in old.spec.devices if one.consumes_counters]
        if not takers:
            return
        names = {one.name for name in self._of_pool.get(pool, ()) for one in self._slices[name].spec.devices}
        for one in takers:
            if one.name not in names:
                yield DeviceID(*pool, one.name), tuple(_consumed(pool, one))

    def _taint(self, item: ResourceSlice) -> None:
        name = item.metadata.name
        for device in self._tainted[name].spec.devices if name in self._tainted else ():
            self._views.pop(id(device), None)
        (self._tainted[name],) = taintrule.tainted((item,), self._rules.values())

    def _read(self, node: str, labels: Mapping[str, str]) -> NodePools:
        slices = {name: None for pool in sorted(self.pool_names(node)) for name in self._of_pool[pool]}
        found = Pools((self._tainted[name] for name in slices), self._gates, views=self._views)
        return found.on(Site(name=node, labels=labels))


def _leave(known: dict[K, dict[str, None]], key: K, name: str) -> None:
    known[key].pop(name, None)
    if not known[key]:
        del known[key]


def _pool(item: ResourceSlice) -> PoolName:
    return item.spec.driver, item.spec.pool.name


def _consumed(pool: PoolName, device: Device) -> Iterator[tuple[CounterID, int]]:
    for one in device.consumes_counters:
        for name, counter in one.counters.items():
            yield CounterID(*pool, one.counter_set, name), billionths(counter.value)

"""Holds a live cluster's nodes as arrays: what is free of every resource, and the engine's state beside it.

`NodeTable` follows the nodes that decisions see (`reference.NodeInfo`). A node that changed is written in place, with
the number of the change; a node that came or went, or offers something else, rebuilds the arrays. Nodes stand in the
order of their names, so that the first of equal ones is the first by name. The state holds whole GPUs: the kubelet
chooses which, so the taken ones stand first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from fairlead.plan.pod import admission
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine.shape import WHOLE, Host, Shape
from fairlead.plan.schedule.engine.state import Bools, Ints, State
from fairlead.plan.schedule.policy.demand import GPUS, LARGEST, is_moved
from fairlead.plan.schedule.queue.queue import Changes
from fairlead.plan.schedule.reference import UNIT, Kind, NodeInfo, PodInfo, gpus_of, model_of
from fairlead.plan.schedule.topology import offers

_MIB: Final = UNIT * 2**20
_CONCERNS: Final = tuple(score.concerns_node for score in reference.SCORES.values() if score.measure is None)
FEW: Final = 3
"""So many nodes are judged faster one by one than by array."""
_MOST_OFFERS: Final = 1 << 16
"""Different sets of free devices that have numbers; beyond it they are numbered again."""


class NodeTable:
    """All nodes, and one column for each resource that any of them offers."""

    def __init__(self) -> None:
        """Begin without nodes."""
        self.names: list[str] = []
        self.infos: list[NodeInfo] = []
        self.index: dict[str, int] = {}
        self.generation = 0
        """Grows whenever places change: what was remembered by place is to be moved by `origin`, or forgotten."""
        self.now = 0
        """How many changes of nodes there were."""
        self.changed: Ints = np.zeros(0, dtype=np.int64)
        """By place: which of the changes was the node's last."""
        self._offered: dict[str, Ints] = {}
        """By resource and place: the number of what the node says of its free devices; 0: nothing."""
        self._numbers: dict[offers.Offer, int] = {}
        self._build({}, ())

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self.names)

    def take(self, views: Mapping[str, NodeInfo], changes: Changes) -> None:
        """Bring the table up to date with nodes that changed."""
        is_full = len(self._numbers) > _MOST_OFFERS
        if is_full or any(is_moved(before, after) for before, after in changes.values()):
            self._build(views, changes)
            return
        for name, (_, after) in changes.items():
            if after is not None:
                self._put(self.index[name], after)

    def _build(self, views: Mapping[str, NodeInfo], changed: Collection[str]) -> None:
        old, versions = self.index, self.changed
        self.names = sorted(views)
        self.infos = [views[name] for name in self.names]
        self.index = {name: place for place, name in enumerate(self.names)}
        self.origin: Ints = np.array([old.get(name, -1) for name in self.names], dtype=np.int64)
        """By place: the node's place one generation before, -1 where it was not there."""
        self.generation += 1
        resources = sorted({name for info in self.infos for name in info.allocatable})
        self.columns = {name: column for column, name in enumerate(resources)}
        self.allocatable: Ints = np.zeros((len(self.names), len(resources)), dtype=np.int64)
        self.taken: Ints = np.zeros_like(self.allocatable)
        self.free: Ints = np.zeros_like(self.allocatable)
        self.has_devices: Bools = np.zeros(len(self.names), dtype=np.bool_)
        self.is_open: Bools = np.zeros(len(self.names), dtype=np.bool_)
        """By place: no taint, condition or refusal of its kubelet keeps any pod away."""
        self.needs_scores: Bools = np.zeros(len(self.names), dtype=np.bool_)
        """By place: some score that is asked node by node concerns the node."""
        self.state = State([_host(info) for info in self.infos])
        self._offered, self._numbers = {}, {}
        self.changed = np.zeros(len(self.names), dtype=np.int64)
        for place, info in enumerate(self.infos):
            self.allocatable[place] = [min(info.allocatable.get(name, 0), LARGEST) for name in resources]
            self.has_devices[place] = any(info.allocatable[name] > 0 for name in resources if _is_device(info, name))
            self._put(place, info)
            if self.origin[place] >= 0 and info.name not in changed:
                self.changed[place] = versions[self.origin[place]]

    def _put(self, place: int, info: NodeInfo) -> None:
        self.now += 1
        self.changed[place] = self.now
        self.infos[place] = info
        taken = [info.taken.get(name, 0) for name in self.columns]
        offered = [info.allocatable.get(name, 0) for name in self.columns]
        self.taken[place] = [min(value, LARGEST) for value in taken]
        self.free[place] = [
            max(-LARGEST, min(there - gone, LARGEST)) for there, gone in zip(offered, taken, strict=True)
        ]
        is_open = info.is_ready and not info.is_unschedulable and not info.rejected
        self.is_open[place] = is_open and len(reference.soft_taints(info)) == len(info.taints)
        self.needs_scores[place] = any(concerns(info) for concerns in _CONCERNS)
        for name in info.devices.keys() - self._offered.keys():
            self._offered[name] = np.zeros(len(self.names), dtype=np.int64)
        for name, column in self._offered.items():
            offer = info.devices.get(name)
            column[place] = 0 if offer is None else self._numbers.setdefault(offer, len(self._numbers) + 1)
        self.state.put(
            place,
            cpu_milli=max(-LARGEST, min(info.free("cpu"), LARGEST)),
            memory_mib=max(-LARGEST, min(info.free("memory") // _MIB, LARGEST)),
            whole=gpus_of(info.allocatable) - gpus_of(info.taken),
            held=_held(info.kinds),
        )

    def knows(self, wanted: tuple[tuple[str, int], ...]) -> bool:
        """Return whether any node says of any of the resources how its devices hang together."""
        return any(name in self._offered for name, _ in wanted)

    def worths(self, wanted: tuple[tuple[str, int], ...], at: Ints, of: offers.Measure) -> Ints:
        """Return what the devices are worth that a pod would get on each of the nodes, as `offers.worth`."""
        if len(at) <= FEW:
            return np.array([offers.worth(wanted, self.infos[one].devices, of) for one in at.tolist()], dtype=np.int64)
        rows, kept = list[Ints](), tuple(self._numbers)
        for name, count in wanted:
            column = self._offered.get(name)
            if column is None:
                rows.append(np.full(len(at), of(None, count)))
                continue
            numbers, places = np.unique(column[at], return_inverse=True)
            there = (kept[number - 1] if number else None for number in numbers.tolist())
            worths = np.array([of(each, count) for each in there], dtype=np.int64)
            rows.append(worths[places])
        found: Ints = np.minimum.reduce(rows)
        return found

    def short(self, requests: Mapping[str, int], at: Ints) -> Bools:
        """Tell of each request in the order of its name, and of each of the nodes, whether the node lacks it."""
        found: Bools = np.zeros((len(requests), len(at)), dtype=np.bool_)
        if len(at) <= FEW:
            for number, one in enumerate(at.tolist()):
                info = self.infos[one]
                found[:, number] = [
                    requests[name] > LARGEST or requests[name] > info.free(name) for name in sorted(requests)
                ]
            return found
        for place, name in enumerate(sorted(requests)):
            asked, column = requests[name], self.columns.get(name)
            if asked > LARGEST:
                found[place] = True
            elif column is None:
                # No node offers it, though pods may have taken it of one that did.
                found[place] = [asked > self.infos[one].free(name) for one in at]
            else:
                found[place] = asked > self.free[at, column]
        return found


def _is_device(info: NodeInfo, name: str) -> bool:
    return name in info.allocatable and admission.is_extended(name)


def _host(info: NodeInfo) -> Host:
    return Host(
        name=info.name,
        cpu_milli=min(info.allocatable.get("cpu", 0), LARGEST),
        memory_mib=min(info.allocatable.get("memory", 0) // _MIB, LARGEST),
        gpus=min(gpus_of(info.allocatable), GPUS),
        model=model_of(info.labels),
    )


def _held(kinds: Mapping[Kind, int]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for (_, gpus, _), count in kinds.items():
        found[gpus] = found.get(gpus, 0) + count
    return found


def shape_of(need: PodInfo) -> Shape:
    """Return a need as the engine's policies see it."""
    shape = kind_shape(need.kind)
    return dataclasses.replace(shape, memory_mib=min(math.ceil(need.requests.get("memory", 0) / _MIB), LARGEST))


def kind_shape(kind: Kind) -> Shape:
    """Return a kind as the fragmentation table has it."""
    cpu, gpus, model = kind
    models = frozenset({model} if model else ())
    return Shape(cpu_milli=min(cpu, LARGEST), gpus=min(gpus, GPUS), gpu_milli=WHOLE, models=models)

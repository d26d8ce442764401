"""Scores one node by the policies of the engine, with Python alone: the reference for `plan.schedule.engine.policy`.

A live node's GPUs are free or taken as a whole, because the kubelet chooses which; a need for slices or replicas is
scored as `packed` does. The figures are those of the arrays to the bit: the same arithmetic in the same order, which
tests hold both to. Rows of `WHOLE_GPUS`; `random` is the rankings' own.
Source: the policies of the FGD paper's simulator (USENIX ATC 2023, section 5), by their published rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.pod import admission
from fairlead.plan.schedule.policy.demand import GPUS, LARGEST, most_frequent
from fairlead.plan.schedule.reference import UNIT, Kind, NodeInfo, PodInfo, gpus_of, model_of, score_packed

Table = Mapping[Kind, int]
"""How often each kind is asked for, the most frequent first."""
Score = Callable[[PodInfo, NodeInfo], float]

_WHOLE: Final = 1000
"""Milli-GPU of one GPU."""
_CPU: Final = 128_000
_GPU: Final = 8 * _WHOLE
"""Milli-cpu and milli-GPU of the largest node that the published rules scale by."""
_MIB: Final = UNIT * 2**20


@dataclass(frozen=True, slots=True)
class _Room:
    """What of a node is free."""

    cpu: int
    """Milli-cpu."""
    cpus: int
    """Milli-cpu with nothing on it."""
    memory_mib: int
    whole: int
    """Free GPUs."""
    gpus: int
    model: str
    sizes: frozenset[int]
    """How many GPUs its pods have each."""

    @property
    def milli(self) -> int:
        """Return the free milli-GPU."""
        return self.whole * _WHOLE


def _room(node: NodeInfo) -> _Room:
    gpus = min(gpus_of(node.allocatable), GPUS)
    return _Room(
        cpu=_clamped(node.free("cpu")),
        cpus=_clamped(node.allocatable.get("cpu", 0)),
        memory_mib=_clamped(node.free("memory") // _MIB),
        whole=max(0, min(gpus_of(node.allocatable) - gpus_of(node.taken), gpus)),
        gpus=gpus,
        model=model_of(node.labels),
        sizes=frozenset(size for (_, size, _), count in node.kinds.items() if count > 0 and 0 < size <= gpus),
    )


def _clamped(value: int) -> int:
    return max(-LARGEST, min(value, LARGEST))


def scorer(policy: str, table: Table) -> Score:
    """Return what scores a node that has room, 0 to 100. Args: policy: a row of `WHOLE_GPUS`."""
    worth = WHOLE_GPUS[policy](table)

    def score(need: PodInfo, node: NodeInfo) -> float:
        gpus = min(gpus_of(need.requests), GPUS)
        if not gpus and any(admission.is_extended(name) for name in need.requests):
            return score_packed(need, node)
        room, cpu = _room(node), min(need.kind[0], LARGEST)
        memory_mib = math.ceil(need.requests.get("memory", 0) / _MIB)
        has_room = room.cpu >= cpu and room.memory_mib >= memory_mib and room.whole >= gpus
        return float(worth(cpu, gpus, room)) if has_room else 0.0

    return score


_Worth = Callable[[int, int, _Room], int]
"""From milli-cpu and GPUs of the need, and what is free of the node."""


def _share(cpu: int, gpus: int, room: _Room) -> float:
    """Return the taken share of a node's GPUs once the need is there; without GPUs, of its cpu."""
    if not gpus:
        return (room.cpus - room.cpu + cpu) / max(room.cpus, 1)
    size = max(room.gpus, 1) * _WHOLE
    return (size - room.milli + gpus * _WHOLE) / size


def _binpack(cpu: int, gpus: int, room: _Room) -> int:
    return math.floor(100 * _share(cpu, gpus, room))


def _dotprod(cpu: int, gpus: int, room: _Room) -> int:
    along = room.cpu / _CPU * (cpu / _CPU) + room.milli / _GPU * (gpus * _WHOLE / _GPU)
    return math.floor(100 * (1 - along / 2))


def _bestfit(cpu: int, gpus: int, room: _Room) -> int:
    return math.floor(100 * (1 - (room.cpu - cpu) / _CPU / 2 - (room.milli - gpus * _WHOLE) / _GPU / 2))


def _packing(_cpu: int, gpus: int, room: _Room) -> int:
    if not gpus:
        return 0
    return max(33 - room.whole, room.whole) if room.whole == room.gpus else max(50 - gpus, 33)


def _clustering(_cpu: int, gpus: int, room: _Room) -> int:
    if not gpus:
        return 0
    has, sizes = gpus in room.sizes, len(room.sizes)
    band = (75 if sizes == 1 else 50) if has else 25 if not sizes else 0
    return band + 25 * (_GPU - room.milli) // _GPU


def _gradient(table: Table, share: float) -> _Worth:
    """Return how much less fragmented a node is with the need on it, in hundred buckets.

    Source: `plan.schedule.engine.fragmentation`.
    """
    asked = most_frequent(table, share)
    total = sum(asked.values()) or 1

    def fragmented(cpu: int, whole: int, model: str) -> int:
        of_use = sum(
            count
            for (cpus, gpus, named), count in asked.items()
            if 0 < gpus <= whole and cpu >= cpus and named in {"", model}
        )
        return (total - of_use) * whole * _WHOLE

    def worth(cpu: int, gpus: int, room: _Room) -> int:
        gain = fragmented(room.cpu, room.whole, room.model) - fragmented(room.cpu - cpu, room.whole - gpus, room.model)
        return math.floor(100 * (1 / (1 + math.exp(-gain / (_WHOLE * total)))))

    return worth


WHOLE_GPUS: Final[Mapping[str, Callable[[Table], _Worth]]] = {
    "binpack": lambda _table: _binpack,
    "dotprod": lambda _table: _dotprod,
    "clustering": lambda _table: _clustering,
    "packing": lambda _table: _packing,
    "bestfit": lambda _table: _bestfit,
    "fgd": lambda table: _gradient(table, 0.95),
    "fairlead": lambda table: _gradient(table, 1.0),
}

"""Describes how a node's free GPUs are connected, and scores the GPUs that a pod would get there. Pure.

A `Fabric` is the shape of one node's GPUs: pair worths as the device plugin weighs them (`plan.gpu.allocation.choose`),
and the closest way between each two. Nodes of one shape share one value, so that what was worked out for a set of free
GPUs is looked up for all of them. The kubelet asks the plugin which GPUs a pod gets; `chosen` asks the same function
with the same free GPUs, so a node is judged by the GPUs that the pod will have there.

What a set is worth (`FreeGPUs.worth`): by its worst pair (NVLink or NVSwitch, one PCIe switch, one NUMA node, none of
these), less a little where it breaks up an island of NVLinks that is free as a whole and smaller than the node. What
it is worth to a pod whose group may span nodes is another figure (`FreeGPUs.rails`): how many of its GPUs have a
network card beside them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.gpu import GPU, Inventory, Link, LinkKind
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu.allocation import choose

BEST: Final = 100
_BROKEN: Final = 10
"""What the set loses that breaks up an island."""
MOST: Final = 16
"""GPUs of one resource on one node that are looked at: larger sets are not distinguished."""
_TIERS: Final[tuple[tuple[int, str, frozenset[LinkKind]], ...]] = (
    (BEST, "NVLink", frozenset({LinkKind.NVLINK, LinkKind.XGMI})),
    (BEST, "NVSwitch", frozenset({LinkKind.NVSWITCH})),
    (60, "one PCIe switch", frozenset({LinkKind.SAME_BOARD, LinkKind.SINGLE_SWITCH})),
    (40, "one NUMA node", frozenset({LinkKind.MULTI_SWITCH, LinkKind.HOST_BRIDGE, LinkKind.SAME_NODE})),
    (0, "", frozenset({LinkKind.SYSTEM})),
)
"""Points and words of the closest ways, best first."""
_APART: Final = len(_TIERS) - 1

Place = tuple[int, int | None]
"""Index and NUMA node of one GPU."""
Way = tuple[int, int, LinkKind, int]
"""Positions of two GPUs, the closest way between them, and its lanes."""


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """The shape of one node's GPUs by position; equal shapes are one object (`fabric_of`)."""

    indexes: tuple[int, ...]
    """By position: the index that people know the GPU by."""
    topology: choose.Topology
    tiers: tuple[tuple[int, ...], ...]
    """By pair of positions: the row of `_TIERS`."""
    islands: tuple[int, ...]
    """Sets of GPUs joined by NVLinks that are smaller than the node, as bits by position."""


@functools.lru_cache(maxsize=4096)
def fabric_of(places: tuple[Place, ...], ways: tuple[Way, ...]) -> Fabric:
    """Return the one value for a shape. Args: places: at most `MOST`, in the order of their NUMA nodes and indexes."""
    gpus = tuple(
        GPU(
            uuid=GPUUUID(str(position)),
            index=index,
            minor=index,
            pci_bus_id="",
            name="",
            memory_bytes=0,
            numa_node=numa,
        )
        for position, (index, numa) in enumerate(places)
    )
    links = tuple(Link(a=gpus[a].uuid, b=gpus[b].uuid, kind=kind, lanes=lanes) for a, b, kind, lanes in ways)
    count = len(places)
    tiers = [[_APART] * count for _ in places]
    for (a, (_, one)), (b, (_, other)) in itertools.permutations(enumerate(places), 2):
        tiers[a][b] = _tier(LinkKind.SAME_NODE if one is not None and one == other else LinkKind.SYSTEM)
    for a, b, kind, _ in ways:
        tiers[a][b] = tiers[b][a] = _tier(kind)
    return Fabric(
        indexes=tuple(index for index, _ in places),
        topology=choose.plan_topology(Inventory(gpus=gpus, links=links)),
        tiers=tuple(map(tuple, tiers)),
        islands=_islands(tiers),
    )


def _tier(kind: LinkKind) -> int:
    return next(at for at, (_, _, kinds) in enumerate(_TIERS) if kind in kinds)


def _islands(tiers: Sequence[Sequence[int]]) -> tuple[int, ...]:
    found, seen = list[int](), 0
    for start in range(len(tiers)):
        if seen >> start & 1:
            continue
        island, edge = 0, [start]
        while edge:
            one = edge.pop()
            if not island >> one & 1:
                island |= 1 << one
                edge += [other for other, tier in enumerate(tiers[one]) if other != one and _TIERS[tier][0] == BEST]
        seen |= island
        if 1 < island.bit_count() < len(tiers):
            found.append(island)
    return tuple(found)


@functools.lru_cache(maxsize=1 << 16)
def chosen(fabric: Fabric, free: int, count: int) -> int:
    """Return the GPUs that the device plugin gives a container, as bits. Args: free: at least `count` of them."""
    rows = [position for position in range(len(fabric.tiers)) if free >> position & 1]
    # Ranks are positions: `fabric_of` is given them in the order in which `plan_topology` ranks.
    return sum(1 << row for row in choose.choose_rows(rows, frozenset(), count, fabric.topology))


def _worst(fabric: Fabric, taken: int) -> int:
    rows = [position for position in range(len(fabric.tiers)) if taken >> position & 1]
    return max((fabric.tiers[a][b] for a, b in itertools.combinations(rows, 2)), default=0)


@functools.lru_cache(maxsize=1 << 16)
def _worth(fabric: Fabric, free: int, count: int) -> int:
    taken = chosen(fabric, free, count)
    breaks = any(free & island == island and 0 < taken & island != island for island in fabric.islands)
    return max(_TIERS[_worst(fabric, taken)][0] - _BROKEN * breaks, 0)


@dataclass(frozen=True, slots=True)
class FreeGPUs:
    """The free GPUs of one resource on one node."""

    fabric: Fabric
    free: int
    """As bits by position."""
    railed: int = 0
    """Those that have a network card on their PCIe switch, as bits by position."""

    def rails(self, count: int) -> int:
        """Return how many in a hundred of the GPUs that a pod would get have a network card beside them."""
        if not self.railed or self.free.bit_count() < count:
            return 0
        return BEST * (chosen(self.fabric, self.free, count) & self.railed).bit_count() // count

    def worth(self, count: int) -> int | None:
        """Return what the GPUs are worth that a pod would get here, 0 to 100; None: fewer are known to be free."""
        return None if self.free.bit_count() < count else _worth(self.fabric, self.free, count)

    def words(self, count: int) -> str:
        """Return which GPUs the pod would get, where how they hang together matters; empty: it does not."""
        if count < 2 or self.free.bit_count() < count:
            return ""
        taken = chosen(self.fabric, self.free, count)
        way = _TIERS[_worst(self.fabric, taken)][1]
        indexes = [index for position, index in enumerate(self.fabric.indexes) if taken >> position & 1]
        named = f"{', '.join(map(str, indexes[:-1]))} and {indexes[-1]}"
        return f"GPUs {named} are free there, {f'joined by {way}' if way else 'of several NUMA nodes'}"

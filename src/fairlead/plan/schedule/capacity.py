"""Says how many of a cluster's devices are free, the largest pod that fits, and how many of each size. Pure.

Devices are free on a node that is ready, takes pods, and has cpu, memory and a place for one more: those of other nodes
are offered, and no pod can have them now. Fragmentation is that of FGD over whole GPUs: of what is free, the part that
is of no use to a pod drawn from those that run and wait and ask for GPUs, because its node has too few, another model,
or too little cpu for that pod.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead.plan.pod import admission
from fairlead.plan.schedule.reference import UNIT, Kind, NodeInfo, gpus_of, model_of

SIZES: Final = (1, 2, 4, 8)
"""Sizes of pods that are counted, beside those that are asked for."""
_KINDS: Final = 64
"""The most frequent kinds of pods are weighed: the cost is nodes times kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One resource on the nodes of one model."""

    resource: str
    model: str
    """As the nodes' label says it; empty: they have none."""
    offered: int
    free: int
    largest: int
    """Devices of the largest pod that fits on a node now."""
    fits: Mapping[int, int] = field(default_factory=dict)
    """By size of pod in devices: how many such pods fit now, if none of another size comes."""
    fragmented: float | None = None
    """Free GPUs that are of no use to a pod as they are asked for, on average; None: no pod asks for GPUs."""


def capacities(nodes: Iterable[NodeInfo], waiting: Mapping[Kind, int]) -> tuple[Capacity, ...]:
    """Return what is free by resource and model, in that order.

    Args: nodes: with what is taken of them.   waiting: how many pods of each kind wait.
    """
    known = tuple(nodes)
    asked = Counter[Kind](waiting)
    for node in known:
        asked.update(node.kinds)
    kinds = {kind: count for kind, count in asked.most_common() if kind[1] > 0}
    kinds = dict(list(kinds.items())[:_KINDS])
    sizes = sorted({*SIZES, *(gpus for _, gpus, _ in kinds)})
    places = dict[tuple[str, str], list[tuple[NodeInfo, int, int]]]()
    for node in known:
        for name, offered in node.allocatable.items():
            if admission.is_extended(name) and offered > 0:
                free = max(0, node.free(name)) // UNIT if _is_open(node) else 0
                places.setdefault((name, model_of(node.labels)), []).append((node, offered // UNIT, free))
    return tuple(_capacity(key, there, sizes, kinds) for key, there in sorted(places.items()))


def _is_open(node: NodeInfo) -> bool:
    has_room = all(node.free(name) > 0 for name in ("cpu", "memory", "pods") if name in node.allocatable)
    return node.is_ready and not node.is_unschedulable and has_room


def _capacity(
    key: tuple[str, str],
    there: Iterable[tuple[NodeInfo, int, int]],
    sizes: Iterable[int],
    kinds: Mapping[Kind, int],
) -> Capacity:
    resource, model = key
    rows = tuple(there)
    most = max(offered for _, offered, _ in rows)
    free = sum(one for _, _, one in rows)
    is_whole = bool(gpus_of({resource: UNIT}))
    total = sum(kinds.values())
    useless = sum(_useless(node, one, kinds) for node, _, one in rows if one) if is_whole and total else 0
    return Capacity(
        resource=resource,
        model=model,
        offered=sum(offered for _, offered, _ in rows),
        free=free,
        largest=max(one for _, _, one in rows),
        fits={size: sum(one // size for _, _, one in rows) for size in sizes if size <= max(most, 1)},
        fragmented=round(useless / total, 3) if is_whole and total else None,
    )


def _useless(node: NodeInfo, free: int, kinds: Mapping[Kind, int]) -> int:
    cpu, model = node.free("cpu"), model_of(node.labels)
    lacks_cpu = "cpu" in node.allocatable
    return free * sum(
        count
        for (asked, gpus, wanted), count in kinds.items()
        if gpus > free or (lacks_cpu and asked > cpu) or wanted not in {"", model}
    )

"""Finds the GPU of a node that would serve an MPS share of given compute and memory, and scores it. Pure.

A node offers `mps-core` and `mps-memory` as sums over its GPUs, and a container needs both of one GPU: two GPUs with 10
GiB free each are no room for 20. The device plugin gives the GPU that has fewest free units and yet enough, and the
kubelet asks it for one of the two amounts first, in an order that is not known; so a node is judged by the worse of the
two GPUs that could come of it. What a part is worth there is the taken share of that GPU once it has the part, of the
amount that is taken less: a GPU that is filled up evenly strands nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.wire.nvidia.pluginconfig import MPS_AMOUNTS, MPS_CORE, MPS_MEMORY

RESOURCE: Final = MPS_CORE
"""Under which both amounts of a pod are looked up, as one number (`joined`)."""
NAMES: Final = MPS_AMOUNTS
_WIDE: Final = 1 << 32
BEST: Final = 100

Part = tuple[int, int]
"""Percent of the compute, and GiB."""


def joined(requests: Mapping[str, int], unit: int) -> int:
    """Return both amounts of a pod as one number, 0: it asks for none. Args: unit: one of anything in `requests`."""
    core, memory = (min(requests.get(name, 0) // unit, _WIDE - 1) for name in (MPS_CORE, MPS_MEMORY))
    return core * _WIDE + memory


def part_of(number: int) -> Part:
    """Return the amounts of a number that `joined` made."""
    return divmod(number, _WIDE)


@dataclass(frozen=True, slots=True)
class Shared:
    """One GPU that is given by amounts."""

    index: int
    whole: Part
    free: Part

    def has(self, part: Part) -> bool:
        """Return whether it has both amounts free."""
        return part[0] <= self.free[0] and part[1] <= self.free[1]

    def less(self, part: Part) -> Shared:
        """Return it without a part."""
        return Shared(self.index, self.whole, (self.free[0] - part[0], self.free[1] - part[1]))


def chosen(gpus: tuple[Shared, ...], part: Part) -> tuple[Shared, ...]:
    """Return the GPUs that the device plugin would begin with, by either amount; fewer where none has enough of it."""
    found = []
    for amount in (0, 1):
        enough = [one for one in gpus if one.free[amount] >= part[amount]]
        if enough and part[amount]:
            found.append(min(enough, key=lambda one: one.free[amount]))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FreeAmounts:
    """What is free of a node's GPUs that are given by amounts."""

    gpus: tuple[Shared, ...]
    """In index order."""

    def worth(self, number: int) -> int | None:
        """Return what a part is worth here, 0 to 100; 0 also where no GPU, or not the one chosen, has both amounts."""
        part = part_of(number)
        picked = chosen(self.gpus, part)
        if not picked or not all(one.has(part) for one in picked):
            return 0
        return min(_taken(one.less(part)) for one in picked)

    def words(self, number: int) -> str:
        """Return which GPU the part would be of and what stays free of it; "" where that is not certain."""
        part = part_of(number)
        picked = set(chosen(self.gpus, part))
        if len(picked) != 1 or not (one := picked.pop()).has(part):
            return ""
        core, memory = one.less(part).free
        return f"GPU {one.index} has {part[0]}% and {part[1]} GiB free there, and keeps {core}% and {memory} GiB"


def _taken(gpu: Shared) -> int:
    """Return the taken share of the amount that is taken less."""
    return min(BEST - round(BEST * left / whole) for left, whole in zip(gpu.free, gpu.whole, strict=True) if whole)


def place(gpus: tuple[Shared, ...], part: Part) -> tuple[Shared, ...] | None:
    """Return the GPUs after a part that is placed and has no units yet; None: none of them has room for it."""
    enough = [one for one in gpus if one.has(part)]
    if not enough:
        return None
    taken = min(enough, key=lambda one: one.free)
    return tuple(one.less(part) if one is taken else one for one in gpus)

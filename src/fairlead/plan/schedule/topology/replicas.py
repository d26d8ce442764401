"""Finds the GPUs that a node's free replicas belong to, and scores several replicas for one pod. Pure.

A node offers replicas as one number, and a pod that asks for two means two GPUs where time is sliced: both on one GPU
give it no more than one. MPS gives a container replicas of one GPU alone, as a larger share. The device plugin takes
from the GPU that gave a container fewest, then from the one with fewest in use, and under MPS from the one GPU with
most free. Where it packs replicas (`plugin.sharing_policy`), which a GPUDevice does not say, they may be of others than
told here. One replica is worth the same everywhere: where it goes is the policy's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEST: Final = 100


@dataclass(frozen=True, slots=True)
class Shared:
    """One GPU whose replicas are offered."""

    index: int
    total: int
    free: int

    def less(self, count: int) -> Shared:
        """Return it without some of its free replicas."""
        return Shared(self.index, self.total, self.free - count)


def chosen(gpus: tuple[Shared, ...], count: int, *, is_one_gpu: bool) -> tuple[Shared, ...]:
    """Return the GPUs that the device plugin would take replicas of, in the order of `gpus`; empty: too few are free.

    Args: is_one_gpu: whether all must be of one.
    """
    if is_one_gpu:
        enough = [one for one in gpus if one.free >= count]
        return (max(enough, key=lambda one: one.free),) if enough else ()
    free = [one for one in gpus if one.free > 0]
    if sum(one.free for one in free) < count:
        return ()
    picked = sorted(free, key=lambda one: one.total - one.free)[:count]
    return tuple(one for one in free if one in picked)


@dataclass(frozen=True, slots=True)
class FreeReplicas:
    """What is free of a node's GPUs that are shared under one resource."""

    gpus: tuple[Shared, ...]
    """In index order."""
    is_one_gpu: bool
    """Whether a container gets replicas of one GPU alone: MPS."""

    def worth(self, count: int) -> int | None:
        """Return what so many are worth here, 0 to 100: GPUs in a hundred of those asked for, under MPS all or none."""
        picked = chosen(self.gpus, count, is_one_gpu=self.is_one_gpu)
        if self.is_one_gpu or count == 1:
            return BEST if picked else 0
        return BEST * len(picked) // count

    def words(self, count: int) -> str:
        """Return of which GPUs several would be; "" of one, which may be of any."""
        if count == 1:
            return ""
        picked = chosen(self.gpus, count, is_one_gpu=self.is_one_gpu)
        if not picked:
            return f"no GPU has {count} replicas free there" if self.is_one_gpu else ""
        if len(picked) == 1:
            return f"{count} replicas can be of one GPU there, {picked[0].index}"
        many = f"{len(picked)} different GPUs" if len(picked) < count else "different GPUs"
        return f"{count} replicas can be of {many} there, {', '.join(str(one.index) for one in picked)}"


def place(gpus: tuple[Shared, ...], count: int, *, is_one_gpu: bool) -> tuple[Shared, ...] | None:
    """Return the GPUs after replicas that are placed and not given yet; None: there are too few."""
    left = list(gpus)
    taken = chosen(gpus, count, is_one_gpu=is_one_gpu)
    if not taken:
        return None
    if is_one_gpu:
        return tuple(one.less(count) if one is taken[0] else one for one in gpus)
    given = [0] * len(left)
    for _ in range(count):
        able = [at for at, one in enumerate(left) if one.free > 0]
        at = min(able, key=lambda at: (given[at], left[at].total - left[at].free))
        left[at], given[at] = left[at].less(1), given[at] + 1
    return tuple(left)

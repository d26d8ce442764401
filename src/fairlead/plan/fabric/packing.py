"""Chooses which partition a tenant gets: of those that fit the one that leaves the most of the larger ones whole. Pure.

A partition is whole while all of its GPUs are free. Giving away GPU 1 of an HGX H100 breaks {1-8}, {1-4} and {1,3}; the
next single GPU is best GPU 3, which breaks {3} and nothing that was whole. So candidates are compared by how many
whole partitions they break, of the largest size first. There are at most 64 partitions: all of them are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.fabric import Partition
from fairlead.plan.fabric.lattice import Lattice, mask_of

Cost = tuple[int, ...]


def choose(lattice: Lattice, size: int, free: Iterable[int]) -> Partition | None:
    """Return the partition of a size to give away; None: none is whole.

    Args: size: GPUs of it.   free: module numbers without a holder.
    """
    return next(iter(rank(lattice, size, free)), None)


def rank(lattice: Lattice, size: int, free: Iterable[int]) -> list[Partition]:
    """Return the whole partitions of a size, the best to give away first; equals in the Manager's order."""
    now = mask_of(free)
    whole = [one for one in lattice.partitions if not lattice.mask(one.id) & ~now]
    larger = [size_ for size_ in reversed(lattice.sizes) if size_ > size]
    masks = [[lattice.mask(one.id) for one in whole if len(one.gpus) == size_] for size_ in larger]
    # Partitions of the same size last: where they overlap, the one that leaves most of its own kind.
    masks.append([lattice.mask(one.id) for one in whole if len(one.gpus) == size])
    fitting = [one for one in whole if len(one.gpus) == size]
    return sorted(fitting, key=lambda one: _cost(lattice.mask(one.id), masks))


def _cost(own: int, masks: list[list[int]]) -> Cost:
    return tuple(sum(1 for mask in of_size if mask & own) for of_size in masks)

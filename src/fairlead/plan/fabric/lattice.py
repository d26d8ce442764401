"""Holds the partitions that a Fabric Manager offers, as it listed them; no table of any board is kept here. Pure.

Partitions overlap: GPU 1 of an HGX H100 is in {1-8}, {1-4}, {1,3} and {1}. Two that share a GPU are never active
together, and a partition is given away whole: its GPUs and it are one choice, by module number.

Sets of GPUs are whole numbers with a bit for each module, so that 64 partitions of 16 GPUs are quick to compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead import errors
from fairlead.model.fabric import Partition

NO_PARTITION = "FabricSizeNotOffered"


def mask_of(modules: Iterable[int]) -> int:
    """Return a set of module numbers as bits."""
    mask = 0
    for module in modules:
        mask |= 1 << module
    return mask


class Lattice:
    """The partitions of one fabric, and which of them share GPUs."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        """Keep the partitions in the Manager's order; it has checked neither sizes nor nesting, and need not."""
        self.partitions = tuple(partitions)
        self._masks = {one.id: mask_of(one.modules) for one in self.partitions}
        self._by_mask = {mask: one for one in reversed(self.partitions) for mask in (self._masks[one.id],)}
        self._by_id = {one.id: one for one in self.partitions}

    @property
    def modules(self) -> tuple[int, ...]:
        """Return every module number that is in a partition, ascending."""
        return tuple(sorted({module for one in self.partitions for module in one.modules}))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many GPUs a partition can have, ascending."""
        return tuple(sorted({len(one.gpus) for one in self.partitions}))

    @property
    def active(self) -> frozenset[int]:
        """Return the ids of the partitions that were active when the list was made."""
        return frozenset(one.id for one in self.partitions if one.is_active)

    def find(self, partition: int) -> Partition | None:
        """Return the partition of an id; None: the Manager offers none."""
        return self._by_id.get(partition)

    def find_exact(self, modules: Iterable[int]) -> Partition | None:
        """Return the partition of exactly these GPUs; None: there is none."""
        return self._by_mask.get(mask_of(modules))

    def mask(self, partition: int) -> int:
        """Return the GPUs of a partition as bits; of an unknown one none."""
        return self._masks.get(partition, 0)

    def overlapping(self, partition: int) -> frozenset[int]:
        """Return the ids of the other partitions that share a GPU with one."""
        own = self.mask(partition)
        return frozenset(one for one, mask in self._masks.items() if mask & own and one != partition)

    def within(self, modules: Iterable[int]) -> Lattice:
        """Return the partitions all of whose GPUs are among some: what a node that knows only those can give away."""
        known = mask_of(modules)
        return Lattice([one for one in self.partitions if not self.mask(one.id) & ~known])


def refuse_size(sizes: Sequence[int], count: int) -> errors.Invalid:
    """Return the answer to a request for as many GPUs as no partition has: what may be asked for in its place.

    Args: sizes: that are offered, ascending.   count: that was asked for.
    """
    around = [*[size for size in sizes if size < count][-1:], *[size for size in sizes if size > count][:1]]
    if not around:
        message = f"no NVLink partition is offered, and {count} GPUs were asked for"
        return errors.Invalid(message, reason=NO_PARTITION, hint="ask for single GPUs")
    choice = " or ".join(str(size) for size in around)
    message = f"no NVLink partition has {count} GPUs (there are partitions of {', '.join(map(str, sizes))})"
    hint = f"ask for {choice}, or for {count} single GPUs without NVLink between them"
    return errors.Invalid(message, reason=NO_PARTITION, hint=hint)

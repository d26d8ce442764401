"""Partitions one GPU by the rules of the real silicon: what may stand where, and what still fits.

Memory is a row of slices. A GPU instance of a profile may begin only at that profile's starts and occupies `size`
slices; no two overlap, no profile exceeds its limit, and the media engines go to one instance. Compute instances
divide a GPU instance's compute slices alike. The simulated NVML turns the refusals into its return codes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fairlead.silicon.sim import profile

CI_PROFILES: Final = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
"""NVML_COMPUTE_INSTANCE_PROFILE_* (also its id here) → compute slices."""
_CI_STARTS: Final = {1: (0, 1, 2, 3, 4, 5, 6), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)}


class NoRoomError(Exception):
    """No free placement: every start is taken, or the profile's limit is reached."""


class InUseError(Exception):
    """Something still lives inside what was to be destroyed."""


@dataclass(slots=True)
class ComputeInstance:
    """Compute slices of one GPU instance, as a program uses them."""

    id: int
    profile: int
    start: int
    slices: int


@dataclass(slots=True)
class GPUInstance:
    """Memory slices of one GPU with the engines that go with them."""

    id: int
    row: profile.MIGRow
    start: int
    computes: dict[int, ComputeInstance] = field(default_factory=dict)

    @property
    def memory_slices(self) -> range:
        """The memory slices occupied."""
        return range(self.start, self.start + self.row.size)

    def list_compute_profiles(self) -> list[int]:
        """Return the compute instance profiles that a GPU instance of this size offers."""
        whole = self.row.slices
        return [key for key, part in CI_PROFILES.items() if part == whole or (part < whole and 2 * part <= whole + 1)]

    def list_compute_starts(self, kind: int) -> list[int]:
        """Return every start of a compute instance profile inside this GPU instance, taken or not."""
        slices = CI_PROFILES[kind]
        return [start for start in _CI_STARTS[slices] if start + slices <= self.row.slices]

    def list_free_compute_starts(self, kind: int) -> list[int]:
        """Return the starts at which one more compute instance fits now."""
        taken = {slot for item in self.computes.values() for slot in range(item.start, item.start + item.slices)}
        slices = CI_PROFILES[kind]
        return [s for s in self.list_compute_starts(kind) if not taken & set(range(s, s + slices))]

    def create_compute(self, kind: int, start: int | None = None) -> ComputeInstance:
        """Add a compute instance at `start`, or at the first free place.

        Raises:  NoRoomError: that place, or every place, is taken.
        """
        free = self.list_free_compute_starts(kind)
        if not free or (start is not None and start not in free):
            raise NoRoomError
        number = next(n for n in range(8) if n not in self.computes)
        item = ComputeInstance(
            id=number, profile=kind, start=free[0] if start is None else start, slices=CI_PROFILES[kind]
        )
        self.computes[number] = item
        return item

    def compute_name(self, item: ComputeInstance) -> str:
        """Return the profile's name of a compute instance: `3g.40gb`, or `1c.3g.40gb` where it is a part of it."""
        return self.row.name if item.slices == self.row.slices else f"{item.slices}c.{self.row.name}"


class Partition:
    """The instances of one GPU."""

    def __init__(self, rows: tuple[profile.MIGRow, ...]) -> None:
        self.rows = rows
        self.instances: dict[int, GPUInstance] = {}

    def find_row(self, row_id: int) -> profile.MIGRow | None:
        """Return the GPU instance profile with this id."""
        return next((row for row in self.rows if row.id == row_id), None)

    def list_free_starts(self, row: profile.MIGRow) -> list[int]:
        """Return the starts at which one more instance of `row` may be created now, ascending."""
        if sum(item.row.id == row.id for item in self.instances.values()) >= row.limit:
            return []
        if row.takes_media and any(item.row.takes_media for item in self.instances.values()):
            return []
        taken = {slot for item in self.instances.values() for slot in item.memory_slices}
        return [start for start in row.starts if not taken & set(range(start, start + row.size))]

    def remaining(self, row: profile.MIGRow) -> int:
        """Return how many more instances of `row` fit if nothing else is created."""
        count, end = 0, -1
        for start in self.list_free_starts(row):
            if start >= end:
                count, end = count + 1, start + row.size
        used = sum(item.row.id == row.id for item in self.instances.values())
        return min(count, row.limit - used)

    def create(self, row: profile.MIGRow, start: int | None = None) -> GPUInstance:
        """Add an instance at `start`, or where it spoils the fewest other placements (ties: the highest start).

        Raises:  NoRoomError: that place, or every place, is taken, or the limit is reached.
        """
        free = self.list_free_starts(row)
        if not free or (start is not None and start not in free):
            raise NoRoomError
        chosen = max(free, key=lambda s: (self._left_after(row, s), s)) if start is None else start
        item = GPUInstance(id=_instance_id(row.size, chosen), row=row, start=chosen)
        self.instances[item.id] = item
        return item

    def destroy(self, instance: int) -> None:
        """Remove a GPU instance.

        Raises:  KeyError: no such instance.   InUseError: it still has compute instances.
        """
        if self.instances[instance].computes:
            raise InUseError
        del self.instances[instance]

    def _left_after(self, row: profile.MIGRow, start: int) -> int:
        """Memory slices still reachable by placements of all profiles once `row` stands at `start`."""
        taken = {slot for item in self.instances.values() for slot in item.memory_slices}
        taken |= set(range(start, start + row.size))
        return sum(
            other.size
            for other in self.rows
            for place in other.starts
            if not taken & set(range(place, place + other.size))
        )


def _instance_id(size: int, start: int) -> int:
    """Number an instance by its place in the tree of halves, so that ids never clash and survive a restart."""
    first = {8: 0, 4: 1, 2: 3, 1: 7}[size]
    return first + start // size

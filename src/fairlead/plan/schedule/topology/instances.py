"""Finds the placements of a node's free MIG devices, and scores how many stay open when some are taken. Pure.

A GPU instance stands on memory slices, and one of a profile may begin only at that profile's starts. So which device is
taken decides what else the GPU could still be divided into: what a set is worth (`FreeInstances.worth`) is the share of
aligned placements that stay open beside the devices in use. The device plugin takes from the GPU that gave a container
fewest, then from the one with fewest in use; `chosen` foretells the same.

Source: NVIDIA MIG User Guide, "Supported MIG Profiles" (placements).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.mig import MIGProfile, Slot
from fairlead.plan.mig import packing, table

BEST: Final = 100


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU in MIG mode."""

    index: int
    sizes: tuple[tuple[str, int], ...]
    """Profiles of all its instances with their memory slices, sorted: by these its model is known."""
    free: tuple[Slot, ...]
    """Of the resource, in use by none."""
    busy: tuple[Slot, ...]
    """Of any resource, in use."""


Pick = tuple[int, Slot]
"""Position of a GPU, and the device taken of it."""


@functools.lru_cache(maxsize=1024)
def profiles_of(sizes: tuple[tuple[str, int], ...]) -> tuple[MIGProfile, ...]:
    """Return the profiles of the model that has all of these; empty: none is listed."""
    for model in table.MODELS.values():
        if {(one.name, one.size) for one in model.profiles} >= set(sizes):
            return model.profiles
    return ()


@functools.lru_cache(maxsize=1 << 16)
def chosen(boards: tuple[Board, ...], count: int) -> tuple[Pick, ...]:
    """Return the devices that the device plugin gives a container. Args: boards: have at least `count` free."""
    left = [(at, slot) for at, board in enumerate(boards) for slot in board.free]
    given, used = [0] * len(boards), [len(board.busy) for board in boards]
    found = list[Pick]()
    while len(found) < count:
        best = min(left, key=lambda one: (given[one[0]], used[one[0]]))
        left.remove(best)
        found.append(best)
        given[best[0]] += 1
        used[best[0]] += 1
    return tuple(found)


@functools.lru_cache(maxsize=1 << 16)
def _worth(boards: tuple[Board, ...], count: int) -> int | None:
    picks, lost, whole = chosen(boards, count), 0, 0
    for at, board in enumerate(boards):
        taken = [slot for place, slot in picks if place == at]
        profiles = profiles_of(board.sizes)
        if not profiles and taken:
            return None
        if taken:
            lost += _open(profiles, board.busy) - _open(profiles, (*board.busy, *taken))
            whole += _open(profiles, ())
    return BEST - round(BEST * lost / whole) if whole else None


def _open(profiles: Sequence[MIGProfile], layout: Collection[Slot]) -> int:
    return packing.open_places(profiles, layout)


@dataclass(frozen=True, slots=True)
class FreeInstances:
    """The free MIG devices of one resource on one node."""

    boards: tuple[Board, ...]
    """In index order."""

    def _has(self, count: int) -> bool:
        return 0 < count <= sum(len(board.free) for board in self.boards)

    def worth(self, count: int) -> int | None:
        """Return the share of aligned placements that stay, 0 to 100; None: it is not known."""
        return _worth(self.boards, count) if self._has(count) else None

    def words(self, count: int) -> str:
        """Return which devices the pod would get and what stays possible beside those in use."""
        if not self._has(count) or _worth(self.boards, count) is None:
            return ""
        picks = chosen(self.boards, count)
        at, _ = picks[-1]
        board = self.boards[at]
        beside = (*board.busy, *(slot for place, slot in picks if place == at))
        left = packing.remaining(profiles_of(board.sizes), beside)
        sizes = {one.name: (one.size, one.slices) for one in profiles_of(board.sizes)}
        largest = max((name for name, number in left.items() if number), key=sizes.__getitem__, default="")
        stays = f"{left[largest]} of {largest}" if largest else "nothing else"
        named = ", ".join(f"{self.boards[place].index}:{slot}" for place, slot in picks)
        return f"MIG devices {named} are free there; GPU {board.index} keeps aligned places for {stays}"

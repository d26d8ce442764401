"""Scores a table's nodes for a need: the live policies `packed` and `spread`, and the engine's, by whole GPUs.

`Packed` is `reference.score_packed` and `score_spread` over arrays, the same figures to the bit: every step is the same
arithmetic in the same order. `WholeGPUs` asks a policy of the engine; a need for slices or replicas of GPUs, which the
engine's state does not hold, is scored as `packed` does.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fairlead.plan.pod import admission
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine.fragmentation import Floats
from fairlead.plan.schedule.engine.policy import Policy
from fairlead.plan.schedule.engine.state import Ints
from fairlead.plan.schedule.engine.table import FEW, NodeTable, shape_of
from fairlead.plan.schedule.reference import PodInfo, gpus_of


class Scorer(Protocol):
    """What a row of a need asks."""

    def scores(self, need: PodInfo, at: Ints, /) -> Floats:
        """Return what each of the nodes is worth, 0 to 100; all of them have room."""
        ...


def hundredths(scores: Floats) -> Floats:
    """Round as `reference` does."""
    found: Floats = np.floor(scores * 100 + 0.5) / 100
    return found


class Packed:
    """GPUs packed or spread, cpu and memory spread."""

    def __init__(self, table: NodeTable, *, is_spread: bool) -> None:
        """Take the nodes."""
        self._table, self._is_spread = table, is_spread

    def scores(self, need: PodInfo, at: Ints) -> Floats:
        """See `Scorer`."""
        if len(at) <= FEW:
            score = reference.score_spread if self._is_spread else reference.score_packed
            return np.array([score(need, self._table.infos[place]) for place in at.tolist()])
        devices = sorted(name for name in need.requests if admission.is_extended(name))
        even = (0 + (1 - self._share(need, at, "cpu")) + (1 - self._share(need, at, "memory"))) / 2
        if devices:
            best = np.zeros(len(at))
            for name in devices:
                best = best + self._share(need, at, name)
            best = best / len(devices)
            best = 1 - best if self._is_spread else best
        else:
            best = np.where(self._table.has_devices[at], 0.0, 1.0)
        return hundredths(90 * best + 10 * even)

    def _share(self, need: PodInfo, at: Ints, resource: str) -> Floats:
        column = self._table.columns.get(resource)
        if column is None:
            return np.zeros(len(at))
        offered, taken = self._table.allocatable[at, column], self._table.taken[at, column]
        found: Floats = np.where(offered > 0, (taken + need.requests.get(resource, 0)) / np.maximum(offered, 1), 0.0)
        return found


class WholeGPUs:
    """A policy of the engine."""

    def __init__(self, table: NodeTable, policy: Policy) -> None:
        """Take the nodes and a policy over their state."""
        self._table, self._policy, self._packed = table, policy, Packed(table, is_spread=False)

    def scores(self, need: PodInfo, at: Ints) -> Floats:
        """See `Scorer`."""
        if not gpus_of(need.requests) and any(admission.is_extended(name) for name in need.requests):
            return self._packed.scores(need, at)
        shape, found = shape_of(need), np.zeros(len(at))
        known = self._table.state.can_host(shape, at)
        found[known] = self._policy.scores(shape, at[known])
        return found


class Random:
    """Every node is worth the same, and one is drawn."""

    def __init__(self, draws: np.random.Generator) -> None:
        """Take what draws."""
        self._draws = draws

    def scores(self, _need: PodInfo, at: Ints) -> Floats:
        """See `Scorer`."""
        return np.zeros(len(at))

    def order(self, count: int) -> Ints:
        """Return an order of so many nodes."""
        return self._draws.permutation(count)

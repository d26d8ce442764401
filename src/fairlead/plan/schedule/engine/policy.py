"""Scores nodes for a request, by name of the policy: higher is better, whole numbers, equal ones go to the first node.

A policy says two things: what each node that has room is worth (`scores`), and which GPUs of the chosen node are taken
(`devices`). Rows of `POLICIES`. `random` is the engine's own: every node is worth the same and one is drawn.

`fgd` looks at the most frequent requests, which make up 95 % of all, as published; requests for several GPUs are rarely
among them, so it does not know that a whole free node is worth more than its GPUs apart. `fairlead` is the same descent
over every request that is made, whichever its share.

Source: the policies of the FGD paper's simulator (USENIX ATC 2023, section 5), by their published rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np

from fairlead.plan.schedule.engine.fragmentation import Floats, Fragmentation
from fairlead.plan.schedule.engine.shape import WHOLE, Shape
from fairlead.plan.schedule.engine.state import Ints, State
from fairlead.plan.schedule.policy.demand import most_frequent

_CPU: Final = 128_000
"""Milli-cpu of the largest node that the published rules scale by."""
_GPU: Final = 8 * WHOLE
SCALE: Final = 100


class Policy(Protocol):
    """What the engine asks."""

    def scores(self, shape: Shape, at: Ints) -> Ints:
        """Return what each node is worth; all of them have room."""
        ...

    def devices(self, shape: Shape, node: int) -> tuple[int, ...]:
        """Return which GPUs of a node that has room are taken."""
        ...


def tightest(state: State, shape: Shape, node: int) -> tuple[int, ...]:
    """Return the GPUs with the least free that fit, the first of equal ones."""
    free = state.gpu[node]
    order = sorted((int(free[one]), one) for one in range(state.slots) if shape.gpu_milli <= free[one])
    return tuple(one for _, one in order[: shape.gpus])


class ByNode:
    """A score of a node's amounts; GPUs are the tightest that fit."""

    def __init__(self, state: State, score: Callable[[State, Shape, Ints], Floats]) -> None:
        """Take the score's function."""
        self._state, self._score = state, score

    def scores(self, shape: Shape, at: Ints) -> Ints:
        """Return the function's scores in whole numbers."""
        return np.floor(self._score(self._state, shape, at)).astype(np.int64)

    def devices(self, shape: Shape, node: int) -> tuple[int, ...]:
        """Return the tightest GPUs."""
        return tightest(self._state, shape, node)


def _even(_state: State, _shape: Shape, at: Ints) -> Floats:
    return np.zeros(len(at))


def _dotprod(state: State, shape: Shape, at: Ints) -> Floats:
    cpu = state.cpu[at] / _CPU * (shape.cpu_milli / _CPU)
    gpu = state.gpu[at].sum(axis=1) / _GPU * (shape.total_milli / _GPU)
    found: Floats = SCALE * (1 - (cpu + gpu) / 2)
    return found


def _bestfit(state: State, shape: Shape, at: Ints) -> Floats:
    cpu = (state.cpu[at] - shape.cpu_milli) / _CPU
    gpu = (state.gpu[at].sum(axis=1) - shape.total_milli) / _GPU
    found: Floats = SCALE * (1 - cpu / 2 - gpu / 2)
    return found


def _taken(state: State, shape: Shape, at: Ints) -> Floats:
    """Return the taken share of a node's GPUs once the request is there; without GPUs, of its cpu."""
    size = np.maximum(state.gpus[at], 1) * WHOLE
    taken = size - state.gpu[at].sum(axis=1) + shape.total_milli
    whole = np.array([state.hosts[one].cpu_milli for one in at]) if not shape.gpus else None
    found: Floats = taken / size
    if whole is not None:
        found = (whole - state.cpu[at] + shape.cpu_milli) / np.maximum(whole, 1)
    return found


def _binpack(state: State, shape: Shape, at: Ints) -> Floats:
    return SCALE * _taken(state, shape, at)


def _spread(state: State, shape: Shape, at: Ints) -> Floats:
    return SCALE * (1 - _taken(state, shape, at))


def _packing(state: State, shape: Shape, at: Ints) -> Floats:
    """Score GPUs that are shared already 50 to 100, free ones of a used node 33 to 50, an idle node below."""
    if not shape.gpus:
        return np.zeros(len(at))
    free, whole = state.gpu[at], (state.gpu[at] == WHOLE).sum(axis=1)
    chosen = np.sort(np.where(free >= shape.gpu_milli, free, 2 * WHOLE), axis=1)[:, : shape.gpus]
    opened = (chosen == WHOLE).sum(axis=1)
    on_shared = np.maximum(100 - (chosen * 100 // WHOLE).sum(axis=1) // 10, 50)
    on_used = np.where(opened > 0, np.maximum(50 - opened, 33), on_shared)
    found: Floats = np.where(whole == state.gpus[at], np.maximum(33 - whole, whole), on_used).astype(np.float64)
    return found


def _clustering(state: State, shape: Shape, at: Ints) -> Floats:
    """Score nodes with requests of the same size alone highest, then mixed ones, idle ones, those of other sizes."""
    if not shape.gpus:
        return np.zeros(len(at))
    held = state.held[at]
    has, sizes = held[:, 0 if shape.is_share else shape.gpus] > 0, (held > 0).sum(axis=1)
    band = np.where(has, np.where(sizes == 1, 75, 50), np.where(sizes == 0, 25, 0))
    found: Floats = band + 25 * (_GPU - state.gpu[at].sum(axis=1)) // _GPU
    return found.astype(np.float64)


def _sigmoid(gains: Floats, total: int) -> Floats:
    found: Floats = 1 / (1 + np.exp(-gains / (WHOLE * total)))
    return found


class Gradient:
    """FGD: the node and GPU where fragmentation grows least, in hundred buckets."""

    def __init__(self, state: State, table: Mapping[Shape, int], *, share: float) -> None:
        """Take how often what is asked for; the most frequent that make up `share` of it are looked at."""
        self.fragmentation = Fragmentation(state, most_frequent(table, share))
        self._state = state

    def scores(self, shape: Shape, at: Ints) -> Ints:
        """Return the best GPU's bucket of each node."""
        best: Ints = self._buckets(shape, at).max(axis=1)
        return best

    def devices(self, shape: Shape, node: int) -> tuple[int, ...]:
        """Return the first GPU of the best bucket; whole GPUs: the first free ones."""
        if not shape.is_share:
            return tightest(self._state, shape, node)
        return (int(self._buckets(shape, np.array([node])).argmax()),)

    def _buckets(self, shape: Shape, at: Ints) -> Ints:
        gains = self.fragmentation.gains(shape, at)
        buckets = np.floor(SCALE * _sigmoid(gains, self.fragmentation.total)).astype(np.int64)
        # Bucket 0: a GPU that fits at a great growth of fragmentation; -1: a GPU that does not fit.
        found: Ints = np.where(np.isneginf(gains), -1, buckets)
        return found


POLICIES: Final[Mapping[str, Callable[[State, Mapping[Shape, int]], Policy]]] = {
    "random": lambda state, _table: ByNode(state, _even),
    "spread": lambda state, _table: ByNode(state, _spread),
    "binpack": lambda state, _table: ByNode(state, _binpack),
    "dotprod": lambda state, _table: ByNode(state, _dotprod),
    "clustering": lambda state, _table: ByNode(state, _clustering),
    "packing": lambda state, _table: ByNode(state, _packing),
    "bestfit": lambda state, _table: ByNode(state, _bestfit),
    "fgd": lambda state, table: Gradient(state, table, share=0.95),
    "fairlead": lambda state, table: Gradient(state, table, share=1.0),
}

"""Measures fragmentation as FGD does, in whole numbers and without a loop over what is asked for.

A kind of request m (cpu, GPUs, milli-GPU of each, models) is asked for p_m times. F_n(m) is what is free on the GPUs of
node n and no use to m: everything, where the node cannot host m or m asks for no GPU; else what is free on GPUs that
have less than m asks of one. F_n is the sum over the table, weighted by p_m; here times the sum of p, so that it stays
whole and equal situations have equal figures to the bit.

A node can host a request for one GPU exactly if one of its GPUs is of use to it, so for these F_n is a sum over GPUs of
a value that depends on the GPU's free milli-GPU, the node's model and which cpu amounts of the table its free cpu
covers: one table, looked up. Requests for several GPUs take whole ones; what they add depends on the number of whole
free GPUs alone: a second table.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fairlead.plan.schedule.engine.shape import WHOLE, Shape
from fairlead.plan.schedule.engine.state import Ints, State

Floats = NDArray[np.float64]
"""Whole numbers far below 2^53, which floats keep exactly and numpy adds fastest."""


class Fragmentation:
    """The table of requests, and what free GPUs are worth to it."""

    def __init__(self, state: State, table: Mapping[Shape, int]) -> None:
        """Take the nodes, and how often each kind of request is asked for."""
        self._state = state
        self.total = sum(table.values()) or 1
        asking = [kind for kind in table if kind.gpus]
        self._steps: Ints = np.array(sorted({kind.cpu_milli for kind in asking}), dtype=np.int64)
        self._stride = len(self._steps) + 1
        free = np.arange(WHOLE + 1)
        by_gpu = np.zeros((len(state.models), self._stride, WHOLE + 1)) + self.total * free
        by_count = np.zeros((len(state.models), self._stride, state.slots + 1))
        whole = WHOLE * np.arange(state.slots + 1)
        for kind in asking:
            step = int(np.searchsorted(self._steps, kind.cpu_milli)) + 1
            for name, model in state.models.items():
                if kind.models and name not in kind.models:
                    continue
                if kind.gpus == 1:
                    by_gpu[model, step:] -= table[kind] * np.where(free >= kind.gpu_milli, free, 0)
                else:
                    by_count[model, step:] += table[kind] * np.where(whole >= WHOLE * kind.gpus, whole, 0)
        self._by_gpu: Floats = by_gpu.reshape(-1, WHOLE + 1)
        """By model and covered cpu amounts, and by free milli-GPU: how much of a GPU is of no use."""
        self._by_count: Floats = by_count.reshape(-1, state.slots + 1)
        """By the same, and by whole free GPUs: how much of them is of use to requests for several."""

    def _row(self, at: Ints, cpu_milli: int) -> Ints:
        """Return which row of the tables holds for each node once so much cpu is taken."""
        state = self._state
        found: Ints = state.model[at] * self._stride + np.searchsorted(self._steps, state.cpu[at] - cpu_milli, "right")
        return found

    def values(self, at: Ints) -> Floats:
        """Return the fragmented milli-GPU of nodes, times `total`."""
        free = self._state.gpu[at]
        return self._value(self._row(at, 0), free, (free == WHOLE).sum(axis=1))

    def _value(self, row: Ints, free: Ints, whole: Ints) -> Floats:
        found: Floats = self._by_gpu[row[:, None], free].sum(axis=1) - self._by_count[row, whole]
        return found

    def cluster(self) -> float:
        """Return the fragmented milli-GPU of the whole cluster."""
        return float(self.values(np.arange(len(self._state))).sum()) / self.total

    def gains(self, shape: Shape, at: Ints) -> Floats:
        """Return by how much less milli-GPU each node is fragmented once a request is on it, times `total`.

        Args:    at: nodes that can host it.
        Returns: one column, or for a share one a GPU: -inf where it does not fit.
        """
        if not shape.is_share and not self._state.shared:
            return self._whole_gains(shape, at)
        free = self._state.gpu[at]
        is_whole = free == WHOLE
        row, whole = self._row(at, shape.cpu_milli), is_whole.sum(axis=1)
        each = self._by_gpu[row[:, None], free]
        now, rest = self._value(self._row(at, 0), free, whole), each.sum(axis=1)
        if not shape.is_share:
            # A GPU with nothing free is worth nothing, so it makes no difference which of the whole ones are taken.
            after = rest - shape.gpus * self._by_gpu[row, WHOLE] - self._by_count[row, whole - shape.gpus]
            lost: Floats = after - now
            return -lost[:, None]
        left = free - shape.gpu_milli
        moved = self._by_gpu[row[:, None], np.maximum(left, 0)]
        several = self._by_count[row[:, None], whole[:, None] - is_whole]
        after = rest[:, None] - each + moved - several
        found: Floats = np.where(left >= 0, now[:, None] - after, -np.inf)
        return found

    def _whole_gains(self, shape: Shape, at: Ints) -> Floats:
        """Return `gains` where every GPU is free or taken as a whole: what is on a node is a product, not a sum."""
        whole, before, after = self._state.whole[at], self._row(at, 0), self._row(at, shape.cpu_milli)
        now = whole * self._by_gpu[before, WHOLE] - self._by_count[before, whole]
        left = whole - shape.gpus
        found: Floats = now - (left * self._by_gpu[after, WHOLE] - self._by_count[after, left])
        return found[:, None]

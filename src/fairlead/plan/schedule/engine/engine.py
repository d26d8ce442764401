"""Places requests one after another: a row of scores for each shape, rebuilt only for nodes that changed.

A row holds what every node is worth to one shape, -1 where it has no room. Before it is read it is brought up to date
for the nodes touched since; the highest score wins, and the first of equal ones, in the order of the nodes. So a
decision costs what changed, not what there is. Rows that were not used for longest are dropped.

A gang is placed on a checkpoint of the state: all of its requests, or none. The same engine decides in simulations and
in the live scheduler; the same requests in the same order, with the same seed, end on the same GPUs.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fairlead.plan.schedule.engine import policy as policies
from fairlead.plan.schedule.engine.shape import Placement, Shape
from fairlead.plan.schedule.engine.state import Bools, Ints, State

ROWS: Final = 1024
NO_ROOM: Final = -1


class _Row:
    __slots__ = ("allowed", "known", "scores")

    def __init__(self, allowed: Bools) -> None:
        self.scores: NDArray[np.int32] = np.full(len(allowed), NO_ROOM, dtype=np.int32)
        self.known = -1
        self.allowed = allowed


class Engine:
    """Decides over a state."""

    def __init__(
        self,
        state: State,
        policy: str,
        table: Mapping[Shape, int],
        *,
        seed: int = 0,
        allowed: Callable[[Shape], Bools | None] = lambda _shape: None,
    ) -> None:
        """Take the nodes, a row of `policy.POLICIES`, and what is asked for and how often.

        Args: allowed: which nodes a shape's `rule` lets it run on; None: all.   seed: of the policy `random`.
        """
        self.state = state
        self.policy = policies.POLICIES[policy](state, table)
        self._draws = random.Random(seed) if policy == "random" else None  # noqa: S311 no secret
        self._allowed = allowed
        self._rows: OrderedDict[Shape, _Row] = OrderedDict()

    def find(self, shape: Shape) -> Placement | None:
        """Return where a request would go now; None where no node has room."""
        scores = self._row(shape).scores
        node = int(scores.argmax())
        if scores[node] < 0:
            return None
        if self._draws is not None:
            node = int(self._draws.choice(np.flatnonzero(scores >= 0)))
            fitting = np.flatnonzero(self.state.gpu[node] >= shape.gpu_milli).tolist()
            devices = tuple(sorted(self._draws.sample(fitting, shape.gpus)))
            return Placement(node, devices, int(scores[node]))
        return Placement(node, self.policy.devices(shape, node), int(scores[node]))

    def place(self, shape: Shape) -> Placement | None:
        """Decide and take; None where no node has room."""
        found = self.find(shape)
        if found is not None:
            self.state.take(found.node, shape, found.devices)
        return found

    def release(self, shape: Shape, placement: Placement) -> None:
        """Free what a placement took."""
        self.state.give(placement.node, shape, placement.devices)

    def place_gang(self, shapes: Sequence[Shape]) -> tuple[Placement, ...] | None:
        """Place all requests, the largest first, or none of them."""
        if not self.may_fit(shapes):
            return None
        order = sorted(range(len(shapes)), key=lambda at: (-shapes[at].total_milli, -shapes[at].cpu_milli, at))
        placed: dict[int, Placement] = {}
        mark = self.state.checkpoint()
        for at in order:
            found = self.place(shapes[at])
            if found is None:
                self.state.rollback(mark)
                return None
            placed[at] = found
        self.state.commit(mark)
        return tuple(placed[at] for at in range(len(shapes)))

    def may_fit(self, shapes: Sequence[Shape]) -> bool:
        """Return whether a gang could fit as far as counting tells: each shape alone, as often as it is asked for."""
        return all(self.capacity(shape) >= count for shape, count in Counter(shapes).items())

    def capacity(self, shape: Shape) -> int:
        """Return how many requests of one shape all nodes have room for now."""
        state = self.state
        at = np.flatnonzero(self._row(shape).scores >= 0)
        most = np.full(len(at), np.iinfo(np.int64).max)
        for free, asked in ((state.cpu, shape.cpu_milli), (state.memory, shape.memory_mib)):
            if asked:
                most = np.minimum(most, free[at] // asked)
        if shape.gpus:
            units = (state.gpu[at] // shape.gpu_milli).sum(axis=1)
            most = np.minimum(most, units // shape.gpus)
        return int(most.sum()) if len(at) else 0

    def _row(self, shape: Shape) -> _Row:
        row = self._rows.get(shape)
        if row is None:
            ruled, models = self._allowed(shape), self.state.of_models(shape)
            row = self._rows[shape] = _Row(models if ruled is None else models & ruled)
            if len(self._rows) > ROWS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(shape)
        if row.known != self.state.now:
            touched = self.state.touched(row.known) if row.known >= 0 else None
            self._refresh(row, shape, np.arange(len(self.state)) if touched is None else touched)
            row.known = self.state.now
        return row

    def _refresh(self, row: _Row, shape: Shape, at: Ints) -> None:
        fits = self.state.can_host(shape, at) & row.allowed[at]
        row.scores[at] = NO_ROOM
        fitting = at[fits]
        if len(fitting):
            row.scores[fitting] = self.policy.scores(shape, fitting)

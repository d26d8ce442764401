"""Ranks a live cluster's nodes for each need by arrays: the engine's policies, Kubernetes' filters, the same summary.

One `NodeTable` holds the nodes. For each need there is a row of verdicts and scores, rebuilt only for the nodes that
the table's log says changed; what a filter reads of a node's labels and taints is judged in Python, and only where it
changed, the rest for all changed nodes at a time. Summaries are those of `ranking.Ranking`, word for word, for the
policies that both know.

What is asked for, which `fgd` and `fairlead` weigh, is what runs on the nodes and every need that has a row
(`policy.demand`): as it ages, so do their scorers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import numpy as np

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine import policy as policies
from fairlead.plan.schedule.engine.noderesults import NodeResults
from fairlead.plan.schedule.engine.scorer import Packed, Random, Scorer, WholeGPUs
from fairlead.plan.schedule.engine.table import NodeTable, kind_shape
from fairlead.plan.schedule.policy import demand
from fairlead.plan.schedule.queue.queue import Changes
from fairlead.plan.schedule.reference import NodeInfo, PodInfo

_MOST_BYTES: Final = 512 << 20
"""Of all rows together."""
_NODE_BYTES: Final = 48
"""Of one node in one row."""
POLICIES: Final = tuple(dict.fromkeys((*reference.POLICIES, *policies.POLICIES)))
"""Names that `control.policy` may have; `packed` and `spread` are those of `reference`."""


class EngineRankings:
    """Rankings by array; see `rankings.Rankings`."""

    def __init__(self, policy: str, *, seed: int = 0) -> None:
        """Take one of `POLICIES`; `seed` is that of `random`."""
        self.policy = policy
        self.table = NodeTable()
        self._draws = np.random.Generator(np.random.PCG64(seed))
        self._kept: OrderedDict[tuple[object, ...], NodeResults] = OrderedDict()
        self.demand = demand.Demand()
        self._generation = self.table.generation
        self._scorers: dict[str, tuple[int, Scorer]] = {}
        """By policy, as they are asked for, with the version of what is asked for; an aged one is replaced."""

    def take(self, views: Mapping[str, NodeInfo], changes: Changes) -> None:
        """See `rankings.Rankings`."""
        self.table.take(views, changes)
        self.demand.take(changes)
        if self._generation != self.table.generation:
            self._generation = self.table.generation
            self._scorers.clear()

    def of(self, need: PodInfo) -> NodeResults:
        """See `rankings.Rankings`."""
        self.demand.note(need.kind)
        key, scorer = need.key(), self._scorer(need)
        row = self._kept.get(key)
        if row is None:
            row = self._kept[key] = NodeResults(need, self.table, scorer)
            while len(self._kept) > max(1, _MOST_BYTES // (_NODE_BYTES * max(1, len(self.table)))):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        row.scorer = scorer
        return row

    def _scorer(self, need: PodInfo) -> Scorer:
        """Return the scorer of a need's policy."""
        policy, table = need.policy or self.policy, dict[reference.Kind, int]()
        if policy in demand.WEIGHING:
            waiting = (row.need.kind for row in self._kept.values())
            table = dict(self.demand.table((need.kind, *waiting)))
        version, found = self._scorers.get(policy, (0, None))
        if found is None or (policy in demand.WEIGHING and version != self.demand.version):
            found = self._new_scorer(policy, table)
            self._scorers[policy] = self.demand.version, found
        return found

    def _new_scorer(self, policy: str, table: Mapping[reference.Kind, int]) -> Scorer:
        if policy in reference.POLICIES:
            return Packed(self.table, is_spread=policy == "spread")
        if policy == "random":
            return Random(self._draws)
        shapes = {kind_shape(kind): count for kind, count in table.items()}
        return WholeGPUs(self.table, policies.POLICIES[policy](self.table.state, shapes))

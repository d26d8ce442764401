"""Ranks a live cluster's nodes for each need by arrays: the engine's policies, Kubernetes' filters, the same summary.

One `NodeTable` holds the nodes. For each need there is a row of verdicts and scores, made anew only for the nodes that
the table's log says changed; what a filter reads of a node's labels and taints is judged in Python, and only where it
changed, the rest for all changed nodes at a time. Summaries are those of `ranking.Ranking`, word for word, for the
policies that both know.

What is asked for, which `fgd` and `fairlead` weigh, is what runs on the nodes and every need that has a row. It is
counted, and the table of fragmentation is made anew once an eighth of it came or went.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final

import numpy as np

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.engine import policy as policies
from fairlead.plan.schedule.engine.needrow import NeedRow
from fairlead.plan.schedule.engine.scorer import Packed, Random, Scorer, WholeGPUs
from fairlead.plan.schedule.engine.shape import Shape
from fairlead.plan.schedule.engine.table import NodeTable, kind_shape
from fairlead.plan.schedule.queue import Changes
from fairlead.plan.schedule.reference import NodeInfo, PodInfo

_MOST_BYTES: Final = 512 << 20
"""Of all rows together."""
_NODE_BYTES: Final = 48
"""Of one node in one row."""
_PART: Final = 8
"""The table of what is asked for is made anew when this part of it came or went."""
_MOST_KINDS: Final = 128
"""The most frequent kinds are in the table of fragmentation: a tenant must not choose how large it becomes."""
POLICIES: Final = tuple(dict.fromkeys((*reference.POLICIES, *policies.POLICIES)))
"""Names that `control.policy` may have; `packed` and `spread` are those of `reference`."""


class EngineRankings:
    """Rankings by array; see `rankings.Rankings`."""

    def __init__(self, policy: str, *, seed: int = 0) -> None:
        """Take one of `POLICIES`; `seed` is that of `random`."""
        self.policy = policy
        self.table = NodeTable()
        self._draws = np.random.Generator(np.random.PCG64(seed))
        self._kept: OrderedDict[tuple[object, ...], NeedRow] = OrderedDict()
        self.asked = Counter[reference.Kind]()
        """How many pods of each kind are on nodes."""
        self._total = 0
        """How many there were when the table of fragmentation was made."""
        self._weighed: Mapping[reference.Kind, int] = {}
        """What the table was made of: the same, and kinds that wait."""
        self._unweighed = set[reference.Kind]()
        """Kinds that wait and came after it was made."""
        self._generation = self.table.generation
        self._scorers: dict[str, Scorer] = {}
        """By policy, as they are asked for; one whose table has aged is not changed, but replaced."""

    def take(self, views: Mapping[str, NodeInfo], changes: Changes) -> None:
        """See `rankings.Rankings`."""
        self.table.take(views, changes)
        for before, after in changes.values():
            for node, sign in ((before, -1), (after, 1)):
                for kind, count in node.kinds.items() if node is not None else ():
                    self.asked[kind] += sign * count
        self._weigh()

    def of(self, need: PodInfo) -> NeedRow:
        """See `rankings.Rankings`."""
        key = need.key()
        row = self._kept.get(key)
        if row is None:
            row = self._kept[key] = NeedRow(need, self.table, self._scorer(need))
            while len(self._kept) > max(1, _MOST_BYTES // (_NODE_BYTES * max(1, len(self.table)))):
                self._kept.popitem(last=False)
            if need.kind not in self._weighed:
                self._unweighed.add(need.kind)
                self._weigh()
        self._kept.move_to_end(key)
        row.scorer = self._scorer(need)
        return row

    def _weigh(self) -> None:
        """Have the policies' table made anew where it has aged."""
        grown = abs(self.asked.total() - self._total)
        has_aged = grown * _PART > max(self._total, len(self._weighed)) or len(self._unweighed) * _PART > len(
            self._weighed
        )
        if self._generation != self.table.generation:
            self._generation = self.table.generation
            self._scorers.clear()
        elif has_aged:
            for name in [name for name, one in self._scorers.items() if isinstance(one, WholeGPUs)]:
                del self._scorers[name]

    def _learn(self) -> None:
        """Take what is asked for now."""
        counts = Counter(row.need.kind for row in self._kept.values())
        counts.update(self.asked)
        self._total, self._unweighed = self.asked.total(), set()
        self._weighed = {kind: count for kind, count in sorted(counts.items()) if count > 0}

    def _scorer(self, need: PodInfo) -> Scorer:
        """Return the scorer of a need's policy."""
        policy = need.policy or self.policy
        found = self._scorers.get(policy)
        if found is None:
            found = self._scorers[policy] = self._new_scorer(policy)
        return found

    def _new_scorer(self, policy: str) -> Scorer:
        if policy in reference.POLICIES:
            return Packed(self.table, is_spread=policy == "spread")
        if policy == "random":
            return Random(self._draws)
        if not any(isinstance(one, WholeGPUs) for one in self._scorers.values()):
            self._learn()
        shapes = Counter[Shape]()
        for kind, count in self._weighed.items():
            shapes[kind_shape(kind)] += count
        table = dict(shapes.most_common(_MOST_KINDS))
        return WholeGPUs(self.table, policies.POLICIES[policy](self.table.state, table))

"""Keeps a ranking of all nodes for each need, the ones used last; the reference implementation, with Python alone.

`Rankings` is what the live scheduler asks. There are two: `PlainRankings` here judges node by node (`ranking.Ranking`,
`reference`, `policy.wholegpus`), `engine.rankings.EngineRankings` judges by arrays. Both know every policy, and tests
hold them to each other.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from fairlead.plan.schedule.policy import demand, wholegpus
from fairlead.plan.schedule.queue.queue import Changes
from fairlead.plan.schedule.ranking import Ranking
from fairlead.plan.schedule.reference import POLICIES, Kind, NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Summary

_MOST_RESULTS: Final = 100_000
"""Remembered answers of nodes, over all needs; each is some 300 bytes."""


class NeedRanking(Protocol):
    """All nodes for one need."""

    @property
    def blockers(self) -> frozenset[str]:
        """Return the filters that refused any node."""
        ...

    def refresh(self, nodes: Mapping[str, NodeInfo]) -> Iterator[int]:
        """Judge what changed; yields after each slice how many nodes it had. `nodes` may change in between."""
        ...

    def summary(self) -> Summary:
        """Return the decision over everything that is remembered; nothing may be left to judge."""
        ...

    def scores(self) -> Mapping[str, float]:
        """Return what every node that fits is worth; nothing may be left to judge."""
        ...


class Rankings(Protocol):
    """Rankings by need."""

    policy: str

    def take(self, views: Mapping[str, NodeInfo], changes: Changes) -> None:
        """Note nodes that changed, before anything is asked of them."""
        ...

    def of(self, need: PodInfo) -> NeedRanking:
        """Return the ranking for a need; it may have to be refreshed."""
        ...


class PlainRankings:
    """Rankings that judge node by node."""

    def __init__(self, policy: str, *, seed: int = 0) -> None:
        """Take one of `settings.control.POLICIES`; `seed` is that of `random`."""
        self.policy = policy
        self._draws = random.Random(seed)  # noqa: S311 one of equal nodes, no secret
        self._kept: OrderedDict[tuple[object, ...], Ranking] = OrderedDict()
        """By need, the one used last at the end."""
        self._nodes: Mapping[str, NodeInfo] = {}
        self.demand = demand.Demand()
        self._scores: dict[str, tuple[int, wholegpus.Score]] = {}
        """By policy, as they are asked for, with the version of what is asked for; an aged one is replaced."""

    def take(self, views: Mapping[str, NodeInfo], changes: Changes) -> None:
        """See `Rankings`."""
        self._nodes = views
        self.demand.take(changes)
        for ranking in self._kept.values():
            for name in changes:
                ranking.mark(name)

    def of(self, need: PodInfo) -> Ranking:
        """See `Rankings`."""
        self.demand.note(need.kind)
        key, score = need.key(), self._score(need)
        found = self._kept.get(key)
        if found is None or found.score is not score:
            draws = self._draws if (need.policy or self.policy) == "random" else None
            found = self._kept[key] = Ranking(need, self._nodes, score=score, draws=draws)
            while len(self._kept) > max(1, _MOST_RESULTS // max(1, len(self._nodes))):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _score(self, need: PodInfo) -> wholegpus.Score:
        """Return what scores nodes for a need, by its policy."""
        policy = need.policy or self.policy
        if policy in POLICIES:
            return POLICIES[policy]
        table = dict[Kind, int]()
        if policy in demand.WEIGHING:
            waiting = (ranking.need.kind for ranking in self._kept.values())
            table = dict(self.demand.table((need.kind, *waiting)))
        version, found = self._scores.get(policy, (0, None))
        if found is None or (policy in demand.WEIGHING and version != self.demand.version):
            found = _even if policy == "random" else wholegpus.scorer(policy, table)
            self._scores[policy] = self.demand.version, found
        return found


def _even(_need: PodInfo, _node: NodeInfo) -> float:
    return 0.0

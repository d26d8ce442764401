"""Keeps a ranking of all nodes for each need, the ones used last; with Python alone, and so the slow truth.

`Rankings` is what the live scheduler asks. There are two: `PlainRankings` here judges node by node (`ranking.Ranking`,
`reference`), `engine.rankings.EngineRankings` judges by arrays and knows every policy. Tests hold them to each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from fairlead.plan.schedule.queue import Changes
from fairlead.plan.schedule.ranking import Ranking
from fairlead.plan.schedule.reference import POLICIES, NodeInfo, PodInfo
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

    def __init__(self, policy: str) -> None:
        """Take a row of `reference.POLICIES`; for a name that it does not have, `packed` stands."""
        self.policy = policy if policy in POLICIES else "packed"
        self._kept: OrderedDict[tuple[object, ...], Ranking] = OrderedDict()
        """By need, the one used last at the end."""
        self._nodes: Mapping[str, NodeInfo] = {}

    def take(self, views: Mapping[str, NodeInfo], changes: Changes) -> None:
        """See `Rankings`."""
        self._nodes = views
        for ranking in self._kept.values():
            for name in changes:
                ranking.mark(name)

    def of(self, need: PodInfo) -> Ranking:
        """See `Rankings`."""
        key = need.key()
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = Ranking(need, self._nodes, policy=self._policy_of(need))
            while len(self._kept) > max(1, _MOST_RESULTS // max(1, len(self._nodes))):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _policy_of(self, need: PodInfo) -> str:
        return need.policy if need.policy in POLICIES else self.policy

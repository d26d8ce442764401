"""Keeps the nodes in order for one need, and judges again only those that changed.

A scheduler asks the same question for thousands of pods: where does this need fit best? `Ranking` remembers each
node's answer. The keeper of the nodes marks those that changed; `refresh` judges them, a slice at a time, so that the
caller can do something else in between, and `summary` answers from what is remembered. Its answers are those of
`reference.place` over the same nodes, which a test holds it to.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlead.plan.schedule import peers, reference
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Reason, Summary
from fairlead.plan.schedule.topology import offers

SLICE: Final = 250
"""Nodes judged between two pauses: a few milliseconds."""


class Ranking:
    """All nodes for one need; begins with every node to be judged."""

    def __init__(
        self,
        need: PodInfo,
        nodes: Iterable[str],
        *,
        score: Callable[[PodInfo, NodeInfo], float] = reference.score_packed,
        draws: random.Random | None = None,
    ) -> None:
        """Take the need and the names of all nodes. Args: draws: what draws one of the nodes; None: the best wins."""
        self.need = need
        self.score = score
        self._draws = draws
        self._changed = set(nodes)
        self._offers: dict[str, Mapping[str, offers.Offer]] = {}
        """By node that fits: its devices."""
        self._refused: dict[str, tuple[str, tuple[str, ...]]] = {}
        """By node: the filter that refused it, and its reasons."""
        self._reasons: dict[str, set[str]] = {}
        """By reason: the nodes that were refused for it."""
        self._base: dict[str, float] = {}
        """By node that fits: the policy's score."""
        self._order: list[tuple[float, str]] = []
        """The same as (negative score, name), best first."""
        self._worths: dict[str, tuple[int, ...]] = {}
        """By node that fits: what it is worth in each row of `reference.SCORES`."""
        self._tallies: dict[str, peers.Tally] = {}
        """By node, where other pods matter: what its pods are to the need."""

    def __len__(self) -> int:
        """Return how many nodes are remembered."""
        return len(self._refused) + len(self._base)

    def mark(self, node: str) -> None:
        """Have a node judged again: it changed, came or went."""
        self._changed.add(node)

    @property
    def blockers(self) -> frozenset[str]:
        """Return the filters that refused any node; of those that look at other pods, both."""
        found = frozenset(name for name, _ in self._refused.values())
        return found | {peers.AFFINITY, peers.SPREAD} if self.need.peer.is_concerned else found

    def refresh(self, nodes: Mapping[str, NodeInfo]) -> Iterator[int]:
        """Judge what changed; yields after each slice how many nodes it had. `nodes` may change in between."""
        while self._changed:
            count = 0
            while self._changed and count < SLICE:
                self._judge(self._changed.pop(), nodes)
                count += 1
            yield count

    def _judge(self, name: str, nodes: Mapping[str, NodeInfo]) -> None:
        self._forget(name)
        node = nodes.get(name)
        if node is None:
            return
        if self.need.peer.is_concerned:
            self._tallies[name] = reference.tally(self.need, node)
        refusal = reference.first_refusal(self.need, node)
        if refusal is not None:
            self._refused[name] = refusal
            for why in refusal[1]:
                self._reasons.setdefault(why, set()).add(name)
            return
        score = self._base[name] = self.score(self.need, node)
        bisect.insort(self._order, (-score, name))
        self._offers[name] = node.devices
        self._worths[name] = tuple(score.worth(self.need, node) for score in reference.SCORES.values())

    def _forget(self, name: str) -> None:
        self._tallies.pop(name, None)
        _, reasons = self._refused.pop(name, ("", ()))
        for why in reasons:
            self._reasons[why].discard(name)
            if not self._reasons[why]:
                del self._reasons[why]
        score = self._base.pop(name, None)
        if score is not None:
            del self._order[bisect.bisect_left(self._order, (-score, name))]
            del self._worths[name], self._offers[name]

    def summary(self) -> Summary:
        """Return the decision over everything that is remembered; nothing may be left to judge."""
        if self.need.peer.is_concerned:
            return self._surveyed()
        best = self._best()
        return Summary(
            nodes=len(self),
            fitting=len(self._base),
            best=best,
            reasons=_reasons(self._reasons),
            devices=self._devices(best),
            policy=self.need.policy,
        )

    def _devices(self, best: Sequence[tuple[str, float]]) -> str:
        return offers.words(self.need.requests, self._offers[best[0][0]]) if best else ""

    def scores(self) -> Mapping[str, float]:
        """Return what every node that fits is worth; nothing may be left to judge."""
        if not self.need.peer.is_concerned:
            order = self._order if len(set(self._worths.values())) <= 1 else self._weighed(list(self._base), ())
        else:
            survey = peers.Survey(self.need.peer, self._tallies.values())
            fitting = [name for name in self._base if survey.refusal(self._tallies[name]) is None]
            order = self._weighed(fitting, survey.scores([self._tallies[name] for name in fitting]))
        return {name: -score for score, name in order}

    def _surveyed(self) -> Summary:
        """Return the decision where other pods matter: their counts are added up again, over all nodes."""
        survey = peers.Survey(self.need.peer, self._tallies.values())
        reasons = {why: set(names) for why, names in self._reasons.items()}
        fitting = list[str]()
        for name in self._base:
            refusal = survey.refusal(self._tallies[name])
            if refusal is None:
                fitting.append(name)
                continue
            for why in refusal[1]:
                reasons.setdefault(why, set()).add(name)
        order = self._weighed(fitting, survey.scores([self._tallies[name] for name in fitting]))
        best = self._first(order)
        return Summary(
            nodes=len(self),
            fitting=len(fitting),
            best=best,
            reasons=_reasons(reasons),
            devices=self._devices(best),
            policy=self.need.policy,
        )

    def _best(self) -> tuple[tuple[str, float], ...]:
        order = self._order if len(set(self._worths.values())) <= 1 else self._weighed(list(self._base), ())
        return self._first(order)

    def _first(self, order: Sequence[tuple[float, str]]) -> tuple[tuple[str, float], ...]:
        if self._draws is not None:
            order = self._draws.sample(order, min(len(order), Summary.BEST))
        return tuple((name, -score) for score, name in order[: Summary.BEST])

    def _weighed(self, names: Sequence[str], more: Sequence[tuple[int, Sequence[float]]]) -> list[tuple[float, str]]:
        """Return the order where preferences distinguish nodes: each is scaled to the largest there is."""
        worths = {row: [self._worths[name][at] for name in names] for at, row in enumerate(reference.SCORES)}
        scores = reference.combined([self._base[name] for name in names], worths, more)
        return sorted((-score, name) for score, name in zip(scores, names, strict=True))


def _reasons(found: Mapping[str, Collection[str]]) -> tuple[Reason, ...]:
    return tuple(Reason(why=why, nodes=len(names), example=min(names)) for why, names in found.items())

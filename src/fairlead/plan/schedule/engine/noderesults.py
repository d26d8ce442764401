"""Keeps every node's result and score for one pod, and rebuilds only what changed (`rankings.EngineRankings`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from fairlead.plan.schedule import peers, reference
from fairlead.plan.schedule.engine.fragmentation import Floats
from fairlead.plan.schedule.engine.scorer import Random, Scorer, hundredths
from fairlead.plan.schedule.engine.state import Bools, Ints
from fairlead.plan.schedule.engine.table import NodeTable
from fairlead.plan.schedule.ranking import SLICE
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Reason, Summary
from fairlead.plan.schedule.topology import offers
from fairlead.wire.kubernetes import core

_RESOURCES: Final = "NodeResourcesFit"
_EACH: Final = tuple((row, score) for row, score in enumerate(reference.SCORES.values()) if score.measure is None)
"""The scores that are asked node by node, with their rows of `reference.SCORES`."""
_NO_AFFINITY: Final = core.NodeAffinity()


class NodeResults:
    """All nodes' results for one pod; begins with every node to be judged."""

    def __init__(self, need: PodInfo, table: NodeTable, scorer: Scorer) -> None:
        """Take the need and the nodes."""
        self.need = need
        self.scorer = scorer
        """May be replaced: every score is rebuilt by the new one."""
        self._scored_by: Scorer | None = None
        self._table = table
        self._generation = -1
        self._known = 0
        """Changes of nodes that were taken in."""
        self._words: list[tuple[str, tuple[str, ...]]] = [("", ())]
        """What filters said, each with the filter's name; the first is that they let the need pass."""
        self._numbers: dict[tuple[str, tuple[str, ...]], int] = {}
        self._resources = tuple(sorted(need.requests))
        self._devices = offers.asked(need.requests)
        self._knows_devices = False
        """Whether any node said how such devices hang together; else all are worth the same, nothing."""
        self._filters = tuple((name, check) for name, check in reference.filters(need).items() if name != _RESOURCES)
        """Those that are asked node by node; resources are the last."""
        has_rules = bool(need.node_selector or need.ports or need.asks or need.domain)
        is_scored = any(score.concerns_pod(need) for _, score in _EACH)
        self._is_plain = not has_rules and not is_scored and need.affinity == _NO_AFFINITY
        """Whether no filter and no score reads rules of the pod: every node that is open then lets it pass, worth 0."""
        self._tallies: dict[int, peers.Tally] = {}
        self._summary: Summary | None = None
        """What was said last; None: something changed since, or it is drawn again each time."""
        self._keep(np.zeros(0, dtype=np.int64), {})

    def __len__(self) -> int:
        """Return how many nodes are remembered."""
        return len(self._said)

    def _keep(self, origin: Ints, tallies: Mapping[int, peers.Tally]) -> None:
        """Move what is remembered to the nodes' places; -1: nothing is remembered of the node."""
        count, known = len(origin), origin >= 0
        said, fits, base = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_), np.full(count, -1.0)
        short = np.zeros((len(self._resources), count), dtype=np.bool_)
        worths = np.zeros((len(reference.SCORES), count), dtype=np.int64)
        if known.any():
            was = origin[known]
            said[known], fits[known], base[known] = self._said[was], self._fits[was], self._base[was]
            short[:, known], worths[:, known] = self._short[:, was], self._worths[:, was]
        self._said: Ints = said
        """By place: the number of what the first refusing filter said."""
        self._short: Bools = short
        """By resource and place: whether the node lacks it."""
        self._fits: Bools = fits
        self._base: Floats = base
        """By place: the policy's score; below zero where the need does not fit."""
        self._worths: Ints = worths
        """By row of `reference.SCORES` and place: what the node is worth."""
        self._tallies = {at: tallies[int(was)] for at, was in enumerate(origin) if int(was) in tallies}

    @property
    def blockers(self) -> frozenset[str]:
        """Return the filters that refused any node; of those that look at other pods, both."""
        found = {self._words[number][0] for number in np.unique(self._said) if number}
        found |= {_RESOURCES} if self._short[:, self._said == 0].any() else set()
        found |= {peers.AFFINITY, peers.SPREAD} if self.need.peer.is_concerned else set()
        return frozenset(found)

    def refresh(self, _nodes: Mapping[str, NodeInfo]) -> Iterator[int]:
        """Judge what changed, as the table has it; yields now and then how many nodes were judged one by one."""
        table = self._table
        is_same = self._generation == table.generation and self._scored_by is self.scorer
        if is_same and self._known == table.now:
            return
        self._summary = None
        if self._generation != table.generation:
            # Places are known for one generation back only: a row that slept longer judges every node again.
            is_next = self._generation == table.generation - 1
            self._keep(table.origin if is_next else np.full(len(table), -1, dtype=np.int64), self._tallies)
            self._known = self._known if is_next else 0
            self._generation = table.generation
        at = np.flatnonzero(table.changed > self._known)
        yield from self._judge_each(at)
        self._weigh_devices(at)
        short = table.short(self.need.requests, at)
        self._forgive(short, at)
        self._short[:, at] = short
        self._fits[at] = (self._said[at] == 0) & ~short.any(axis=0)
        self._base[at] = -1.0
        if self._scored_by is not self.scorer:
            at = np.arange(len(table))
            self._scored_by = self.scorer
        fitting = at[self._fits[at]]
        if len(fitting):
            self._base[fitting] = self.scorer.scores(self.need, fitting)
        self._known = table.now

    def _judge_each(self, at: Ints) -> Iterator[int]:
        """Judge what filters and preferences read of nodes one by one, where any may answer otherwise than for all."""
        table, need = self._table, self.need
        if need.peer.is_concerned:
            each = at
        elif self._is_plain:
            # Thousands of nodes in two assignments; one by one go only those that are closed or that a score concerns.
            self._said[at] = 0
            self._worths[:, at] = 0
            each = at[~table.is_open[at] | table.needs_scores[at]]
        else:
            each = at
        for count, place in enumerate(each.tolist(), 1):
            if count % SLICE == 0:
                yield SLICE
            node = table.infos[place]
            if need.peer.is_concerned:
                self._tallies[place] = reference.tally(need, node)
            self._said[place] = self._number(node)
            for row, score in _EACH:
                self._worths[row, place] = score.worth(need, node)
        yield len(each) % SLICE

    def _forgive(self, short: Bools, at: Ints) -> None:
        """Take back that nodes lack what a constraint meets there."""
        met = {name for ask in self.need.asks for name in ask.met}
        for row, name in enumerate(self._resources) if met else ():
            if name in met:
                offered = (self._table.infos[place].allocatable.get(name, 0) for place in at.tolist())
                short[row] &= np.fromiter((amount > 0 for amount in offered), dtype=np.bool_, count=len(at))

    def _weigh_devices(self, at: Ints) -> None:
        """Look up how the devices of changed nodes hang together; of all nodes, once any node says so at all."""
        table, knew = self._table, self._knows_devices
        self._knows_devices = table.knows(self._devices)
        at = at if knew else np.arange(len(table))
        for row, score in enumerate(reference.SCORES.values()):
            if score.measure is None or not score.concerns_pod(self.need):
                continue
            if self._knows_devices:
                self._worths[row, at] = table.worths(self._devices, at, score.measure)
            elif knew:
                self._worths[row] = 0

    def _number(self, node: NodeInfo) -> int:
        for name, check in self._filters:
            if why := check(self.need, node):
                number = self._numbers.setdefault((name, why), len(self._words))
                if number == len(self._words):
                    self._words.append((name, why))
                return number
        return 0

    def summary(self) -> Summary:
        """Return the decision over everything that is remembered; nothing may be left to judge."""
        if self._summary is None:
            found = self._decide()
            if isinstance(self.scorer, Random):
                return found
            self._summary = found
        return self._summary

    def _decide(self) -> Summary:
        fitting = np.flatnonzero(self._fits)
        reasons = self._reasons()
        more = list[tuple[int, Sequence[float]]]()
        if self.need.peer.is_concerned:
            fitting, more = self._surveyed(fitting, reasons)
        best = self._best(fitting, self._weighed(fitting, more))
        found = tuple(
            Reason(why=why, nodes=count, example=self._table.names[at]) for why, (count, at) in reasons.items()
        )
        chosen = self._table.infos[self._table.index[best[0][0]]].devices if best else {}
        return Summary(
            nodes=len(self),
            fitting=len(fitting),
            best=best,
            reasons=found,
            devices=offers.words(self.need.requests, chosen) if chosen else "",
            policy=self.need.policy,
        )

    def scores(self) -> Mapping[str, float]:
        """Return what every node that fits is worth; nothing may be left to judge."""
        fitting, more = np.flatnonzero(self._fits), list[tuple[int, Sequence[float]]]()
        if self.need.peer.is_concerned:
            fitting, more = self._surveyed(fitting, {})
        names, scores = self._table.names, self._weighed(fitting, more)
        return {names[at]: float(score) for at, score in zip(fitting.tolist(), scores, strict=True)}

    def _reasons(self) -> dict[str, tuple[int, int]]:
        """Return by reason how many nodes it refused, and the first of them."""
        found: dict[str, tuple[int, int]] = {}
        if len(self._words) > 1:
            numbers, firsts, counts = np.unique(self._said, return_index=True, return_counts=True)
            for number, first, count in zip(numbers.tolist(), firsts.tolist(), counts.tolist(), strict=True):
                for why in self._words[number][1]:
                    _add(found, why, count, first)
        passed = self._said == 0 if len(self._words) > 1 else None
        for name, short in zip(self._resources, self._short, strict=True):
            lacking = short if passed is None else short & passed
            if count := int(np.count_nonzero(lacking)):
                _add(found, reference.lack(name), count, int(lacking.argmax()))
        return found

    def _surveyed(
        self, fitting: Ints, reasons: dict[str, tuple[int, int]]
    ) -> tuple[Ints, list[tuple[int, Sequence[float]]]]:
        """Return the nodes that the rules on other pods leave, and what these rules say for them."""
        survey, left = peers.Survey(self.need.peer, self._tallies.values()), list[int]()
        for place in fitting.tolist():
            refusal = survey.refusal(self._tallies[place])
            if refusal is None:
                left.append(place)
            for why in () if refusal is None else refusal[1]:
                _add(reasons, why, 1, place)
        return np.array(left, dtype=np.int64), list(survey.scores([self._tallies[place] for place in left]))

    def _weighed(self, fitting: Ints, more: Sequence[tuple[int, Sequence[float]]]) -> Floats:
        """Return the scores of nodes that fit with their preferences, by the arithmetic of `reference.combined`."""
        base = self._base[fitting]
        parts: list[tuple[int, Floats]] = []
        if self._worths.any():
            for row, score in enumerate(reference.SCORES.values()):
                values = self._worths[row, fitting]
                if len(values) and values.min() != values.max():
                    parts.append((score.weight, _scaled(values)))
        parts += [(weight, np.array(values)) for weight, values in more if len(set(values)) > 1]
        if not parts and not more:
            return base
        total = 0 + 1 * base
        for weight, scores in parts:
            total = total + weight * scores
        return hundredths(total / (1 + sum(weight for weight, _ in parts)))

    def _best(self, fitting: Ints, scores: Floats) -> tuple[tuple[str, float], ...]:
        if isinstance(self.scorer, Random):
            order = self.scorer.order(len(fitting))
            fitting, scores = fitting[order], scores[order]
            chosen = np.arange(min(len(fitting), Summary.BEST))
        else:
            chosen = _first(scores, Summary.BEST)
        names = self._table.names
        return tuple((names[fitting[at]], float(scores[at])) for at in chosen.tolist())


def _add(found: dict[str, tuple[int, int]], why: str, count: int, first: int) -> None:
    before, at = found.get(why, (0, first))
    found[why] = (before + count, min(at, first))


def _scaled(values: Ints) -> Floats:
    most, least = values.max(), values.min()
    found: Floats = 100 * values / most if most > 0 else 100 * (1 - values / least)
    return found


def _first(scores: Floats, count: int) -> Ints:
    """Return the places of the highest scores, the first of equal ones, without an order of all."""
    if len(scores) <= 4 * count:
        return np.argsort(-scores, kind="stable")[:count]
    left, found = scores.copy(), np.zeros(count, dtype=np.int64)
    for at in range(count):
        found[at] = left.argmax()
        left[found[at]] = -np.inf
    return found

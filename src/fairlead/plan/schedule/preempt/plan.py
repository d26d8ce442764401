"""Finds whose end makes room for pods that fit nowhere, and proves that they fit then. Pure.

For each pod that is asked for, every node is taken without the pods that may end; where the pod fits so, they are put
back one by one, the most valuable first, as long as it still fits: what is left out is the fewest and cheapest. A group
that would fall below its minimum ends as a whole, on all of its nodes. The after-state is a real one: the same filters
judge it that judge a placement, and the next pod of the same request is placed on top of it. Nothing is proposed that
does not place all of what is asked for.

Pods that ask for one thing, as for a claim that they share, are tried as one: where the first goes the others must. No
node may be able to take them all though what they share reaches several; then they are placed one after another, each
where the others' thing is.

The same search says when pods will fit that wait for others to end by themselves (`Terms.cost`).
Source: kube-scheduler pkg/scheduler/framework/preemption, SelectVictimsOnNode (reprieve by importance).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.plan.schedule import peers, reference
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.trial import Running, WhatIf

CANDIDATES: Final = 100
"""Nodes that are searched to the end for one pod; kube-scheduler's smallest number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who may end, and what that costs."""

    may_end: Callable[[Running], bool]
    value: Callable[[Running], Any]
    """The order of putting back: the largest first."""
    cost: Callable[[Sequence[Running]], Any]
    """Of the pods that end for one node; the node with the least is taken."""
    allowed: Mapping[str, int] = field(default_factory=dict)
    """By budget, how many pods may end."""
    still: Callable[[Running, Sequence[Running]], bool] = lambda _one, _gone: True
    """Whether a pod may end once those before it have gone."""
    is_repeatable: bool = False
    """Whether who must end on a node depends on that node alone, so that it is kept for pods that ask alike."""


NOBODY: Final = Terms(may_end=lambda _: False, value=lambda _: 0, cost=len)
"""No pod may end: what is asked for fits as it is, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is proposed: where each pod goes, and who ends for it."""

    nodes: tuple[str, ...]
    """In the order of what was asked for."""
    ended: tuple[Running, ...]


def find(asked: Sequence[PodInfo], trial: WhatIf, terms: Terms) -> Plan | None:
    """Return the cheapest way to place all that is asked for; None: there is none.

    Args: asked: as judged beside those who run (`PodInfo.among`).   trial: is changed; one is made for each search.
    """
    if len(asked) > 1 and not all(ask.is_counted or ask.is_foreseen for need in asked for ask in need.asks):
        return None  # what the first would take is not known to the next: others would end for nothing
    if (together := _together(asked)) is None:
        return None
    needs, nodes, ended = list(asked), dict[int, str](), dict[str, Running]()
    for members in together:
        every = _place([needs[at] for at in members], trial, terms, ended)
        # On one node they are tried as one, and else each by itself, where those before it let it be.
        for part in [members] if every is not None or len(members) == 1 else [[at] for at in members]:
            step = every or _place([needs[at] for at in part], trial, terms, ended)
            if step is None:
                return None
            name, gone = step
            trial.end(gone)
            ended |= {one.uid: one for one in gone}
            nodes |= dict.fromkeys(part, name)
            for at in part:
                _assume(f"asked:{at}", at, name, needs, members, trial)
    return Plan(
        nodes=tuple(nodes[at] for at in range(len(asked))),
        ended=tuple(sorted(ended.values(), key=lambda one: (one.namespace, one.name))),
    )


def has_common(asked: Sequence[PodInfo]) -> bool:
    """Return whether any pods ask for one thing, so that where the first goes is not for itself alone."""
    together = _together(asked)
    return together is not None and len(together) < len(asked)


def _together(asked: Sequence[PodInfo]) -> list[list[int]] | None:
    """Return the numbers of the needs that have something in common, in order; None: too many have one thing."""
    of, sets = dict[str, list[int]](), [[at] for at in range(len(asked))]
    for at, need in enumerate(asked):
        for ask in need.asks:
            for name in ask.common:
                users = of.setdefault(name, [])
                users.append(at)
                if len(users) > ask.common_most:
                    return None
                one, other = sets[users[0]], sets[at]
                if one is not other:
                    one += other
                    for each in other:
                        sets[each] = one
    return [sorted(members) for at, members in enumerate(sets) if at == min(members)]


def _assume(uid: str, at: int, name: str, needs: list[PodInfo], members: Iterable[int], trial: WhatIf) -> None:
    """Put a pod on a node, and have those after it that have something in common with it ask for it there."""
    need, view = needs[at], trial.view(name)
    for other in members:
        if other > at:
            needs[other] = _beside(needs[other], need, view)
    trial.assume(Running(uid=uid, namespace="", name="", node=name, need=need, priority=1 << 40, is_fixed=True))


def _beside(need: PodInfo, other: PodInfo, view: NodeInfo) -> PodInfo:
    placed = {ask.constraint: ask for ask in other.asks if ask.common}
    if not any(ask.constraint in placed for ask in need.asks):
        return need
    asks = tuple(ask.beside(placed[ask.constraint], view) if ask.constraint in placed else ask for ask in need.asks)
    return dataclasses.replace(need, asks=asks)


def _place(
    needs: Sequence[PodInfo], trial: WhatIf, terms: Terms, before: Mapping[str, Running]
) -> tuple[str, tuple[Running, ...]] | None:
    """Return the node for pods that are tried as one, and who ends for them; None: no node takes them all."""
    found: list[tuple[Any, str, tuple[Running, ...]]] = []
    known = trial.known.setdefault(needs[0].key(), {}) if terms.is_repeatable and len(needs) == 1 else None
    is_concerned = any(need.peer.is_concerned for need in needs)
    for name in trial.names:
        gone = known[name] if known is not None and name in known else _cheapest(needs, name, trial, terms, before)
        if known is not None:
            known[name] = gone
        if gone is None:
            continue
        found.append((terms.cost(gone), name, gone))
        if not gone and not is_concerned:
            break  # fits without ending any pod: no other node can cost less
        if len(found) >= CANDIDATES:
            break
    for _, name, gone in sorted(found, key=lambda one: (len(one[2]) > 0, one[0], one[1])):
        if _fits(needs, name, trial, {one.uid: one for one in gone}, is_proved):
            return name, gone
    return None


_Judge = Callable[[PodInfo, str, WhatIf, Collection[str]], bool]
"""Returns whether a pod fits on a node without some, by uid."""


def _is_let(need: PodInfo, name: str, trial: WhatIf, out: Collection[str]) -> bool:
    return reference.first_refusal(need, trial.view(name, out)) is None


def _fits(needs: Sequence[PodInfo], name: str, trial: WhatIf, out: Mapping[str, Running], judge: _Judge) -> bool:
    """Return whether pods fit on a node, each on top of those before it, once some have gone."""
    if len(needs) == 1:
        return judge(needs[0], name, trial, out)
    to, left, numbers = trial.checkpoint(), list(needs), range(len(needs))
    try:
        trial.end(out.values())
        for at in numbers:
            if not judge(left[at], name, trial, ()):
                return False
            _assume(f"tried:{at}", at, name, left, numbers, trial)
    finally:
        trial.rollback(to)
    return True


def _cheapest(
    needs: Sequence[PodInfo], name: str, trial: WhatIf, terms: Terms, before: Mapping[str, Running]
) -> tuple[Running, ...] | None:
    """Return who must end on a node for pods, and with them elsewhere; None: it does not help."""
    there = dict(trial.there[name])
    if not any(need.peer.is_concerned for need in needs) and _fits(needs, name, trial, {}, _is_let):
        return ()
    mine = {uid: one for uid, one in there.items() if terms.may_end(one)}
    if not _fits(needs, name, trial, mine, _is_let):
        return None
    # Putting back from the most valuable on is greedy, as kube-scheduler's reprieve is: at most one judgement a pod, in
    # place of one for each subset, and what it leaves out is minimal (any one of them put back would not fit), though
    # not always the fewest.
    out = dict(mine)
    for one in sorted(mine.values(), key=lambda one: (terms.value(one), one.uid), reverse=True):
        del out[one.uid]
        if not _fits(needs, name, trial, out, _is_let):
            out[one.uid] = one
    whole = _with_units(out, trial, before)
    others = [one for uid, one in whole.items() if uid not in mine]
    if not all(terms.may_end(one) for one in others) or _exceeds(whole.values(), terms, before):
        return None
    gone = list[Running]()
    for one in sorted(whole.values(), key=lambda one: (terms.value(one), one.uid)):
        if not terms.still(one, [*before.values(), *gone]):
            return None
        gone.append(one)
    return tuple(gone)


def _with_units(out: Mapping[str, Running], trial: WhatIf, before: Mapping[str, Running]) -> dict[str, Running]:
    """Return those who end, with every pod of a unit that would fall below its minimum, and of what falls with it."""
    # Three levels: a unit falls once more of it leave than it can spare, and takes its block along; a group falls once
    # more of its blocks fall than it can spare. Pods that end for an earlier step of the same plan count too.
    whole, leaving = dict(out), [*out.values(), *before.values()]
    counts = Counter(one.unit for one in leaving if one.unit)
    fallen = {one.unit: one for one in leaving if one.unit and counts[one.unit] > one.surplus}
    blocks = {one.block or unit: one for unit, one in fallen.items()}
    for name, one in blocks.items():
        others = sum(other.whole == one.whole for other in blocks.values())
        is_spared = not one.whole or name == one.whole or others <= one.spare
        whole |= {other.uid: other for other in trial.members(name if is_spared else one.whole)}
    return whole


def _exceeds(gone: Iterable[Running], terms: Terms, before: Mapping[str, Running]) -> bool:
    counts: dict[str, int] = {}
    for one in {**before, **{one.uid: one for one in gone}}.values():
        for budget in one.budgets:
            counts[budget] = counts.get(budget, 0) + 1
    return any(count > terms.allowed.get(budget, 0) for budget, count in counts.items())


def is_proved(need: PodInfo, name: str, trial: WhatIf, gone: Collection[str]) -> bool:
    """Return whether a pod fits on a node once some have gone, its rules on other pods and theirs on it included.

    Args: gone: their uids.
    """
    if not need.peer.is_concerned:
        return _is_let(need, name, trial, gone)
    views = {node: trial.view(node, gone) for node in trial.nodes}
    if reference.first_refusal(need, views[name]) is not None:
        return False
    tallies = {node: reference.tally(need, view) for node, view in views.items()}
    return peers.Survey(need.peer, tallies.values()).refusal(tallies[name]) is None

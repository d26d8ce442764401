"""Finds whose end makes room for pods that fit nowhere, and proves that they fit then. Pure.

For each pod that is asked for, every node is taken without the pods that may end; where the pod fits so, they are put
back one by one, the most valuable first, as long as it still fits: what is left out is the fewest and cheapest. A group
that would fall below its minimum ends as a whole, on all of its nodes. The after-state is a real one: the same filters
judge it that judge a placement, and the next pod of the same request is placed on top of it. Nothing is proposed that
does not place all of what is asked for.

The same search says when pods will fit that wait for others to end by themselves (`Terms.cost`).
Source: kube-scheduler pkg/scheduler/framework/preemption, SelectVictimsOnNode (reprieve by importance).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.plan.schedule import peers, reference
from fairlead.plan.schedule.reference import PodInfo
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
    nodes, ended = list[str](), dict[str, Running]()
    for number, need in enumerate(asked):
        step = _place(need, trial, terms, ended)
        if step is None:
            return None
        node, gone = step
        trial.end(gone)
        ended |= {one.uid: one for one in gone}
        nodes.append(node)
        uid = f"asked:{number}"
        trial.assume(Running(uid=uid, namespace="", name="", node=node, need=need, priority=1 << 40, is_fixed=True))
    return Plan(nodes=tuple(nodes), ended=tuple(sorted(ended.values(), key=lambda one: (one.namespace, one.name))))


def _place(
    need: PodInfo, trial: WhatIf, terms: Terms, before: Mapping[str, Running]
) -> tuple[str, tuple[Running, ...]] | None:
    found: list[tuple[Any, str, tuple[Running, ...]]] = []
    known = trial.known.setdefault(need.key(), {}) if terms.is_repeatable else None
    for name in trial.names:
        gone = known[name] if known is not None and name in known else _cheapest(need, name, trial, terms, before)
        if known is not None:
            known[name] = gone
        if gone is None:
            continue
        found.append((terms.cost(gone), name, gone))
        if not gone and not need.peer.is_concerned:
            break  # fits without ending any pod: no other node can cost less
        if len(found) >= CANDIDATES:
            break
    for _, name, gone in sorted(found, key=lambda one: (len(one[2]) > 0, one[0], one[1])):
        if is_proved(need, name, trial, gone):
            return name, gone
    return None


def _cheapest(
    need: PodInfo, name: str, trial: WhatIf, terms: Terms, before: Mapping[str, Running]
) -> tuple[Running, ...] | None:
    """Return who must end on a node for the need, and with them elsewhere; None: it does not help."""
    there = trial.there[name]
    if reference.first_refusal(need, trial.view(name)) is None and not need.peer.is_concerned:
        return ()
    mine = {uid: one for uid, one in there.items() if terms.may_end(one)}
    if reference.first_refusal(need, trial.view(name, mine)) is not None:
        return None
    # Putting back from the most valuable on is greedy, as kube-scheduler's reprieve is: at most one judgement a pod, in
    # place of one for each subset, and what it leaves out is minimal (any one of them put back would not fit), though
    # not always the fewest.
    out = dict(mine)
    for one in sorted(mine.values(), key=lambda one: (terms.value(one), one.uid), reverse=True):
        del out[one.uid]
        if reference.first_refusal(need, trial.view(name, out)) is not None:
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


def is_proved(need: PodInfo, name: str, trial: WhatIf, gone: Iterable[Running]) -> bool:
    """Return whether a pod fits on a node once some have gone, its rules on other pods and theirs on it included."""
    left = {one.uid for one in gone}
    if not need.peer.is_concerned:
        return reference.first_refusal(need, trial.view(name, left)) is None
    views = {node: trial.view(node, left) for node in trial.nodes}
    if reference.first_refusal(need, views[name]) is not None:
        return False
    tallies = {node: reference.tally(need, view) for node, view in views.items()}
    return peers.Survey(need.peer, tallies.values()).refusal(tallies[name]) is None

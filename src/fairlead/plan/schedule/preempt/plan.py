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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.plan.schedule import peers, reference
from fairlead.plan.schedule.reference import NodeInfo, PodInfo

CANDIDATES: Final = 100
"""Nodes that are searched to the end for one pod; kube-scheduler's smallest number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A pod that has a node, or for which room is held there."""

    uid: str
    namespace: str
    name: str
    node: str
    need: PodInfo
    priority: int = 0
    started_at: float = 0.0
    """Unix seconds."""
    unit: str = ""
    """Names what ends together: the group that would fall below its minimum; "": the pod alone."""
    surplus: int = 0
    """How many pods of the unit may end one by one before it falls below."""
    block: str = ""
    """Names what ends where the unit falls: the unit, or what it is a needed part of; "": the unit."""
    spare: int = 0
    """How many blocks of the whole may end before all of it does."""
    whole: str = ""
    """Names the group of the block; "": the unit."""
    budgets: frozenset[str] = frozenset()
    """Disruption budgets that count it."""
    is_held: bool = False
    """It does not run: room is held for it."""
    is_fixed: bool = False
    """No API can end it."""


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


class State:
    """Nodes with the pods on them, changed by the search and never by the caller meanwhile."""

    def __init__(self, nodes: Mapping[str, NodeInfo], running: Iterable[Running]) -> None:
        """Take the nodes with nothing on them, and who is there."""
        self.nodes, self.names = nodes, sorted(nodes)
        self.there: dict[str, dict[str, Running]] = {name: {} for name in nodes}
        for one in running:
            if one.node in self.there:
                self.there[one.node][one.uid] = one
        self._whole: dict[str, NodeInfo] = {}
        """By name: nodes with all that are on them, as far as they were asked for."""
        self.known: dict[tuple[object, ...], dict[str, tuple[Running, ...] | None]] = {}
        """By need and name: who must end there, where that depends on the node alone (`Terms.is_repeatable`)."""

    def view(self, name: str, without: Collection[str] = ()) -> NodeInfo:
        """Return a node with those on it, some left out by uid."""
        if not without:
            if name not in self._whole:
                needs = (one.need for one in self.there[name].values())
                self._whole[name] = reference.occupied(self.nodes[name], needs)
            return self._whole[name]
        needs = (one.need for uid, one in self.there[name].items() if uid not in without)
        return reference.occupied(self.nodes[name], needs)

    def members(self, name: str) -> list[Running]:
        """Return the pods of a unit, or of all units of a block or group."""
        here = (one for there in self.there.values() for one in there.values())
        return [one for one in here if one.unit and f"{one.unit}/".startswith(f"{name}/")]

    def remove(self, gone: Iterable[Running]) -> None:
        """Let pods end."""
        for one in gone:
            self.there[one.node].pop(one.uid, None)
            self._forget(one.node)

    def add(self, one: Running) -> None:
        """Put a pod on its node."""
        self.there[one.node][one.uid] = one
        self._forget(one.node)

    def _forget(self, name: str) -> None:
        self._whole.pop(name, None)
        for answers in self.known.values():
            answers.pop(name, None)


def find(asked: Sequence[PodInfo], state: State, terms: Terms) -> Plan | None:
    """Return the cheapest way to place all that is asked for; None: there is none.

    Args: asked: as judged beside those who run (`PodInfo.among`).   state: is changed; one is made for each search.
    """
    nodes, ended = list[str](), dict[str, Running]()
    for number, need in enumerate(asked):
        step = _place(need, state, terms, ended)
        if step is None:
            return None
        node, gone = step
        state.remove(gone)
        ended |= {one.uid: one for one in gone}
        nodes.append(node)
        uid = f"asked:{number}"
        state.add(Running(uid=uid, namespace="", name="", node=node, need=need, priority=1 << 40, is_fixed=True))
    return Plan(nodes=tuple(nodes), ended=tuple(sorted(ended.values(), key=lambda one: (one.namespace, one.name))))


def _place(
    need: PodInfo, state: State, terms: Terms, before: Mapping[str, Running]
) -> tuple[str, tuple[Running, ...]] | None:
    found: list[tuple[Any, str, tuple[Running, ...]]] = []
    known = state.known.setdefault(need.key(), {}) if terms.is_repeatable else None
    for name in state.names:
        gone = known[name] if known is not None and name in known else _cheapest(need, name, state, terms, before)
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
        if is_proved(need, name, state, gone):
            return name, gone
    return None


def _cheapest(
    need: PodInfo, name: str, state: State, terms: Terms, before: Mapping[str, Running]
) -> tuple[Running, ...] | None:
    """Return who must end on a node for the need, and with them elsewhere; None: it does not help."""
    there = state.there[name]
    if reference.first_refusal(need, state.view(name)) is None and not need.peer.is_concerned:
        return ()
    mine = {uid: one for uid, one in there.items() if terms.may_end(one)}
    if reference.first_refusal(need, state.view(name, mine)) is not None:
        return None
    # Putting back from the most valuable on is greedy, as kube-scheduler's reprieve is: at most one judgement a pod, in
    # place of one for each subset, and what it leaves out is minimal (any one of them put back would not fit), though
    # not always the fewest.
    out = dict(mine)
    for one in sorted(mine.values(), key=lambda one: (terms.value(one), one.uid), reverse=True):
        del out[one.uid]
        if reference.first_refusal(need, state.view(name, out)) is not None:
            out[one.uid] = one
    whole = _with_units(out, state, before)
    others = [one for uid, one in whole.items() if uid not in mine]
    if not all(terms.may_end(one) for one in others) or _exceeds(whole.values(), terms, before):
        return None
    gone = list[Running]()
    for one in sorted(whole.values(), key=lambda one: (terms.value(one), one.uid)):
        if not terms.still(one, [*before.values(), *gone]):
            return None
        gone.append(one)
    return tuple(gone)


def _with_units(out: Mapping[str, Running], state: State, before: Mapping[str, Running]) -> dict[str, Running]:
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
        whole |= {other.uid: other for other in state.members(name if is_spared else one.whole)}
    return whole


def _exceeds(gone: Iterable[Running], terms: Terms, before: Mapping[str, Running]) -> bool:
    counts: dict[str, int] = {}
    for one in {**before, **{one.uid: one for one in gone}}.values():
        for budget in one.budgets:
            counts[budget] = counts.get(budget, 0) + 1
    return any(count > terms.allowed.get(budget, 0) for budget, count in counts.items())


def is_proved(need: PodInfo, name: str, state: State, gone: Iterable[Running]) -> bool:
    """Return whether a pod fits on a node once some have gone, its rules on other pods and theirs on it included."""
    left = {one.uid for one in gone}
    if not need.peer.is_concerned:
        return reference.first_refusal(need, state.view(name, left)) is None
    views = {node: state.view(node, left) for node in state.nodes}
    if reference.first_refusal(need, views[name]) is not None:
        return False
    tallies = {node: reference.tally(need, view) for node, view in views.items()}
    return peers.Survey(need.peer, tallies.values()).refusal(tallies[name]) is None

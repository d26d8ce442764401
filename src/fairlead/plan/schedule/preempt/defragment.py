"""Finds pods that move elsewhere so that a larger one fits, and proves first that each of them fits there. Pure.

For one pod that fits nowhere every node is taken without the pods that may move; where it fits so, they are put back
one by one as long as it still fits. What is left out moves. Each of these is placed on another node of the after-state,
largest first, by the filters and the rules on other pods that judge every placement, the wanted pod being there
already; one that finds no place ends the attempt. A destination that would take such a pod itself now is left alone, so
that no block of free devices is made by breaking up another. Of all nodes the one is taken that costs the fewest moves.

Nothing is proposed that leaves a moved pod without a place, passes a disruption budget, or takes a group below its
minimum. After the moves the pod fits, so the next search proposes nothing for it.
Source: the descheduling of Weng et al., "Beware of Fragmentation", USENIX ATC 2023; KAI-Scheduler, consolidation.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.plan.pod import admission
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.preempt.plan import is_proved
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.trial import Running, WhatIf

CANDIDATES: Final = 20
"""Nodes whose pods are tried elsewhere for one pod, the cheapest first."""
_GOAL: Final = "goal:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One pod, and the node that has room for it."""

    pod: Running
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Room for one pod: on which node, and which pods move for it; none: the room is there."""

    node: str
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who may move."""

    barred: frozenset[str] = frozenset()
    """Uids of pods that may not, beside those that are fixed."""
    allowed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By disruption budget, how many pods may go."""
    most: int
    """Pods that may move for one proposal."""


def find(goal: PodInfo, trial: WhatIf, terms: Terms) -> Proposal | None:
    """Return the proposal of the fewest moves; None: none is proved.

    Args: goal: as judged beside those who run (`PodInfo.among`).   trial: is changed to the after-state of a proposal,
          and left as it was where there is none.
    """
    found = list[tuple[tuple[int, int], str, tuple[Running, ...]]]()
    for name in sorted(trial.nodes):
        if _has_room(goal, trial, name) and is_proved(goal, name, trial, ()):
            _put_goal(goal, name, trial)
            return Proposal(node=name, moves=())
        found += [(_cost(out), name, out) for out in _leaving(goal, name, trial, terms)]
    for _, name, out in sorted(found, key=lambda one: (one[0], one[1]))[:CANDIDATES]:
        if (moves := _moved(goal, name, out, trial)) is not None:
            return Proposal(node=name, moves=moves)
    return None


def _has_room(need: PodInfo, trial: WhatIf, name: str) -> bool:
    return reference.first_refusal(need, trial.view(name)) is None


def _cost(out: Sequence[Running]) -> tuple[int, int]:
    return len(out), sum(_devices(one) for one in out)


def _devices(one: Running) -> int:
    return sum(value for name, value in one.need.requests.items() if admission.is_extended(name))


def _leaving(goal: PodInfo, name: str, trial: WhatIf, terms: Terms) -> Iterable[tuple[Running, ...]]:
    """Yield who would move from a node for the goal: as few as may be, and as small as may be."""
    mine = {uid: one for uid, one in trial.there[name].items() if not one.is_fixed and uid not in terms.barred}
    if not mine or reference.first_refusal(goal, trial.view(name, mine)) is not None:
        return
    seen = set[frozenset[str]]()
    for sign in (1, -1):
        out = dict(mine)
        for one in sorted(mine.values(), key=lambda one: (sign * _devices(one), one.uid)):
            del out[one.uid]
            if reference.first_refusal(goal, trial.view(name, out)) is not None:
                out[one.uid] = one
        if frozenset(out) not in seen and len(out) <= terms.most and _is_borne(out.values(), terms):
            seen.add(frozenset(out))
            yield tuple(sorted(out.values(), key=lambda one: (-_devices(one), one.uid)))


def _is_borne(out: Iterable[Running], terms: Terms) -> bool:
    """Return whether disruption budgets and groups bear that these go at once."""
    budgets, units = Counter[str](), Counter[str]()
    for one in out:
        budgets.update(one.budgets)
        if one.unit:
            units[one.unit] += 1
            if units[one.unit] > one.surplus:
                return False
    return all(count <= terms.allowed.get(budget, 0) for budget, count in budgets.items())


def _moved(goal: PodInfo, name: str, out: Sequence[Running], trial: WhatIf) -> tuple[Move, ...] | None:
    """Place those who leave a node elsewhere, the goal in their stead; None: one of them fits nowhere."""
    before, moves = trial.checkpoint(), list[Move]()
    trial.end(out)
    if is_proved(goal, name, trial, ()):
        _put_goal(goal, name, trial)
        for one in out:
            if (node := _home(one, name, goal, trial)) is None:
                break
            trial.assume(dataclasses.replace(one, node=node))
            moves.append(Move(pod=one, node=node))
        else:
            return tuple(moves)
    trial.rollback(before)
    return None


def _put_goal(goal: PodInfo, name: str, trial: WhatIf) -> None:
    uid = f"{_GOAL}{name}:{len(trial.there[name])}"
    trial.assume(Running(uid=uid, namespace="", name="", node=name, need=goal))


def _home(one: Running, left: str, goal: PodInfo, trial: WhatIf) -> str | None:
    """Return the node, other than the one that is left, with the least devices to spare that takes a pod."""
    devices = [name for name in one.need.requests if admission.is_extended(name)]
    found = list[tuple[int, str]]()
    for name in trial.nodes:
        if name == left:
            continue
        view = trial.view(name)
        if one.need.lacks(view):
            continue
        if reference.first_refusal(one.need, view) is None and not _takes(goal, view):
            found.append((sum(view.free(resource) for resource in devices), name))
    return next((name for _, name in sorted(found) if is_proved(one.need, name, trial, ())), None)


def _takes(goal: PodInfo, view: reference.NodeInfo) -> bool:
    return reference.first_refusal(goal, view) is None

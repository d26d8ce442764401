"""Tries placements before anything is decided: steps that are kept, or taken back in reverse, as a whole or in part.

A `Trial` is over the scheduler's cache: gangs are placed pod by pod on top of each other, and room that is held is lent
for one judgement. A `WhatIf` is over a copy that one search makes for itself: who would have to end (`preempt`), who
would have to move, when pods would fit. Both know the same verbs, so a search takes nothing back by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.constraint import Reservation
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.wire.kubernetes import core


class _Steps:
    """What was done, with what undoes each."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def checkpoint(self) -> int:
        """Return where the trial stands, for `rollback`."""
        return len(self._undo)

    def rollback(self, to: int = 0) -> None:
        """Take back every step since a checkpoint, the last first."""
        while len(self._undo) > to:
            self._undo.pop()()

    def commit(self) -> None:
        """Keep every step: `rollback` finds none of them from now on."""
        self._undo.clear()


class Trial(_Steps):
    """Steps on the scheduler's cache; left as a context without `commit`, all of them are taken back.

    What the watch says meanwhile wins: a pod that was bound or deleted, and a volume that changed, stay as they are.
    """

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self._cache = cache

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rollback()

    def assume(self, pod: core.Pod, node: str) -> None:
        """Count a pod as bound, so that the next is judged on top."""
        self._cache.assume(pod, node)
        self._undo.append(lambda: self._cache.forget(pod.metadata.uid, is_in_hand=True))

    def reserve(self, reserved: Iterable[Reservation]) -> None:
        """Count what is reserved as given, so that the next pod of a group takes something else."""
        every = tuple(reserved)
        self._cache.assume_reserved(every)
        self._undo.append(lambda: self._cache.withdraw_reserved(every))

    def lend(self, uid: str) -> None:
        """Let go of the room that is held for a pod, so that another may be judged to use it meanwhile."""
        if (held := self._cache.release(uid)) is not None:
            self._undo.append(lambda: self._cache.hold_again(held))

    def rollback(self, to: int = 0) -> None:
        """See `_Steps.rollback`. No other pod was judged by these steps: none that waits hears of their end."""
        news = self._cache.news
        before = dataclasses.replace(news, left=set(news.left), recalled=set(news.recalled))
        super().rollback(to)
        self._cache.news = before


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


class WhatIf(_Steps):
    """Nodes with the pods on them, changed by one search and never by its caller meanwhile."""

    def __init__(self, nodes: Mapping[str, NodeInfo], running: Iterable[Running]) -> None:
        """Take the nodes with nothing on them, and who is there."""
        super().__init__()
        self.nodes, self.names = dict(nodes), sorted(nodes)
        self.there: dict[str, dict[str, Running]] = {name: {} for name in nodes}
        for one in running:
            if one.node in self.there:
                self.there[one.node][one.uid] = one
        self._whole: dict[str, NodeInfo] = {}
        """By name: nodes with all that are on them, as far as they were asked for."""
        self.known: dict[tuple[object, ...], dict[str, tuple[Running, ...] | None]] = {}
        """By need and name: who must end there, where that depends on the node alone."""

    def assume(self, one: Running) -> None:
        """Put a pod that waits on its node."""
        before = self.nodes[one.node]
        foreseen = [ask for ask in one.need.asks if ask.is_foreseen]
        if foreseen:
            view = self.view(one.node)
            limits = {**before.limits, **{ask.constraint: ask.after(view) for ask in foreseen}}
            self.nodes[one.node] = dataclasses.replace(before, limits=limits)
            self._undo.append(lambda: self._restore(before))
        if one.need.asks:
            need = dataclasses.replace(one.need, asks=tuple(ask.once_there() for ask in one.need.asks))
            one = dataclasses.replace(one, need=need)
        self._add(one)
        self._undo.append(lambda: self._remove(one))

    def end(self, gone: Iterable[Running]) -> None:
        """Let pods end."""
        for one in gone:
            self._remove(one)
            self._undo.append(lambda one=one: self._add(one))  # type: ignore[misc]

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

    def _add(self, one: Running) -> None:
        self.there[one.node][one.uid] = one
        self._forget(one.node)

    def _remove(self, one: Running) -> None:
        self.there[one.node].pop(one.uid, None)
        self._forget(one.node)

    def _restore(self, node: NodeInfo) -> None:
        self.nodes[node.name] = node
        self._forget(node.name)

    def _forget(self, name: str) -> None:
        self._whole.pop(name, None)
        for answers in self.known.values():
            answers.pop(name, None)

"""Counts what the pods of each queue have and wait for, and decides whose turn it is and who must wait. Pure.

A pod is put in when it is seen and dropped when it goes, by its uid; sums are kept, nothing is summed up again. Shares
are rebuilt only when what is asked for changes, never for a binding. Without queues nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.schedule.fairshare.tree import DEFAULT, ROOT, UNIT, Amounts, Tree
from fairlead.wire.kubernetes import core

QUEUE_KEYS: Final = ("kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "scheduling.volcano.sh/queue-name")
"""Labels or annotations by which a pod names its queue.

Source: kueue pkg/controller/constants; KAI-Scheduler pkg/common/constants; volcano.sh/apis scheduling/v1beta1.
"""
QUEUE_LABEL: Final = QUEUE_KEYS[0]
_NOT_SHARED: Final = "pods"


def named_queue(pod: core.Pod) -> str:
    """Return the queue that a pod names; "" where it names none."""
    about = pod.metadata
    return next((found for key in QUEUE_KEYS if (found := about.labels.get(key) or about.annotations.get(key))), "")


@dataclass(slots=True)
class _Entry:
    queue: str
    problem: str
    needs: Amounts
    is_placed: bool
    is_leaving: bool = False
    """It has a node, and is about to end: it is counted as gone where others take from its queue."""


class Ledger:
    """What is taken and asked for, by queue."""

    def __init__(self, *, half_life_s: float = 0.0) -> None:
        """Begin without queues; `half_life_s`: after which what a queue had counts half, 0: only what it has now."""
        self.tree = Tree()
        self._half_life_s = half_life_s
        self._entries: dict[str, _Entry] = {}
        self._placed: dict[str, dict[str, int]] = {}
        self._asked: dict[str, dict[str, int]] = {}
        """By leaf: placed and waiting."""
        self._leaving: dict[str, dict[str, int]] = {}
        self._total: Amounts = {}
        self._shares: dict[str, dict[str, int]] | None = None
        self._sums: dict[str, dict[str, int]] | None = None
        """Placed, of every queue with those below it."""
        self._usage: dict[str, dict[str, float]] = {}
        self._usage_at: float | None = None

    # what there is

    def reset(self, tree: Tree) -> None:
        """Take other queues; the caller puts all pods again."""
        self.tree = tree
        self.clear()
        self._usage = {name: self._usage.get(name, {}) for name in tree.specs}

    def clear(self) -> None:
        """Forget all pods."""
        self._entries.clear()
        self._placed = {name: {} for name in self.tree.specs}
        self._asked = {name: {} for name in self.tree.specs}
        self._leaving = {name: {} for name in self.tree.specs}
        self._shares = self._sums = None

    def put(self, pod: core.Pod, requests: Amounts, *, named: str = "") -> None:
        """Count a pod that waits or has a node; `named`: the queue that its group names."""
        self.drop(pod.metadata.uid)
        queue, problem = self.tree.find(pod.metadata.namespace, named_queue(pod) or named)
        needs = {name: value for name, value in requests.items() if name != _NOT_SHARED and value}
        entry = self._entries[pod.metadata.uid] = _Entry(queue, problem, needs, bool(pod.spec.node_name))
        self._count(entry, 1)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._count(entry, -1)

    def place(self, uid: str, *, is_placed: bool) -> None:
        """Note that a pod has a node now, or has none any more; what is asked for stays."""
        entry = self._entries.get(uid)
        if entry is not None and entry.is_placed != is_placed:
            entry.is_placed = is_placed
            self._add(self._placed[entry.queue], entry.needs, 1 if is_placed else -1)
            self._sums = None

    def leave(self, uid: str) -> None:
        """Note that a pod with a node is about to end."""
        entry = self._entries.get(uid)
        if entry is not None and entry.is_placed and not entry.is_leaving:
            entry.is_leaving = True
            self._add(self._leaving[entry.queue], entry.needs, 1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._add(self._asked[entry.queue], entry.needs, sign)
        if entry.is_placed:
            self._add(self._placed[entry.queue], entry.needs, sign)
            self._sums = None
        if entry.is_leaving:
            self._add(self._leaving[entry.queue], entry.needs, sign)
        self._shares = None

    @staticmethod
    def _add(into: dict[str, int], amounts: Amounts, sign: int) -> None:
        for name, value in amounts.items():
            into[name] = into.get(name, 0) + sign * value

    def set_total(self, total: Amounts) -> None:
        """Take what the cluster has."""
        wanted = {name: value for name, value in total.items() if name != _NOT_SHARED}
        if wanted != self._total:
            self._total, self._shares = wanted, None

    @property
    def total(self) -> Amounts:
        """What the cluster has."""
        return self._total

    @property
    def shares(self) -> dict[str, dict[str, int]]:
        """What each queue is due now."""
        if self._shares is None:
            self._shares = self.tree.shares(self._total, self._asked)
        return self._shares

    @property
    def allocated(self) -> dict[str, dict[str, int]]:
        """What each queue has, with those below it."""
        if self._sums is None:
            self._sums = self.tree.totals(self._placed)
        return self._sums

    def pending(self) -> dict[str, dict[str, int]]:
        """Return what each queue waits for, with those below it."""
        asked, placed = self.tree.totals(self._asked), self.allocated
        return {
            name: {key: left for key, value in amounts.items() if (left := value - placed[name].get(key, 0))}
            for name, amounts in asked.items()
        }

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return how many pods of each queue have a node and wait, with those below it."""
        found = dict.fromkeys(self.tree.specs, (0, 0))
        for entry in self._entries.values():
            for name in self.tree.path(entry.queue):
                placed, waiting = found[name]
                found[name] = (placed + entry.is_placed, waiting + (not entry.is_placed))
        return found

    # decisions

    def queue_of(self, uid: str) -> str:
        """Return the queue of a pod."""
        entry = self._entries.get(uid)
        return DEFAULT if entry is None else entry.queue

    def needs(self, uid: str) -> Amounts:
        """Return what a pod takes of the shared resources."""
        entry = self._entries.get(uid)
        return {} if entry is None else entry.needs

    def choose(self, queues: Iterable[str]) -> str:
        """Return whose turn it is of queues with pods that wait: at each fork the side that has least of its share."""
        waiting = sorted(queues)
        if len(waiting) == 1:
            return waiting[0]
        paths = {name: tuple(reversed(self.tree.path(name))) for name in waiting if name in self.tree.specs}
        depth = 0
        while len(paths) > 1:
            sides = {path[depth] for path in paths.values()}
            best = min(sides, key=lambda side: (self._weight_of(side), side))
            paths = {name: path for name, path in paths.items() if path[depth] == best}
            depth += 1
        return next(iter(paths), waiting[0])

    def _weight_of(self, name: str) -> float:
        has = self.allocated[name]
        used = self._usage.get(name, {})
        amounts = {key: round(has.get(key, 0) + used.get(key, 0.0)) for key in {**has, **used}}
        return self.tree.ratio(amounts, self.shares[name])

    def refusal(self, uids: Iterable[str]) -> str:
        """Return why pods may not be placed now, whatever nodes there are; "" where their queue lets them.

        Args: uids: of pods that are placed together.
        """
        together, allocated = dict[str, dict[str, int]](), self.allocated
        for uid in uids:
            entry = self._entries.get(uid)
            if entry is None:
                continue
            if entry.problem:
                return entry.problem
            self._add(together.setdefault(entry.queue, {}), entry.needs, 1)
            if entry.is_placed:  # room is held for it: what it asks for counts already
                allocated = self._without(entry, allocated)
        return next((why for queue, needs in together.items() if (why := self._refusal(queue, needs, allocated))), "")

    def _without(self, entry: _Entry, allocated: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        found = {**allocated, **{name: dict(allocated[name]) for name in self.tree.path(entry.queue)}}
        for name in self.tree.path(entry.queue):
            self._add(found[name], entry.needs, -1)
        return found

    def _refusal(self, queue: str, needs: Amounts, allocated: Mapping[str, Amounts]) -> str:
        if over := self.tree.over_limit(queue, needs, allocated):
            name, resource = over
            has, most = allocated[name].get(resource, 0), self.tree.specs[name].limit[resource]
            asked = shown(needs[resource])
            return f'queue "{name}" is at its limit: {asked} {resource} asked, {shown(has)} of {shown(most)} taken'
        taken: dict[str, int] = {}
        for name in self.tree.children[ROOT]:
            self._add(taken, allocated[name], 1)
        free = {name: value - taken.get(name, 0) for name, value in self._total.items()}
        if kept := self.tree.kept_back(queue, needs, free, allocated):
            name, resource = kept
            return f'what is free of {resource} is kept for queue "{name}", whose guarantee it is'
        return ""

    def may_reclaim(self, taker: Iterable[str], giver: str) -> bool:
        """Return whether pods that wait and are placed together may end a pod of another queue."""
        uids = tuple(taker)
        needs: dict[str, int] = {}
        for uid in uids:
            self._add(needs, self.needs(uid), 1)
        entry = self._entries.get(giver)
        if entry is None or not uids:
            return False
        queue = self.queue_of(uids[0])
        return self.tree.may_reclaim(
            queue, needs, entry.queue, entry.needs, allocated=self._staying(), shares=self.shares
        )

    def _staying(self) -> dict[str, dict[str, int]]:
        """Return what each queue has without those that are about to end."""
        leaving = self.tree.totals(self._leaving)
        return {
            name: {key: value - leaving[name].get(key, 0) for key, value in amounts.items()}
            for name, amounts in self.allocated.items()
        }

    def is_over(self, giver: str, gone: Mapping[str, Amounts], taker: str) -> bool:
        """Return whether a pod's side is beyond its share still, once others of its queue have gone.

        Args: gone: by leaf, what has been taken from it already.   taker: the queue that takes.
        """
        entry = self._entries[giver]
        forked = self.tree.fork(taker, entry.queue)
        if forked is None:
            return True
        side, left = forked[1], dict(self._staying()[forked[1]])
        for leaf, amounts in gone.items():
            if side in self.tree.path(leaf):
                self._add(left, amounts, -1)
        share = self.shares[side]
        return any(left.get(key, 0) > share[key] for key, value in entry.needs.items() if value and key in share)

    # time

    def tick(self, now: float) -> None:
        """Let time pass for the usage; `now`: Unix seconds."""
        if self._half_life_s and self._usage_at is not None and now > self._usage_at:
            kept = 0.5 ** ((now - self._usage_at) / self._half_life_s)
            for name, has in self.allocated.items():
                used = self._usage.setdefault(name, {})
                for key in {**used, **has}:
                    used[key] = used.get(key, 0.0) * kept + has.get(key, 0) * (1 - kept)
        self._usage_at = now

    def usage(self) -> Mapping[str, Mapping[str, float]]:
        """Return the decayed averages of every queue, in thousandths."""
        return self._usage

    def restore(self, queue: str, usage: Mapping[str, float], age_s: float) -> None:
        """Take over the usage that another process counted, `age_s` ago."""
        if self._half_life_s and not self._usage.get(queue):
            kept = 0.5 ** (max(0.0, age_s) / self._half_life_s)
            self._usage[queue] = {name: value * kept for name, value in usage.items()}


def shown(thousandths: int) -> str:
    """Return an amount as people write it."""
    return f"{thousandths / UNIT:.12g}"

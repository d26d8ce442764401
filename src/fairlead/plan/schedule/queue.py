"""Orders the pods that wait for a node, and leaves alone those that nothing helps yet.

A pod to be looked at lies in the heap of its queue (`plan.schedule.fairshare`): higher priority first, then the oldest.
Where there are several heaps the caller's `choose` says whose turn it is. A pod that its queue or group holds back is
parked: it lies in no heap until the caller says so. Pods with equal needs are one group; once
one of them was refused the group rests with that refusal, which holds for each of them, until a node changes so that a
filter that refused them may let them pass (`plan.schedule.hint`) and the node takes them indeed. A group that is
refused again and again is not woken more often than its back-off allows; each rests no longer than `REST_S`, in case a
hint is missing, and no longer than `AGED_S` once nodes came, went or changed: its message is out of date then. A pod
whose binding failed waits out a back-off of its own.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead import backoff
from fairlead.plan.schedule import hint, reference
from fairlead.plan.schedule.group import gang
from fairlead.plan.schedule.ranking import SLICE
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.summary import Summary
from fairlead.wire.kubernetes import core

FIRST_WAIT_S: Final = 0.1
LAST_WAIT_S: Final = 10.0
"""Between two judgements of one group, and between two bindings of one pod; kube-scheduler's longest."""
REST_S: Final = 300.0
"""How long a group rests although no node changed for it; kube-scheduler's."""
AGED_S: Final = 10.0
"""How long a group rests after nodes came, went or changed otherwise than by the pods on them."""

Key = tuple[object, ...]
"""What equal needs have in common."""
Changes = Mapping[str, tuple[NodeInfo | None, NodeInfo | None]]
"""Nodes by name, as they were and as they are."""


@dataclass(slots=True)
class Group:
    """Pods that ask for the same."""

    need: PodInfo
    key: Key
    members: dict[str, core.Pod] = field(default_factory=dict)
    refusal: Summary | None = None
    """Why none of them fits; None: to be judged."""
    blockers: frozenset[str] = frozenset()
    """The filters that refused."""
    refusals: int = 0
    """In a row."""
    rested_at: float = 0.0
    is_woken: bool = False
    """A node changed for it."""
    aged_at: float = math.inf
    """Time of the first node change after the refusal; its words are about older nodes."""

    @property
    def due_at(self) -> float:
        """When it is judged again: soon where a node changed for it, late where none did."""
        if not self.is_woken:
            return min(self.rested_at + REST_S, self.aged_at + AGED_S)
        wait_s = backoff.doubled(self.refusals - 2, first_s=FIRST_WAIT_S, last_s=LAST_WAIT_S)
        return self.rested_at + (wait_s if self.refusals > 1 else 0)


class SchedulingQueue:
    """Pods that wait; see the module."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        queue_of: Callable[[str], str] = lambda _uid: "",
        choose: Callable[[Iterable[str]], str] = min,
    ) -> None:
        """Begin empty.

        Args: clock: gives monotonic seconds.   queue_of: gives a pod's queue by its uid.   choose: says whose turn it
              is of some queues.
        """
        self._clock, self._queue_of, self._choose = clock, queue_of, choose
        self._pods: dict[str, core.Pod] = {}
        self._heaps: dict[str, list[tuple[tuple[object, ...], str]]] = {}
        self._parked: dict[Key, dict[str, None]] = {}
        """By what holds them back: uids of pods that lie in no heap."""
        self._ready: set[str] = set()
        """Uids of the pods to be looked at; other entries of the heaps are passed over."""
        self._groups: dict[Key, Group] = {}
        self._group_of: dict[str, Group] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """By uid: how often a pod's binding failed, and until when it waits."""
        self._recalls: dict[str, float] = {}
        """By uid: when a pod is looked at although its group rests."""
        self._dues: list[tuple[float, int, str, Key]] = []
        """When to look at which pod (uid) or group (key); what is not so any more is passed over."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return how many pods wait."""
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        """Return whether the pod waits."""
        return uid in self._pods

    def clear(self) -> None:
        """Begin anew: a list follows. Pods that wait out a back-off go on doing so."""
        for uid in tuple(self._pods):
            self.drop(uid)

    def put(self, pod: core.Pod) -> None:
        """Have a pod looked at: it is new, or changed."""
        self._pods[pod.metadata.uid] = pod
        self._push(pod.metadata.uid)

    def drop(self, uid: str) -> None:
        """Forget a pod: it does not wait any more, or is put anew."""
        self._pods.pop(uid, None)
        self._ready.discard(uid)
        self._leave(uid)

    def _leave(self, uid: str) -> None:
        if group := self._group_of.pop(uid, None):
            del group.members[uid]
            if not group.members and group.refusal is None:
                self._groups.pop(group.key, None)

    def settle(self, uid: str) -> None:
        """Forget how often a pod's binding failed: it is bound, or gone."""
        self._failures.pop(uid, None)

    def _push(self, uid: str) -> None:
        if self._failures.get(uid, (0, 0.0))[1] <= self._clock() and uid not in self._ready:
            self._ready.add(uid)
            heapq.heappush(self._heaps.setdefault(self._queue_of(uid), []), (gang.turn(self._pods[uid]), uid))

    def pop(self) -> core.Pod | None:
        """Return the next pod to look at, None where none is to be."""
        for name, heap in tuple(self._heaps.items()):
            while heap and heap[0][1] not in self._ready:
                heapq.heappop(heap)
            if not heap:
                del self._heaps[name]
        if not self._heaps:
            return None
        name = next(iter(self._heaps)) if len(self._heaps) == 1 else self._choose(self._heaps)
        _, uid = heapq.heappop(self._heaps[name])
        self._ready.remove(uid)
        return self._pods[uid]

    def leave_alone(self, uid: str) -> None:
        """Have a pod not looked at until something is done for it: `recall`, or `put` again."""
        self._ready.discard(uid)

    def park(self, uid: str, key: Key) -> None:
        """Leave a pod alone until `unpark` is called for what holds it back."""
        if uid in self._pods:
            self._parked.setdefault(key, {})[uid] = None

    def parked(self) -> tuple[tuple[Key, str], ...]:
        """Return what holds pods back, each with the pod that is first in its turn."""
        found = []
        for key, uids in tuple(self._parked.items()):
            for uid in [uid for uid in uids if uid not in self._pods]:
                del uids[uid]
            if uids:
                found.append((key, min(uids, key=lambda uid: gang.turn(self._pods[uid]))))
            else:
                del self._parked[key]
        return tuple(found)

    def unpark(self, key: Key, uid: str) -> None:
        """Have a parked pod looked at."""
        if self._parked.get(key, {}).pop(uid, "") is None and uid in self._pods:
            self._push(uid)

    def group_of(self, uid: str) -> Group | None:
        """Return the group that a pod belongs to, None where it was not looked at yet."""
        return self._group_of.get(uid)

    def kinds(self) -> Iterator[reference.Kind]:
        """Yield what kind each pod is that waits and was looked at."""
        for group in self._groups.values():
            yield from itertools.repeat(group.need.kind, len(group.members))

    def refused(self) -> Iterator[core.Pod]:
        """Yield the pods that fit nowhere as things are."""
        for group in self._groups.values():
            if group.refusal is not None:
                yield from group.members.values()

    def look_after(self, uid: str, wait_s: float) -> None:
        """Have a pod looked at again after some time, although its group rests."""
        if uid in self._pods:
            self._recalls[uid] = self._clock() + wait_s
            self._due_at(self._recalls[uid], uid=uid)

    def stir(self, uid: str, *, but: Container[str]) -> None:
        """Let a pod's group not rest for its refusal: room is made for this pod, and may be for the others.

        Args: but: uids of pods that have room held for them; they wait for it.
        """
        group = self._group_of.get(uid)
        if group is not None and group.refusal is not None:
            group.refusal, group.is_woken = None, False
            for member in group.members:
                if member not in but:
                    self._push(member)

    def reorder(self) -> None:
        """Put every pod into the heap of its queue anew: the queues are others now."""
        self._heaps.clear()
        ready, self._ready = self._ready, set()
        parked, self._parked = self._parked, {}
        for uid in (*ready, *(uid for uids in parked.values() for uid in uids)):
            if uid in self._pods:
                self._push(uid)

    def recall(self, uid: str) -> None:
        """Have a pod looked at now, although its group rests: something was done for this one."""
        group = self._group_of.get(uid)
        if group is not None:
            group.refusal, group.is_woken = None, False
        if uid in self._pods:
            self._push(uid)

    def group(self, pod: core.Pod, need: PodInfo, *, of: Key = ()) -> Group:
        """Return the group of a pod that waits and asks for this; it belongs to it from now on, and to no other.

        Args: of: what it is placed with; pods of two gangs are never refused together.
        """
        self._leave(pod.metadata.uid)
        key = (*need.key(), *of)
        group = self._group_of[pod.metadata.uid] = self._groups.setdefault(key, Group(need, key))
        group.members[pod.metadata.uid] = pod
        return group

    def rest(self, group: Group, refusal: Summary, blockers: frozenset[str]) -> None:
        """Let a group rest: its need fits nowhere."""
        group.refusal, group.blockers, group.is_woken = refusal, blockers, False
        group.refusals, group.rested_at, group.aged_at = group.refusals + 1, self._clock(), math.inf
        self._due_at(group.due_at, key=group.key)

    def delay(self, pod: core.Pod, *, first_s: float = FIRST_WAIT_S, last_s: float = LAST_WAIT_S) -> None:
        """Look at a pod later: its binding failed. Each time it waits twice as long."""
        uid = pod.metadata.uid
        if uid in self._pods:
            failures, _ = self._failures.get(uid, (0, 0.0))
            due_at = self._clock() + backoff.doubled(failures, first_s=first_s, last_s=last_s)
            self._failures[uid] = (failures + 1, due_at)
            self._ready.discard(uid)
            self._due_at(due_at, uid=uid)

    def wake(self, changes: Changes) -> Iterator[int]:
        """Have the groups judged again that a changed node may take; yields, now and then, how many it compared."""
        if any(hint.is_other(before, after) for before, after in changes.values()):
            self._age()
        turned = [one for one in changes.values() if hint.improved(*one)]
        count = 0
        for key, group in tuple(self._groups.items()):
            if group.refusal is None or group.is_woken:
                continue
            is_concerned = group.need.peer.is_concerned
            for before, node in changes.values() if is_concerned else turned:
                count += 1
                if count % SLICE == 0:
                    yield SLICE
                if hint.may_help(group.need, before, node) if is_concerned else _takes(group.need, node):
                    group.is_woken = True
                    self._due_at(group.due_at, key=key)
                    break

    def _age(self) -> None:
        for key, group in self._groups.items():
            if group.refusal is not None and not group.is_woken and math.isinf(group.aged_at):
                group.aged_at = self._clock()
                self._due_at(group.due_at, key=key)

    def release(self) -> None:
        """Have those looked at whose time has come."""
        while self._dues and self._dues[0][0] <= self._clock():
            due_at, _, uid, key = heapq.heappop(self._dues)
            if self._recalls.get(uid) == due_at:
                del self._recalls[uid]
                self.recall(uid)
            elif uid in self._pods:
                self._push(uid)
            group = self._groups.get(key)
            if group is not None and group.refusal is not None and group.due_at == due_at:
                group.refusal, group.is_woken = None, False
                for member in group.members:
                    self._push(member)
                if not group.members:
                    del self._groups[key]

    def next_due_s(self) -> float | None:
        """Return the seconds until `release` may have something to do, None where nothing is to come."""
        return max(0.0, self._dues[0][0] - self._clock()) if self._dues else None

    def _due_at(self, due_at: float, *, uid: str = "", key: Key = ()) -> None:
        heapq.heappush(self._dues, (due_at, next(self._numbers), uid, key))


def _takes(need: PodInfo, node: NodeInfo | None) -> bool:
    return node is not None and reference.first_refusal(need, node) is None

"""Orders the pods that wait for a node, and leaves alone those that nothing helps yet.

Each pod that waits is in one state (`State`), and each state but IN_FLIGHT has something that ends it: a place in a
heap, a time in `_dues`, a group's refusal, or an event of the caller's; `problems` says where that is not so. A pod to
be looked at lies in the heap of its queue (`plan.schedule.fairshare`): higher priority first, then the oldest.
Where there are several heaps the caller's `choose` says whose turn it is. Pods with equal needs are one group; once
one of them was refused the group rests with that refusal, which holds for each of them, until a node changes so that a
filter that refused them may let them pass (`plan.schedule.queue.hint`) and the node takes them indeed. A group that is
refused again and again is not woken more often than its back-off allows; each rests no longer than `REST_S`, in case a
hint is missing, and no longer than `AGED_S` once nodes came, went or changed: its message is out of date then. A pod
whose binding failed waits out a back-off of its own.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead import backoff
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.group import gang
from fairlead.plan.schedule.queue import hint
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


class State(enum.Enum):
    """Where a pod that waits is; what ends it stands beside each."""

    ACTIVE = "to be looked at"
    """It lies in the heap of its queue: `pop`."""
    IN_FLIGHT = "being looked at"
    """The caller has it, and ends it with one of the others."""
    REFUSED = "refused by every node"
    """Its group rests: `wake`, or its group's time."""
    PARKED = "held back by its queue or group"
    """Under a key: `unpark`."""
    BLOCKED = "held back by what it asks for itself"
    """A claim, a tenancy, a rule: `recall`, `put` of the pod, or `REST_S`."""
    HELD = "waiting for room that is held for it"
    """`retry` when its node changes, `let_go` when the room is not held any more."""
    BACKING_OFF = "waiting after a binding that failed"
    """Its own time."""
    GATED = "held by its scheduling gates"
    """`put` of the pod without them."""


_STAYING: Final = frozenset((State.BACKING_OFF, State.GATED))
"""States that only time, or the pod itself, ends."""


@dataclass(slots=True)
class Group:
    """Pods that ask for the same."""

    need: PodInfo
    key: Key
    of: Key = ()
    """What they are placed with beside their need: a gang, or their standing."""
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
    is_stirred: bool = False
    """Room may be made for each of its members: they are judged although it rests, until one is refused again."""
    aged_at: float = math.inf
    """Time of the first node change after the refusal; its words are about older nodes."""

    due_at: float = math.inf
    """When it is judged again; a time of `_dues` that is another does not count."""

    def next_due_at(self) -> float:
        """Return when it is to be judged again: soon where a node changed for it, late where none did."""
        if not self.is_woken:
            return min(self.rested_at + REST_S, self.aged_at + AGED_S)
        wait_s = backoff.doubled(self.refusals - 2, first_s=FIRST_WAIT_S, last_s=LAST_WAIT_S)
        return self.rested_at + (wait_s if self.refusals > 1 else 0)


@dataclass(slots=True)
class _Entry:
    """A pod that waits."""

    pod: core.Pod
    state: State
    group: Group | None = None
    key: Key = ()
    """What holds it back, where it is parked, or was until it was looked at."""
    ticket: int = 0
    """Its place in a heap; entries of the heaps with other numbers are passed over."""
    lies: tuple[str, tuple[object, ...]] | None = None
    """In which queue's heap, and by which turn."""
    due_at: float = math.inf
    """When it is looked at whatever happens, where its state has a time."""
    is_forced: bool = False
    """Whether it is judged although its group rests."""
    is_again: bool = False
    """Whether something was done for it while it was looked at."""


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
        self._entries: dict[str, _Entry] = {}
        self._heaps: dict[str, list[tuple[tuple[object, ...], int, str]]] = {}
        self._parked: dict[Key, dict[str, None]] = {}
        """By what holds them back: uids."""
        self._groups: dict[Key, Group] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """By uid: how often a pod's binding failed, and until when it waits."""
        self._barred: set[str] = set()
        """Uids of pods whose binding was refused, as by an admission policy."""
        self._recalls: dict[str, float] = {}
        """By uid: when a pod is looked at although its group rests."""
        self._flying: dict[str, None] = {}
        """Uids of pods in flight."""
        self._dues: list[tuple[float, int, str, Key]] = []
        """When to look at which pod (uid) or group (key); what is not so any more is passed over."""
        self._last_number = 0

    def __len__(self) -> int:
        """Return how many pods wait."""
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        """Return whether the pod waits."""
        return uid in self._entries

    def state(self, uid: str) -> State | None:
        """Return where a pod is, None where it does not wait."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.state

    # events of pods

    def clear(self) -> None:
        """Reset: a list follows. Pods that wait out a back-off go on doing so."""
        for uid in tuple(self._entries):
            self.drop(uid)

    def put(self, pod: core.Pod) -> None:
        """Have a pod looked at: it is new, or changed."""
        uid = pod.metadata.uid
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = _Entry(pod, State.BLOCKED)
        entry.pod = pod
        if entry.group is not None:
            entry.group.members[uid] = pod
        if pod.spec.scheduling_gates:
            self._set(entry, State.GATED)
        elif (due_at := self._failures.get(uid, (0, 0.0))[1]) > self._clock():
            self._set(entry, State.BACKING_OFF, due_at)
        else:
            self._ask(entry)

    def replace(self, pod: core.Pod) -> None:
        """Take in a pod that asks for the same as before, and leave it where it is."""
        uid = pod.metadata.uid
        entry = self._entries.get(uid)
        if entry is not None:
            entry.pod, entry.is_again = pod, True
            if entry.group is not None:
                entry.group.members[uid] = pod

    def drop(self, uid: str) -> None:
        """Forget a pod: it does not wait any more, or is put in again."""
        entry = self._entries.get(uid)
        if entry is not None:
            self._set(entry, State.BLOCKED)  # out of what it lies in
            self._leave(entry)
            del self._entries[uid]

    def settle(self, uid: str) -> None:
        """Forget how often a pod's binding failed: it is bound, or gone."""
        self._failures.pop(uid, None)
        self._recalls.pop(uid, None)
        self.pardon(uid)

    def bar(self, uid: str) -> None:
        """Note that a pod's binding was refused, and will be again as far as is known: nothing is done for it."""
        self._barred.add(uid)

    def pardon(self, uid: str) -> None:
        """Note that a pod is another than the one that was refused."""
        self._barred.discard(uid)

    def is_barred(self, uid: str) -> bool:
        """Return whether a pod's last binding was refused, and it has not changed since."""
        return uid in self._barred

    def delay(self, pod: core.Pod, *, first_s: float = FIRST_WAIT_S, last_s: float = LAST_WAIT_S) -> None:
        """Look at a pod later: its binding failed. Each time it waits twice as long."""
        entry = self._entries.get(pod.metadata.uid)
        if entry is not None:
            failures, _ = self._failures.get(pod.metadata.uid, (0, 0.0))
            due_at = self._clock() + backoff.doubled(failures, first_s=first_s, last_s=last_s)
            self._failures[pod.metadata.uid] = (failures + 1, due_at)
            self._set(entry, State.BACKING_OFF, due_at)

    # a look, and what it comes to

    def pop(self) -> core.Pod | None:
        """Return the next pod to look at, None where none is to be; it is in flight until the caller says more."""
        for name, heap in tuple(self._heaps.items()):
            while heap and not self._is_in_heap(heap[0]):
                heapq.heappop(heap)
            if not heap:
                del self._heaps[name]
        if not self._heaps:
            return None
        name = next(iter(self._heaps)) if len(self._heaps) == 1 else self._choose(self._heaps)
        _, _, uid = heapq.heappop(self._heaps[name])
        self.take(uid)
        return self._entries[uid].pod

    def _is_in_heap(self, one: tuple[tuple[object, ...], int, str]) -> bool:
        entry = self._entries.get(one[2])
        return entry is not None and entry.state is State.ACTIVE and entry.ticket == one[1]

    def take(self, uid: str) -> None:
        """Have a pod in flight: it is looked at, alone or with others."""
        if (entry := self._entries.get(uid)) is not None and entry.state not in _STAYING:
            self._set(entry, State.IN_FLIGHT)
            entry.is_again = False
            self._flying[uid] = None

    def is_judged(self, uid: str) -> bool:
        """Return whether a pod in flight is to be judged; else its group's refusal holds for it."""
        entry = self._entries[uid]
        group = entry.group
        return group is None or group.refusal is None or group.is_stirred or entry.is_forced

    def park(self, uid: str, key: Key) -> None:
        """Leave a pod alone until `unpark` is called for what holds it back."""
        entry = self._entries.get(uid)
        if entry is not None and self._settles(entry):
            self._set(entry, State.PARKED)
            entry.key = key
            self._parked.setdefault(key, {})[uid] = None

    def block(self, uid: str) -> None:
        """Leave a pod alone until something is done for it: `recall`, or `put` again."""
        entry = self._entries.get(uid)
        if entry is not None and self._settles(entry):
            self._set(entry, State.BLOCKED, self._clock() + REST_S)

    def hold(self, uid: str) -> None:
        """Leave a pod alone until the room that is held for it is there, or is not held any more."""
        entry = self._entries.get(uid)
        if entry is not None and self._settles(entry):
            self._set(entry, State.HELD)

    def let_go(self, uid: str) -> None:
        """Look at a pod for which no room is held any more."""
        entry = self._entries.get(uid)
        if entry is not None and entry.state is State.HELD:
            self._activate(entry)

    def end_looks(self) -> None:
        """Leave what is in flight still to its group where that rests; else it is looked at again."""
        flying, self._flying = self._flying, {}
        for uid in flying:
            entry = self._entries.get(uid)
            if entry is None or entry.state is not State.IN_FLIGHT:
                continue
            if entry.group is None or entry.group.refusal is None:
                self._activate(entry)
            elif self._settles(entry):
                key, entry.key = entry.key, ()
                self._set(entry, State.REFUSED)
                self._unpark_all(key)  # it was let out first of those parked alike, which may ask for other nodes

    def _settles(self, entry: _Entry) -> bool:
        """Return whether a pod may be left alone; one for which something was done meanwhile is looked at again."""
        if entry.state in _STAYING:
            return False
        if entry.state is State.IN_FLIGHT and entry.is_again:
            self._activate(entry)
            return False
        return True

    # what happens beside

    def parked(self) -> tuple[tuple[Key, str], ...]:
        """Return what holds pods back, each with the pod that is first in its turn."""
        return tuple(
            (key, min(uids, key=lambda uid: gang.turn(self._entries[uid].pod))) for key, uids in self._parked.items()
        )

    def unpark(self, key: Key, uid: str) -> None:
        """Have a parked pod looked at."""
        if uid in self._parked.get(key, ()):
            self._activate(self._entries[uid])

    def _unpark_all(self, key: Key) -> None:
        for uid in tuple(self._parked.get(key, ())):
            self._activate(self._entries[uid])

    def retry(self, uid: str) -> None:
        """Have one pod judged now, although its group rests: something was done for this one alone."""
        entry = self._entries.get(uid)
        if entry is not None and entry.state not in _STAYING:
            self._ask(entry)
            entry.is_forced = True

    def recall(self, uid: str) -> None:
        """Have a pod, and those that ask for the same, looked at now."""
        entry = self._entries.get(uid)
        if entry is not None and entry.state not in _STAYING:
            if entry.group is not None:
                self.lift(entry.group)
            self._ask(entry)

    def stir(self, uid: str) -> None:
        """Have those judged that rest with a pod: room is made for this one, and may be for the others."""
        entry = self._entries.get(uid)
        if entry is not None and entry.group is not None:
            others = [self._entries[one] for one in entry.group.members if one != uid]
            entry.group.is_stirred = any(one.state in (State.REFUSED, State.ACTIVE) for one in others)
            for one in others:
                if one.state is State.REFUSED:
                    self._activate(one)

    def reorder(self) -> None:
        """Look at every pod again, in the heap of its queue: the queues are others now."""
        for group in tuple(self._groups.values()):
            self.lift(group)
        for entry in self._entries.values():
            if entry.state in (State.PARKED, State.ACTIVE):
                self._activate(entry)

    def look_after(self, uid: str, wait_s: float) -> None:
        """Have a pod looked at again after some time, although its group rests."""
        if uid in self._entries:
            self._recalls[uid] = self._clock() + wait_s
            self._due_at(self._recalls[uid], uid=uid)

    # groups

    def group_of(self, uid: str) -> Group | None:
        """Return the group that a pod belongs to, None where it was not looked at yet."""
        entry = self._entries.get(uid)
        return None if entry is None else entry.group

    def kinds(self) -> Iterator[reference.Kind]:
        """Yield what kind each pod is that waits and was looked at."""
        for group in self._groups.values():
            yield from itertools.repeat(group.need.kind, len(group.members))

    def refused(self) -> Iterator[core.Pod]:
        """Yield the pods that fit nowhere as things are."""
        for group in self.resting():
            yield from group.members.values()

    def resting(self) -> Iterator[Group]:
        """Yield the groups that rest with a refusal."""
        return (group for group in self._groups.values() if group.refusal is not None)

    def group(self, pod: core.Pod, need: PodInfo, *, of: Key = ()) -> Group:
        """Return the group of a pod that waits and asks for this; it belongs to it from now on, and to no other.

        Args: of: what it is placed with; pods of two gangs are never refused together.
        """
        uid, key = pod.metadata.uid, (*need.key(), *of)
        entry = self._entries.get(uid)
        if entry is not None and (entry.group is None or entry.group.key != key):
            self._leave(entry)
            entry.group = self._groups.setdefault(key, Group(need, key, of))
        group = self._groups.get(key) if entry is None else entry.group
        if group is None:
            group = Group(need, key, of)  # the pod does not wait any more
        if entry is not None:
            group.members[uid] = pod
            if entry.state is State.REFUSED and group.refusal is None:
                self._activate(entry)
        return group

    def _leave(self, entry: _Entry) -> None:
        group, entry.group = entry.group, None
        if group is not None:
            del group.members[entry.pod.metadata.uid]
            if not group.members and group.refusal is None:
                self._groups.pop(group.key, None)

    def rest(self, group: Group, refusal: Summary, blockers: frozenset[str]) -> None:
        """Let a group rest: its need fits nowhere."""
        group.refusal, group.blockers, group.is_woken = refusal, blockers, False
        group.refusals, group.rested_at, group.aged_at = group.refusals + 1, self._clock(), math.inf
        group.is_stirred = False
        self._schedule(group)

    def lift(self, group: Group) -> None:
        """End a group's rest: every member that rests, or waits for room that is held for it, is looked at."""
        group.refusal, group.is_woken, group.is_stirred = None, False, False
        for uid in tuple(group.members):
            if self._entries[uid].state in (State.REFUSED, State.HELD):
                self._activate(self._entries[uid])
        if not group.members:
            self._groups.pop(group.key, None)

    def wake(self, changes: Changes) -> Iterator[int]:
        """Have the groups judged again that a changed node may take; yields, now and then, how many it compared."""
        if any(hint.is_other(before, after) for before, after in changes.values()):
            self._age()
        turned = [one for one in changes.values() if hint.improved(*one)]
        count = 0
        for group in tuple(self._groups.values()):
            if group.refusal is None or group.is_woken:
                continue
            is_concerned = group.need.peer.is_concerned
            for before, node in changes.values() if is_concerned else turned:
                count += 1
                if count % SLICE == 0:
                    yield SLICE
                if hint.may_help(group.need, before, node) if is_concerned else _takes(group.need, node):
                    group.is_woken = True
                    self._schedule(group)
                    break

    def _age(self) -> None:
        for group in self._groups.values():
            if group.refusal is not None and not group.is_woken and math.isinf(group.aged_at):
                group.aged_at = self._clock()
                self._schedule(group)

    # time

    def release(self) -> None:
        """Have those looked at whose time has come."""
        while self._dues and self._dues[0][0] <= self._clock():
            due_at, _, uid, key = heapq.heappop(self._dues)
            if self._recalls.get(uid) == due_at:
                del self._recalls[uid]
                self.retry(uid)
            entry = self._entries.get(uid)
            if entry is not None and entry.due_at == due_at:
                self._activate(entry)
            group = self._groups.get(key)
            if group is not None and group.refusal is not None and group.due_at == due_at:
                self.lift(group)

    def next_due_s(self) -> float | None:
        """Return the seconds until `release` may have something to do, None where nothing is to come."""
        return max(0.0, self._dues[0][0] - self._clock()) if self._dues else None

    def _schedule(self, group: Group) -> None:
        group.due_at = group.next_due_at()
        self._due_at(group.due_at, key=group.key)

    def _due_at(self, due_at: float, *, uid: str = "", key: Key = ()) -> None:
        heapq.heappush(self._dues, (due_at, self._number(), uid, key))

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    # states

    def _ask(self, entry: _Entry) -> None:
        """Have a pod looked at; one in flight once that look is over."""
        if entry.state is State.IN_FLIGHT:
            entry.is_again = True
        else:
            self._activate(entry)

    def _activate(self, entry: _Entry) -> None:
        """Put a pod into the heap of its queue, where it does not lie there already."""
        uid = entry.pod.metadata.uid
        lies = (self._queue_of(uid), gang.turn(entry.pod))
        if entry.state is State.ACTIVE and entry.lies == lies:
            return
        is_forced = entry.is_forced
        self._set(entry, State.ACTIVE)
        entry.is_forced, entry.lies, entry.ticket = is_forced, lies, self._number()
        heapq.heappush(self._heaps.setdefault(lies[0], []), (lies[1], entry.ticket, uid))

    def _set(self, entry: _Entry, state: State, due_at: float = math.inf) -> None:
        """Move a pod to a state: the one place where a state changes."""
        if entry.state is State.PARKED:
            uids = self._parked.get(entry.key, {})
            uids.pop(entry.pod.metadata.uid, None)
            if not uids:
                self._parked.pop(entry.key, None)
        entry.state, entry.due_at, entry.lies = state, due_at, None
        entry.is_forced = entry.is_forced and state is State.IN_FLIGHT
        if math.isfinite(due_at):
            self._due_at(due_at, uid=entry.pod.metadata.uid)

    def problems(self) -> dict[str, str]:
        """Return by uid the pods that are not in one place from which something takes them; between looks, none."""
        lying = Counter(one[2] for heap in self._heaps.values() for one in heap if self._is_in_heap(one))
        parked = Counter(uid for uids in self._parked.values() for uid in uids)
        dues = {(due_at, uid or key) for due_at, _, uid, key in self._dues}
        found = dict[str, str]()
        for uid, entry in self._entries.items():
            group, state = entry.group, entry.state
            is_ended = {
                State.ACTIVE: True,
                State.IN_FLIGHT: False,
                State.REFUSED: group is not None
                and group.refusal is not None
                and self._groups.get(group.key) is group
                and (group.due_at, group.key) in dues,
                State.PARKED: uid in self._parked.get(entry.key, ()),
                State.BLOCKED: (entry.due_at, uid) in dues,
                State.HELD: True,
                State.BACKING_OFF: (entry.due_at, uid) in dues,
                State.GATED: bool(entry.pod.spec.scheduling_gates),
            }[state]
            is_member = group is None or uid in group.members
            is_single = lying[uid] == (state is State.ACTIVE) and parked[uid] == (state is State.PARKED)
            if not (is_ended and is_member and is_single):
                found[uid] = f"is {state.value}, and nothing ends that"
        return found


def _takes(need: PodInfo, node: NodeInfo | None) -> bool:
    return node is not None and reference.first_refusal(need, node) is None

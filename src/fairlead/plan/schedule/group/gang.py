"""Keeps the groups of pods that are placed all or not at all, and says what a group needs before any of it goes. Pure.

A gang is decided as one: once its minimum is there, as many of its pods as the minimum still lacks are placed one
after another on what is assumed, and either all are bound or the assumptions are taken back. Nothing of it is held
between two decisions, so two gangs cannot wait for each other. Pods beyond the minimum go by themselves (elastic), and
so does one that is made anew for one that ended while the others run.

Bindings are single writes, so a scheduler that dies, or an API server that goes away, between two of them leaves a gang
bound in part (`is_partial`): it is seen by pods that waited already when the others were bound. A pod that is made anew
later is younger than that; times have whole seconds, so one of the same second counts as having waited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.plan.schedule.group import membership
from fairlead.plan.schedule.group.membership import Key
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup


@dataclass(slots=True)
class Gang:
    """One group."""

    key: Key
    dialect: str
    minimum: int
    """Pods that must be placed at once."""
    is_known: bool
    """Whether the minimum is known; else the PodGroup is waited for."""
    waiting: dict[str, core.Pod] = field(default_factory=dict)
    """By uid: without a node."""
    placed: dict[str, core.Pod] = field(default_factory=dict)
    """By uid: with one, assumed or bound, and not ended."""
    held: set[str] = field(default_factory=set)
    """Of `waiting`, those that a scheduling gate holds."""
    assumed: set[str] = field(default_factory=set)
    """Of `placed`, those that the store has not confirmed."""
    is_started: bool = False
    """Whether the minimum was bound at once; so it stays until the last of them is gone."""
    partial_since: float | None = None
    """When a look at it first found it bound in part, in Unix seconds."""

    @property
    def name(self) -> str:
        """Its name as people write it."""
        return self.key[1]

    @property
    def lacking(self) -> int:
        """Return how many pods must be placed before the others may go by themselves."""
        return 0 if self.is_started else max(0, self.minimum - len(self.placed))

    @property
    def surplus(self) -> int:
        """Return how many of the placed may go without the gang falling below its minimum."""
        return max(0, len(self.placed) - self.minimum)

    @property
    def is_partial(self) -> bool:
        """Whether some of its pods are bound, and others that were there then, and are needed, are not."""
        if self.assumed or not self.placed or not self.is_known or not self.lacking:
            return False
        latest = max(_bound_at(pod) for pod in self.placed.values())
        return sum(_made_at(pod) <= latest for pod in self.waiting.values()) >= self.lacking

    def settle(self) -> None:
        """Note that pods came or went, or that the store said more of them."""
        bound = len(self.placed) - len(self.assumed)
        self.is_started = (self.is_started and bool(self.placed)) or (self.is_known and bound >= self.minimum)

    def refusal(self) -> str:
        """Return why none of its waiting pods may be placed yet; "" where the gang is complete."""
        if not self.is_known:
            return f'group "{self.name}" waits for its PodGroup ({self.dialect})'
        ready = len(self.waiting) - len(self.held)
        if not self.lacking or ready >= self.lacking:
            return ""
        there = ready + len(self.placed)
        more = f", {len(self.held)} of them held by scheduling gates" if self.held else ""
        seen = f"{there + len(self.held)} of {self.minimum} pods are there{more}"
        return f'group "{self.name}" is placed as a whole: {seen}'

    def chosen(self) -> tuple[core.Pod, ...]:
        """Return the pods to be placed at once: those of the highest priority, then the oldest."""
        ready = [pod for uid, pod in self.waiting.items() if uid not in self.held]
        return tuple(sorted(ready, key=turn)[: self.lacking])


def _made_at(pod: core.Pod) -> float:
    return meta.timestamp(pod.metadata.creation_timestamp) or 0.0


def _bound_at(pod: core.Pod) -> float:
    """Return when a pod was bound; infinity where that is not said yet, since it cannot be long ago."""
    scheduled = meta.find_condition(pod.status.conditions, "PodScheduled")
    said = scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None
    at = meta.timestamp(said or pod.status.start_time)
    return math.inf if at is None else at


def turn(pod: core.Pod) -> tuple[int, str, str, str]:
    """Return what orders pods that wait: higher priority first, then the oldest."""
    about = pod.metadata
    return (-(pod.spec.priority or 0), about.creation_timestamp or "", about.namespace, about.name)


class Gangs:
    """All groups, by what pods and PodGroups say."""

    def __init__(self) -> None:
        """Begin empty."""
        self._gangs: dict[Key, Gang] = {}
        self._key_of: dict[str, Key] = {}
        self._objects: dict[Key, dict[str, podgroup.PodGroup]] = {}
        """By key, and API version: two systems may each have a group of that name."""

    def put(self, pod: core.Pod, *, is_assumed: bool = False) -> None:
        """Take in a pod that waits or has a node; `drop` it before it changes sides.

        Args: is_assumed: the store has not confirmed the node.
        """
        found = membership.of_pod(pod)
        if found is None:
            return
        uid, key = pod.metadata.uid, (pod.metadata.namespace, found.name)
        gang = self._gangs.get(key)
        if gang is None:
            gang = self._gangs[key] = Gang(key, found.dialect, 1, is_known=False)
        if found.minimum is not None and not self._objects.get(key):
            gang.minimum, gang.is_known = found.minimum, True
        else:
            self._settle(gang)
        self._key_of[uid] = key
        (gang.placed if pod.spec.node_name else gang.waiting)[uid] = pod
        if is_assumed:
            gang.assumed.add(uid)
        gang.settle()
        if pod.spec.scheduling_gates and not pod.spec.node_name:
            gang.held.add(uid)

    def confirm(self, uid: str) -> None:
        """Note that the store has bound a pod that was assumed to be."""
        if uid in self._key_of:
            gang = self._gangs[self._key_of[uid]]
            gang.assumed.discard(uid)
            gang.settle()

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        gang = self._gangs[key]
        gang.waiting.pop(uid, None)
        gang.placed.pop(uid, None)
        gang.held.discard(uid)
        gang.assumed.discard(uid)
        gang.settle()
        if not gang.waiting and not gang.placed:
            del self._gangs[key]

    def clear(self) -> None:
        """Forget all pods; PodGroups stay."""
        self._gangs.clear()
        self._key_of.clear()

    def note(self, group: podgroup.PodGroup, *, is_gone: bool = False) -> Gang | None:
        """Take in a PodGroup; returns the gang that it is about, None where no pod is of it."""
        key = (group.metadata.namespace, group.metadata.name)
        known = self._objects.setdefault(key, {})
        known.pop(group.API_VERSION, None)
        if not is_gone:
            known[group.API_VERSION] = group
        if not known:
            del self._objects[key]
        gang = self._gangs.get(key)
        if gang is not None:
            self._settle(gang)
        return gang

    def _settle(self, gang: Gang) -> None:
        """Take the minimum from the group's object; the largest where several systems have one of that name."""
        if known := self._objects.get(gang.key):
            gang.minimum, gang.is_known = max(one.minimum for one in known.values()), True
            gang.settle()

    def of(self, uid: str) -> Gang | None:
        """Return the gang of a pod; None: it goes by itself."""
        key = self._key_of.get(uid)
        return None if key is None else self._gangs[key]

    def queue_of(self, uid: str) -> str:
        """Return the queue that the pod's PodGroup names, "" where it names none."""
        known = self._objects.get(self._key_of.get(uid, ("", "")), {})
        return next((one.spec.queue for one in known.values() if one.spec.queue), "")

    def object_of(self, uid: str) -> podgroup.PodGroup | None:
        """Return the PodGroup of a pod, the first where several systems have one of that name; None: there is none."""
        known = self._objects.get(self._key_of.get(uid, ("", "")), {})
        return next(iter(known.values()), None)

    def all(self) -> Iterable[Gang]:
        """Return every gang."""
        return self._gangs.values()

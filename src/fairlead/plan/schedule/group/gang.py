"""Keeps the groups of pods that are placed all or not at all, and says what a group needs before any of it goes. Pure.

A gang is decided as one: once its minimum is there, as many of its pods as the minimum still lacks are placed one
after another on what is assumed, and either all are bound or the assumptions are taken back. Nothing of it is held
between two decisions, so two gangs cannot wait for each other. Pods beyond the minimum go by themselves (elastic), and
so does one that is made anew for one that ended while the others run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.plan.schedule.group import membership
from fairlead.plan.schedule.group.membership import Key
from fairlead.wire.kubernetes import core
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
    is_started: bool = False
    """Whether the minimum had a place at once; so it stays until the last of them is gone."""

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

    def put(self, pod: core.Pod) -> None:
        """Take in a pod that waits or has a node; `drop` it before it changes sides."""
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
        gang.is_started = gang.is_started or (gang.is_known and len(gang.placed) >= gang.minimum)
        if pod.spec.scheduling_gates and not pod.spec.node_name:
            gang.held.add(uid)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        gang = self._gangs[key]
        gang.waiting.pop(uid, None)
        gang.placed.pop(uid, None)
        gang.held.discard(uid)
        gang.is_started = gang.is_started and bool(gang.placed)
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
            gang.is_started = gang.is_started or len(gang.placed) >= gang.minimum

    def of(self, uid: str) -> Gang | None:
        """Return the gang of a pod; None: it goes by itself."""
        key = self._key_of.get(uid)
        return None if key is None else self._gangs[key]

    def queue_of(self, uid: str) -> str:
        """Return the queue that the pod's PodGroup names, "" where it names none."""
        known = self._objects.get(self._key_of.get(uid, ("", "")), {})
        return next((one.spec.queue for one in known.values() if one.spec.queue), "")

    def all(self) -> Iterable[Gang]:
        """Return every gang."""
        return self._gangs.values()

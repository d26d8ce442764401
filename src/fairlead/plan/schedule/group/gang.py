"""Keeps the groups of pods that are placed all or not at all, and says what a group needs before any of it goes. Pure.

A gang is decided as one: once its minimum is there, as many of its pods as the minimum still lacks are placed one
after another on what is assumed, and either all are bound or the assumptions are taken back. Nothing of it is held
between two decisions, so two gangs cannot wait for each other. Pods beyond the minimum go by themselves (elastic), and
so does one that is recreated for one that ended while the others run.

A sub-group is a gang within one (`subgroup`): the gang is there once its sub-groups are, all of them or as many as its
PodGroup asks for, and they are placed together. A sub-group beyond those, or one whose pods were all recreated, is
placed as a whole by itself while the others run.

Bindings are single writes, so a scheduler that dies, or an API server that goes away, between two of them leaves a gang
bound in part (`is_partial`): it is seen by pods that waited already when the others were bound. A pod that is recreated
later is younger than that; times have whole seconds, so one of the same second counts as having waited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlead.plan.schedule.group import membership, subgroup
from fairlead.plan.schedule.group.membership import Key
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import podgroup


@dataclass(slots=True, eq=False)
class Gang:
    """One group, or a sub-group of one."""

    key: Key
    dialect: str
    minimum: int
    """Pods that must be placed at once."""
    is_known: bool
    """Whether the minimum is known; else the PodGroup is waited for."""
    kind: str = ""
    """Of a sub-group."""
    least: subgroup.Least = field(default_factory=dict)
    place: subgroup.Place = None
    """Of a sub-group: where it is to be in the network."""
    parts: dict[str, Gang] = field(default_factory=dict)
    """Sub-groups by name."""
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
    _part_of: dict[str, Gang] = field(default_factory=dict)
    """By uid: the sub-group of a pod."""

    @property
    def name(self) -> str:
        """Its name as people write it."""
        return self.key[-1]

    @property
    def is_part(self) -> bool:
        """Whether it is a sub-group."""
        return len(self.key) > 2

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        whole = f'group "{self.key[1]}"'
        return f'sub-group "{self.name}" of {whole}' if self.is_part else whole

    @property
    def size(self) -> int:
        """Return how many pods are placed at once where none has a node."""
        return max(self.minimum, sum(one.size for one in self.needed()))

    @property
    def lacking(self) -> int:
        """Return how many pods must be placed before the others may go by themselves."""
        if self.is_started:
            return 0
        alone = max(0, self.minimum - len(self.placed))
        return alone if not self.parts else max(alone, sum(one.lacking for one in self.needed()))

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

    def needed(self) -> list[Gang]:
        """Return the sub-groups that are placed with it: those that run, then those that are there whole, by turn."""
        if not self.parts:
            return []
        ordered = sorted(self.parts.values(), key=_readiness)
        found = [one for one in ordered if one.kind not in self.least]
        for kind, count in self.least.items():
            found += [one for one in ordered if one.kind == kind][:count]
        there = sum(one.size for one in found)
        for one in ordered:
            if there >= self.minimum:
                break
            if one.minimum and one not in found:
                found.append(one)
                there += one.size
        return found

    def spare(self, kind: str) -> int:
        """Return how many sub-groups of a kind may end without it falling below its minimum."""
        started = sum(one.is_started and one.kind == kind for one in self.parts.values())
        return max(0, started - self.least[kind]) if kind in self.least else 0

    def part(self, uid: str) -> Gang | None:
        """Return the sub-group of a pod; None: it is of the gang alone."""
        return self._part_of.get(uid)

    def chain(self, uid: str) -> Iterator[Gang]:
        """Yield the gang, and its sub-groups that a pod is of, the widest first."""
        one: Gang | None = self
        while one is not None:
            yield one
            one = one.part(uid)

    def put(self, pod: core.Pod, path: subgroup.Path, *, is_assumed: bool) -> None:
        """Take in a pod that waits or has a node."""
        uid = pod.metadata.uid
        (self.placed if pod.spec.node_name else self.waiting)[uid] = pod
        if is_assumed:
            self.assumed.add(uid)
        if pod.spec.scheduling_gates and not pod.spec.node_name:
            self.held.add(uid)
        if path:
            below = self._part_of[uid] = self.open(path[0])
            below.put(pod, path[1:], is_assumed=is_assumed)
        self.settle()

    def open(self, part: subgroup.Part) -> Gang:
        """Return a sub-group, made if it is new."""
        one = self.parts.get(part.name)
        if one is None:
            one = self.parts[part.name] = Gang((*self.key, part.name), self.dialect, part.minimum, is_known=True)
        one.minimum, one.kind, one.least, one.place = part.minimum, part.kind, part.least, part.place
        return one

    def confirm(self, uid: str) -> None:
        """Note that the store has bound a pod."""
        self.assumed.discard(uid)
        if uid in self._part_of:
            self._part_of[uid].confirm(uid)
        self.settle()

    def drop(self, uid: str) -> None:
        """Forget a pod; a sub-group that no PodGroup names goes with its last one."""
        self.waiting.pop(uid, None)
        self.placed.pop(uid, None)
        self.held.discard(uid)
        self.assumed.discard(uid)
        below = self._part_of.pop(uid, None)
        if below is not None:
            below.drop(uid)
            if below.kind and not below.waiting and not below.placed:
                self.parts.pop(below.name, None)
        self.settle()

    def arrange(self, layout: subgroup.Layout) -> None:
        """Have the sub-groups that a PodGroup declares; those that were started stay so."""
        pods = {**self.waiting, **self.placed}
        assumed, started = set(self.assumed), {one.key for one in self.all_parts() if one.is_started}
        self.parts, self._part_of, self.least = {}, {}, layout.least
        for path in layout.declared:
            above = self
            for one in path:
                above = above.open(one)
        for uid, pod in pods.items():
            self.put(pod, layout.of(pod), is_assumed=uid in assumed)
        for below in reversed([*self.all_parts()]):
            below.is_started = below.key in started
            below.settle()
        self.settle()

    def all_parts(self) -> Iterator[Gang]:
        """Yield its sub-groups, those below them included."""
        for one in self.parts.values():
            yield one
            yield from one.all_parts()

    def settle(self) -> None:
        """Note that pods came or went, or that the store said more of them."""
        bound = len(self.placed) - len(self.assumed)
        is_whole = self.is_known and bound >= self.minimum and self._has_started_parts()
        self.is_started = (self.is_started and bool(self.placed)) or is_whole

    def _has_started_parts(self) -> bool:
        return not self._missing() and all(one.is_started for one in self.needed())

    def _missing(self) -> str:
        """Return which sub-groups are not there at all."""
        for kind, count in self.least.items():
            there = sum(one.kind == kind for one in self.parts.values())
            if there < count:
                of = f' of "{kind}"' if kind else ""
                return f"{there} of {count} sub-groups{of} are there"
        return ""

    def refusal(self) -> str:
        """Return why none of its waiting pods may be placed yet; "" where the gang is complete."""
        if not self.is_known:
            return f"{self.title} waits for its PodGroup ({self.dialect})"
        if self.is_started:
            return ""
        if seen := self._missing():
            return f"{self.title} is placed as a whole: {seen}"
        if why := next((why for one in self.needed() if (why := one.refusal())), ""):
            return why
        ready, lacking = len(self.waiting) - len(self.held), self.lacking
        if not lacking or ready >= lacking:
            return ""
        there = ready + len(self.placed)
        more = f", {len(self.held)} of them held by scheduling gates" if self.held else ""
        seen = f"{there + len(self.held)} of {self.minimum} pods are there{more}"
        return f"{self.title} is placed as a whole: {seen}"

    def chosen(self) -> tuple[core.Pod, ...]:
        """Return the pods to be placed at once: by sub-group; those of the highest priority, then the oldest."""
        found = {pod.metadata.uid: pod for one in self.needed() for pod in one.chosen()} if self.parts else {}
        ready = [pod for uid, pod in self.waiting.items() if uid not in self.held and uid not in found]
        rest = self.lacking - len(found)
        return (*found.values(), *sorted(ready, key=turn)[: max(0, rest)])

    def apart(self, pods: Sequence[core.Pod]) -> list[tuple[Gang | None, tuple[core.Pod, ...]]]:
        """Return pods of it by sub-group, in their order; None: those of no sub-group."""
        found: dict[int, tuple[Gang | None, list[core.Pod]]] = {}
        for pod in pods:
            below = self._part_of.get(pod.metadata.uid)
            found.setdefault(id(below), (below, []))[1].append(pod)
        return [(below, tuple(some)) for below, some in found.values()]


def _readiness(one: Gang) -> tuple[object, ...]:
    first = min((turn(pod) for pod in one.waiting.values()), default=(0, "", "", ""))
    return (not one.is_started, not one.placed, bool(one.refusal()), first, one.name)


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


@dataclass(frozen=True, slots=True)
class Bond:
    """Names the group that ends with a pod, and how many of it may end first; "": nothing ends."""

    unit: str = ""
    """The innermost of its sub-groups, or its group."""
    surplus: int = 0
    """How many pods of the unit may end before it falls below its minimum."""
    block: str = ""
    """The sub-group or group that ends as a whole once the unit falls below its minimum."""
    spare: int = 0
    """How many such blocks may end before their group falls below its minimum."""
    whole: str = ""
    """That group of blocks."""


class Gangs:
    """All groups, by what pods and PodGroups say."""

    def __init__(self) -> None:
        """Begin empty."""
        self._gangs: dict[Key, Gang] = {}
        self._key_of: dict[str, Key] = {}
        self._objects: dict[Key, dict[str, podgroup.PodGroup]] = {}
        """By key, and API version: two systems may each have a group of that name."""
        self._layouts: dict[Key, subgroup.Layout] = {}
        """By key: the sub-groups that they declare."""

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
            self._settle(gang)
        if found.minimum is not None and not self._objects.get(key):
            gang.minimum, gang.is_known = found.minimum, True
        self._key_of[uid] = key
        gang.put(pod, self._layouts.get(key, subgroup.NONE).of(pod), is_assumed=is_assumed)

    def confirm(self, uid: str) -> None:
        """Note that the store has bound a pod that was assumed to be."""
        if uid in self._key_of:
            self._gangs[self._key_of[uid]].confirm(uid)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        gang = self._gangs[key]
        gang.drop(uid)
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
        layouts = (subgroup.layout(one) for one in known.values())
        before, after = (
            self._layouts.pop(key, subgroup.NONE),
            next((one for one in layouts if one.is_any), subgroup.NONE),
        )
        if after.is_any:
            self._layouts[key] = after
        gang = self._gangs.get(key)
        if gang is not None and before != after:
            gang.arrange(after)
        if gang is not None:
            self._settle(gang)
        return gang

    def _settle(self, gang: Gang) -> None:
        """Take the minimum from the group's object; the largest where several systems have one of that name."""
        if known := self._objects.get(gang.key):
            gang.minimum, gang.is_known = max(one.minimum for one in known.values()), True
            if gang.key in self._layouts and not gang.parts:
                gang.arrange(self._layouts[gang.key])
            gang.settle()

    def of(self, uid: str) -> Gang | None:
        """Return the gang of a pod; None: it goes by itself."""
        key = self._key_of.get(uid)
        return None if key is None else self._gangs[key]

    def bond(self, uid: str) -> Bond:
        """Return which pods must be evicted together with this one."""
        gang = self.of(uid)
        if gang is None or not gang.is_started:
            return Bond()
        chain = [*gang.chain(uid)]
        surplus, whole = min(one.surplus for one in chain), "/".join(gang.key)
        if gang.minimum > sum(one.size for one in gang.needed()):
            return Bond(whole, surplus, whole)  # its minimum exceeds its sub-groups': each eviction counts
        at = len(chain) - 1
        while at and not chain[at - 1].spare(chain[at].kind):
            at -= 1
        spare = chain[at - 1].spare(chain[at].kind) if at else 0
        return Bond("/".join(chain[-1].key), surplus, "/".join(chain[at].key), spare, whole)

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

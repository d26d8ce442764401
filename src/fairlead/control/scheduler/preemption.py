"""Makes room for pods that fit nowhere: has others end where that is proved to help, and holds the room for them.

Decisions come from `plan.schedule.preempt`. What is decided is held at once (`Cache.hold`): no other pod is placed
there while those that end are given their grace. A held pod is looked at again whenever its node changes; where the
room did not come in time it is searched for again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.cache.entry import Held
from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.group import gang as gangs
from fairlead.plan.schedule.group.gang import Gang
from fairlead.plan.schedule.preempt import backfill, plan, rule
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.reference import Domain, PodInfo
from fairlead.plan.schedule.trial import WhatIf
from fairlead.plan.schedule.workloads import Workloads
from fairlead.settings import ControlSettings
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import policy

SLACK_S: Final = 60.0
"""How long room is held beyond the grace of those who end for it."""
_UNKNOWN_S: Final = 600.0
"""How long room is held at a time where no time limit says when it becomes free."""
_LISTED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A pod that ends, and for whom."""

    pod: core.Pod
    why: str
    event: str = "Preempted"
    condition: str = "PreemptionByScheduler"
    """Reason of the condition DisruptionTarget."""


class Preemptor:
    """Finds whose end makes room for pods that fit nowhere, has them end, and holds the room."""

    def __init__(
        self,
        cache: Cache,
        workloads: Workloads,
        queue: SchedulingQueue,
        outside: tuple[Store, Placement],
        clock: Callable[[], float],
        settings: ControlSettings,
    ) -> None:
        """Take where pods and nodes are seen, and what ends pods; `clock` gives Unix seconds."""
        self._cache, self._workloads, self._clock = cache, workloads, clock
        self._store, self._placement = outside
        self._heads = backfill.Heads(settings.head_wait_s)
        self._waiting, self._later = queue, queue.look_after
        self._can_end, self._part_s = settings.preemption, settings.gang_part_s
        self._budgets: dict[str, policy.PodDisruptionBudget] = {}

    @property
    def budgets(self) -> tuple[policy.PodDisruptionBudget, ...]:
        """Return the disruption budgets that there are."""
        return tuple(self._budgets.values())

    def note_budget(self, budget: policy.PodDisruptionBudget, *, is_gone: bool = False) -> None:
        """Take in what the watch says."""
        self._budgets.pop(budget.metadata.uid, None)
        if not is_gone:
            self._budgets[budget.metadata.uid] = budget

    def find(self, asked: Sequence[core.Pod], *, had_room: bool) -> tuple[plan.Plan, tuple[Ending, ...]] | None:
        """Return nodes for pods that fit nowhere, all at once, and which pods would end for them; None: no end helps.

        Args: had_room: room was held for them until now, so that others may be about to end already.
        """
        if not self._can_end or (not had_room and not self._workloads.may_take(asked)):
            return None
        budgets = self.budgets
        pods = {pod.metadata.uid: (pod, need) for pod, need in self._cache.placed()}
        there = rule.running(pods.values(), self._workloads, budgets)
        terms = rule.terms(asked, self._workloads, rule.allowed(budgets), now=self._clock())
        if not had_room and not any(terms.may_end(one) for one in there):
            return None
        needs, uids = [self._cache.need(pod) for pod in asked], {pod.metadata.uid for pod in asked}
        there = (*there, *rule.held(self._cache, uids))
        tried = (plan.find(one, WhatIf(self._cache.empty(), there), terms) for one in self._placements(asked, needs))
        found = next((one for one in tried if one is not None), None)
        if found is None:
            return None
        more = f" and {len(asked) - 1} more" if len(asked) > 1 else ""
        ended = (pods[one.uid][0] for one in found.ended if not one.is_held)
        return found, tuple(
            Ending(pod=pod, why=f"ended to make room for {named(asked[:1], pod)[0]}{more} ({ground})")
            for pod, ground in ((pod, self._ground(pod, asked[0])) for pod in ended)
        )

    def _placements(self, asked: Sequence[core.Pod], needs: Sequence[PodInfo]) -> Iterator[Sequence[PodInfo]]:
        """Yield the needs confined to each domain that would fit them empty; unchanged where none is required."""
        gang = self._workloads.gang(asked[0].metadata.uid) if len(asked) > 1 else None
        if gang is None:
            yield needs
            return
        required = self._cache.places.asked(asked[0], gang).required
        for where in self._domains(needs, required):
            within = [domain.within(need, where) for need in needs]
            below = self._below(gang, asked, within)
            yield from below if below is not None else (within,)

    def _domains(self, needs: Sequence[PodInfo], required: str) -> Sequence[Domain]:
        """Return the domains that would take pods if they were empty, the tightest first; (): anywhere."""
        if not required:
            return ((),)
        of = domain.keys(required, self._cache.places.levels)
        return domain.candidates(needs, self._cache.empty().values(), of).fitting[: domain.MOST]

    def _below(
        self, gang: Gang, asked: Sequence[core.Pod], needs: Sequence[PodInfo]
    ) -> Iterator[Sequence[PodInfo]] | None:
        """Yield the needs with each sub-group confined to a domain of its own; None: no sub-group requires one."""
        number = {pod.metadata.uid: at for at, pod in enumerate(asked)}
        required = list[tuple[list[int], str]]()
        for pod in asked:
            for part in [*gang.chain(pod.metadata.uid)][1:]:
                level = self._cache.places.asked(pod, part).required
                ats = [number[uid] for uid in part.waiting if uid in number]
                if level and (ats, level) not in required:
                    required.append((ats, level))
        return self._spread(needs, required) if required else None

    def _spread(
        self, needs: Sequence[PodInfo], required: Sequence[tuple[list[int], str]]
    ) -> Iterator[Sequence[PodInfo]]:
        """Yield assignments of domains to sub-groups, rotated so that each sub-group begins with another domain."""
        found = [(ats, self._domains([needs[at] for at in ats], level)) for ats, level in required]
        if not all(domains for _, domains in found):
            return
        for turn in range(domain.MOST):
            made = list(needs)
            for number, (ats, domains) in enumerate(found):
                where = domains[(number + turn) % len(domains)]
                for at in ats:
                    made[at] = domain.within(made[at], where)
            yield made

    def _ground(self, victim: core.Pod, taker: core.Pod) -> str:
        mine, theirs = (self._workloads.queue_of(pod.metadata.uid) for pod in (taker, victim))
        if mine == theirs:
            return f"priority {taker.spec.priority or 0} before {victim.spec.priority or 0}"
        return f'queue "{theirs or "default"}" is beyond its share, "{mine or "default"}" is within'

    def take(self, asked: Sequence[core.Pod], found: plan.Plan, endings: Sequence[Ending]) -> str:
        """Hold the room and return the words for those who get it."""
        grace_s = max((one.pod.spec.termination_grace_period_seconds for one in endings), default=0)
        for one in found.ended:
            if one.is_held:
                self._cache.release(one.uid)
        for ending in endings:
            self._workloads.end(ending.pod.metadata.uid)
        for pod, node in zip(asked, found.nodes, strict=True):
            self._cache.hold(pod, node, for_s=grace_s + SLACK_S)
        there = (pod for pod, _ in self._cache.placed() if pod.spec.node_name in found.nodes)
        names = named([pod for pod in there if self._workloads.is_ending(pod)], asked[0])
        told = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
        where = ", ".join(dict.fromkeys(found.nodes))
        return f"room is being made on {where}: " + (f"{told} must end" if told else "it is free soon")

    def note_nodes(self) -> None:
        """Note that nodes came, went or are others: what fitted on none of them may now."""
        self._heads.forget_hopeless()

    def next_heads(self) -> Iterator[str]:
        """Yield the uids of pods that are the first of their queues now, where the first before them went."""
        yield from self._heads.vacant(self._waiting, self._workloads.queue_of)

    def reserve(self, pods: Sequence[core.Pod], had: Sequence[Held]) -> str:
        """Hold room for the first of a queue, a pod or a group, where its wait must be bounded.

        Args:    pods: those that are placed at once.   had: the room that was held for them until now.
        Returns: the words for it; "": none is held.
        """
        first, now = min(pods, key=gangs.turn), self._clock()
        uid = first.metadata.uid
        if self._is_good_still(pods, had):
            for one in had:
                self._cache.hold_again(one)
            return _words(had)
        if not self._heads.is_head(first, self._workloads.queue_of(uid), self._waiting):
            return ""
        if (wait_s := self._heads.due_s(pods, now)) > 0 and not self._workloads.has_limits:
            self._later(uid, wait_s)  # without time limits no start can be computed: others may pass it until then
            return ""
        start = self._earliest(pods)
        if start is None:
            self._heads.give_up(pods)
            return ""
        if not math.isfinite(start.at) and wait_s > 0:
            self._later(uid, wait_s)
            return ""
        # A start that is past, since pods end already, is free in a moment.
        free_at = max(start.at, now)
        for_s = free_at - now + SLACK_S if math.isfinite(free_at) else _UNKNOWN_S
        for pod, node in zip(pods, start.nodes, strict=True):
            self._cache.hold(pod, node, for_s=for_s, free_at=free_at, is_waited_for=True)
        return _words([self._cache.held[pod.metadata.uid] for pod in pods])

    def _is_good_still(self, pods: Sequence[core.Pod], had: Sequence[Held]) -> bool:
        """Return whether room that was found for pods may be held on: the same room, so that it fills up."""
        if {one.pod.metadata.uid for one in had} != {pod.metadata.uid for pod in pods}:
            return False
        empty = self._cache.empty()
        return all(
            one.is_waited_for
            and one.ends_at > self._cache.now
            and one.node in empty
            and reference.first_refusal(self._cache.need(one.pod), empty[one.node]) is None
            for one in had
        )

    def _earliest(self, pods: Sequence[core.Pod]) -> backfill.Start | None:
        """Return where pods fit first as others end, in each of the domains that would take them."""
        placed = tuple(self._cache.placed())
        there = rule.running(placed, self._workloads, ())
        known = {one.metadata.uid: one for one, _ in placed}
        ends = {one.uid: backfill.ends_at(known[one.uid]) for one in there}
        uids = {pod.metadata.uid for pod in pods}
        kept = tuple(dataclasses.replace(one, is_fixed=True) for one in rule.held(self._cache, uids))
        needs = [self._cache.need(pod) for pod in pods]
        found = (
            backfill.earliest(one, self._cache.empty(), (*there, *kept), ends) for one in self._placements(pods, needs)
        )
        return min((one for one in found if one is not None), key=lambda one: one.at, default=None)

    def release_part(self, gang: Gang | None, pod: core.Pod) -> tuple[Ending, ...]:
        """Return the pods of a gang to end: bound in part, its rest found no room for `control.gang_part_s`.

        Args: gang: that of `pod`, which waits and was looked at just now; it is looked at again when its time is over.
        """
        if gang is None or not gang.is_partial:
            if gang is not None:
                gang.partial_since = None
            return ()
        part_s, now = self._part_s, self._clock()
        if gang.partial_since is None:
            gang.partial_since = now
        if (wait_s := gang.partial_since + part_s - now) > 0:
            self._later(pod.metadata.uid, wait_s)
            return ()
        if any(uid in self._cache.held for uid in gang.waiting):
            return ()  # room is being made for the rest
        gang.partial_since = None  # counted again, should one of them not end
        self._later(pod.metadata.uid, part_s)
        whole = len(gang.placed) + gang.lacking
        why = f"{gang.title} was bound in part, {len(gang.placed)} of {whole} pods, and the rest found no room"
        ending = [one for one in gang.placed.values() if not self._workloads.is_ending(one)]
        for one in ending:
            self._workloads.end(one.metadata.uid)
        return tuple(Ending(pod=one, why=why) for one in ending)

    def lendable(self, pod: core.Pod) -> tuple[Held, ...]:
        """Return held room that a pod may use meanwhile: its time limit ends before the room's owner can start."""
        if pod.spec.active_deadline_seconds is None:
            return ()
        now = self._clock()
        return tuple(one for one in self._cache.held.values() if backfill.may_pass(pod, one.free_at, now))

    async def end(self, ending: Ending) -> None:
        """End one pod with its own grace; one that may not end now, or is gone, is left alone and logged.

        Raises: Unavailable: the store does not answer.
        """
        pod = ending.pod
        try:
            await self._mark(ending)
            await self._placement.evict(pod, grace_s=None, why=ending.why, reason=ending.event)
        except (errors.Conflict, errors.NotFound, errors.Denied, errors.Invalid, errors.Unavailable) as error:
            self._workloads.spare(pod.metadata.uid)
            telemetry.log.warning("pod not ended", pod=pod.metadata.name, reason=error.reason, error=error.message)
            if isinstance(error, errors.Unavailable):
                raise
            return
        telemetry.log.info("pod ended for others", pod=pod.metadata.name, reason=ending.event, error=ending.why)

    async def _mark(self, ending: Ending) -> None:
        """Write the condition DisruptionTarget, as kube-scheduler does, so that controllers know it was no failure."""
        condition = meta.Condition(
            type="DisruptionTarget",
            status="True",
            reason=ending.condition,
            message=ending.why,
            last_transition_time=meta.now(),
        )
        about = ending.pod.metadata

        def marked(pod: core.Pod) -> core.Pod | None:
            if pod.metadata.uid != about.uid:
                return None
            conditions = meta.with_condition(pod.status.conditions, condition)
            return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=conditions))

        await retry.change_status(self._store, core.Pod, about.name, marked, namespace=about.namespace)


def _words(held: Sequence[Held]) -> str:
    where = ", ".join(dict.fromkeys(one.node for one in held))
    whom, have = ("it", "has") if len(held) == 1 else (f"all {len(held)} pods", "have")
    free_at = max(one.free_at for one in held)
    if not math.isfinite(free_at):
        return f"room is held for {whom} on {where}, which {have} waited long; no time is known, for want of limits"
    at = dt.datetime.fromtimestamp(free_at, dt.UTC).strftime("%H:%M:%S")
    return f"room is held for {whom} on {where}, at the latest free at {at} UTC"


def named(pods: Sequence[core.Pod], reader: core.Pod) -> list[str]:
    """Return pods as the owner of `reader` may see them: by name in its namespace, as counts in others."""
    own = reader.metadata.namespace
    names = [f"{own}/{pod.metadata.name}" for pod in pods if pod.metadata.namespace == own]
    elsewhere = Counter(pod.metadata.namespace for pod in pods if pod.metadata.namespace != own)
    return names + [f"{count} {'pod' if count == 1 else 'pods'} of {place}" for place, count in elsewhere.items()]

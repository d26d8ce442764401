"""Places a gang in the scheduler's cache: all of its pods or none, in one domain of the network where it asks for that.

Each pod is assumed, and the next is judged on top. Where one fits nowhere all are taken back, and the next domain is
tried (`plan.schedule.group.domain`). A sub-group that asks for a domain of its own is placed in one inside its group's,
on top of the sub-groups before it. The best node for the first of those that share a claim may not take the others:
then their nodes are looked for together (`plan.schedule.preempt.plan`, which has nobody end). Nothing is bound here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.constraint import Reservation
from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.group.gang import Gang
from fairlead.plan.schedule.preempt import plan, rule
from fairlead.plan.schedule.queue.queue import Group
from fairlead.plan.schedule.reference import Domain, PodInfo
from fairlead.plan.schedule.summary import Reason, Summary
from fairlead.plan.schedule.trial import Trial, WhatIf
from fairlead.wire.kubernetes import core

Diagnosis = tuple[Summary, frozenset[str]]
"""Where a pod fits, and which filters refused nodes."""
_DOMAIN: Final = frozenset({"TopologyDomain", "NodeResourcesFit"})


Reserved = dict[str, tuple[Reservation, ...]]
"""By pod's uid: what is to be written before it is bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCalls:
    """Functions of the scheduler's loop that the placer calls."""

    judge: Callable[[PodInfo], Awaitable[Diagnosis]]
    absorb: Callable[[], None]
    """Has nodes judged as they are now."""
    group: Callable[[Iterable[core.Pod], tuple[str, ...]], list[Group]]
    """Puts pods into the groups of their needs; none where one cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a gang was placed, or why it was not."""

    found: tuple[tuple[core.Pod, Summary], ...] = ()
    """Each pod with its node, assumed in the trial; empty: the gang was not placed."""
    reserved: Mapping[str, tuple[Reservation, ...]] = field(default_factory=dict)
    """By uid, of those: what is to be written first; it counts as given."""
    refusal: Diagnosis | None = None
    """Why nodes refused it, with how many of its pods fit; None: it was placed, or changed meanwhile."""

    @property
    def waits(self) -> bool:
        """Whether a pod of it waits for others once what it needs is written."""
        return any(one.waits for reserved in self.reserved.values() for one in reserved)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Pods of a gang or a sub-group that are placed together."""

    gang: Gang
    pods: tuple[core.Pod, ...]
    asked: domain.Asked
    where: Domain
    """Domain that they are confined to already; (): none."""


class GangPlacer:
    """Places gangs."""

    def __init__(self, cache: Cache, loop: LoopCalls) -> None:
        """Take what is known of nodes, and the loop."""
        self._cache, self._loop = cache, loop

    async def place(self, gang: Gang, pods: Sequence[core.Pod], trial: Trial) -> Placed:
        """Assume a place for each pod, or for none of them, as steps of a trial."""
        return await self._place(_Batch(gang, tuple(pods), self._cache.places.asked(pods[0], gang), ()), trial)

    async def _place(self, batch: _Batch, trial: Trial) -> Placed:
        """Try the ways in which they may be placed, the best first, in each of the domains that would take them."""
        placed = Placed()
        for of in domain.ways(batch.asked, self._cache.places.levels):
            self._loop.absorb()
            found = self._candidates(batch, of) if of else None
            if found is not None and not found.fitting:
                placed = Placed(refusal=self._too_small(batch, found))
                continue
            for one in found.fitting[: domain.MOST] if found is not None else ((),):
                placed = await self._place_in(dataclasses.replace(batch, where=(*batch.where, *one)), trial)
                if placed.found or placed.refusal is None:
                    return placed
        return placed

    def _candidates(self, batch: _Batch, of: domain.Levels) -> domain.Candidates:
        needs = [domain.within(one.need, batch.where) for one in self._loop.group(batch.pods, batch.gang.key)]
        return domain.candidates(needs, self._cache.views.values(), of)

    async def _place_in(self, batch: _Batch, trial: Trial) -> Placed:
        """Place pods in one domain, those of each sub-group together, on top of the others."""
        before = trial.checkpoint()
        found, every = list[tuple[core.Pod, Summary]](), Reserved()
        for below, pods in batch.gang.apart(batch.pods):
            if below is None:
                placed = await self._place_each(batch, pods, trial)
            else:
                asked = self._cache.places.asked(pods[0], below)
                placed = await self._place(_Batch(below, pods, asked, batch.where), trial)
            found += placed.found
            every |= placed.reserved
            if not placed.found:
                self._undo(trial, before)
                return Placed(refusal=placed.refusal and self._among(batch, len(found), below, placed.refusal))
        return Placed(found=tuple(found), reserved=every)

    async def _place_each(self, batch: _Batch, pods: Sequence[core.Pod], trial: Trial) -> Placed:
        placed = await self._place_at(batch, pods, trial, {})
        if placed.refusal is None or not (at := self._find_together(batch, pods)):
            return placed
        together = await self._place_at(batch, pods, trial, at)
        return together if together.refusal is None else placed

    def _find_together(self, batch: _Batch, pods: Sequence[core.Pod]) -> Mapping[str, str]:
        """Return nodes by pod's uid where any of the pods share what they ask for; none: none takes them so."""
        if not any(map(self._cache.is_constrained, pods)):
            return {}
        needs = [domain.within(one.need, batch.where) for one in self._loop.group(pods, batch.gang.key)]
        if not plan.has_common(needs):
            return {}
        nodes = {name: dataclasses.replace(one, is_imagined=False) for name, one in self._cache.empty().items()}
        there = rule.standing(self._cache, {pod.metadata.uid for pod in pods})
        found = plan.find(needs, WhatIf(nodes, there), plan.NOBODY)
        return (
            {pod.metadata.uid: node for pod, node in zip(pods, found.nodes, strict=True)} if found is not None else {}
        )

    async def _place_at(self, batch: _Batch, pods: Sequence[core.Pod], trial: Trial, at: Mapping[str, str]) -> Placed:
        """Place pods one after another, each on the best node. Args: at: nodes by pod's uid; none: any."""
        before = trial.checkpoint()
        # Forgetting an assumption queued the pod again without its group of equal needs: groups are looked up again.
        groups, found, every = self._loop.group(pods, batch.gang.key), list[tuple[core.Pod, Summary]](), Reserved()
        refusal: Diagnosis | None = None
        for pod, known in zip(pods, groups, strict=bool(groups)):
            group = known
            if every and self._cache.is_constrained(pod):
                (group,) = self._loop.group((pod,), batch.gang.key)  # without what the others took
            need = domain.within(group.need, batch.where)
            if (only := at.get(pod.metadata.uid)) is not None:
                need = domain.on_node(need, only)
            summary, blockers = await self._loop.judge(need)
            if summary.node is None:
                preface = _preface(batch.gang, len(found), len(pods))
                refusal = (dataclasses.replace(summary, preface=preface), blockers)
            if summary.node is None or group.members.get(pod.metadata.uid) is not pod:
                break
            reserved = self._cache.reserve(pod, group.need, summary.node)
            if reserved is None:
                break
            if reserved:
                trial.reserve(reserved)
                every[pod.metadata.uid] = reserved
            trial.assume(pod, summary.node)
            found.append((pod, dataclasses.replace(summary, domain=domain.shown(batch.where))))
        if len(found) == len(pods) and all(self._cache.is_assumed(pod.metadata.uid) for pod, _ in found):
            return Placed(found=tuple(found), reserved=every)
        self._undo(trial, before)
        return Placed(refusal=refusal)

    def _undo(self, trial: Trial, to: int) -> None:
        trial.rollback(to)
        self._loop.absorb()

    def _too_small(self, batch: _Batch, found: domain.Candidates) -> Diagnosis:
        why, nodes = "node(s) in no topology domain with room for the group", len(self._cache.views)
        reasons = (Reason(why=why, nodes=nodes, example=min(self._cache.views, default="")),) if nodes else ()
        label, count = found.of[-1], len(batch.pods)
        preface = f"{batch.gang.title} is placed as a whole in one {label}, and none takes all {count}: {found.words}: "
        return Summary(nodes=nodes, fitting=0, best=(), reasons=reasons, preface=preface), _DOMAIN

    def _among(self, batch: _Batch, placed: int, below: Gang | None, refusal: Diagnosis) -> Diagnosis:
        """Return why a sub-group has no room, with how many pods of the other sub-groups fit."""
        if below is None or not placed:
            return refusal
        summary, blockers = refusal
        preface = f"beside {placed} of {len(batch.pods)} pods that fit, {summary.preface}"
        return dataclasses.replace(summary, preface=preface), blockers


def _preface(gang: Gang, placed: int, count: int) -> str:
    return f"{gang.title} is placed as a whole: {placed} of {count} pods fit, the next does not: "

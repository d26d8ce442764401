"""Says which running pods may be moved to other nodes, for whom, and where to: what a scheduler and a dry run propose.

To move a pod is to evict it and let its controller recreate it, so a pod moves only where one does, where nothing that
it keeps on its node is lost, and where its owner has not said otherwise: rows of `REASONS`, each with what is said of
pods that stay. Whose turn it is: pods that wait and fit nowhere, in the order of the queue; then, where that is asked
for, one more pod of the largest size that runs. `defragment.find` proves each proposal.

Source: Kubernetes Cluster Autoscaler, FAQ ("What types of pods can prevent CA from removing a node?"); Karpenter,
`karpenter.sh/do-not-disrupt`; descheduler, `descheduler.alpha.kubernetes.io/prefer-no-eviction`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.pod import priority
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.group import gang
from fairlead.plan.schedule.preempt import defragment, rule
from fairlead.plan.schedule.reference import PodInfo, gpus_of
from fairlead.plan.schedule.trial import Running, WhatIf
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.scheduling import policy

SAFE: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_KEPT: Final = {SAFE: "false", "karpenter.sh/do-not-disrupt": "true"}
_PREFERS: Final = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
ANNOTATIONS: Final = frozenset({*_KEPT, _PREFERS})
"""Annotations of a pod that decide whether it moves."""
_GOALS: Final = 10
"""Pods that wait with different needs, for which moves are looked for at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an administrator set."""

    scheduler_name: str
    moves: int
    """The most pods that move at a time."""
    min_runtime_s: float
    is_for_largest: bool
    """Whether room is made also for one more pod of the largest size."""
    now: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Moves for one pod."""

    goal: core.Pod
    is_waiting: bool
    """It waits; else it runs, and the room is for one more of its size."""
    proposal: defragment.Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is proposed."""

    steps: tuple[Step, ...] = ()
    unhelped: tuple[core.Pod, ...] = ()
    """Pods for which no moves make room."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """By why they stay: how many pods with devices may not be moved."""


def controller_of(pod: core.Pod) -> meta.OwnerReference | None:
    """Return the controller that recreates a pod, None where there is none."""
    return next((one for one in pod.metadata.owner_references if one.controller), None)


def _is_alone(pod: core.Pod) -> bool:
    return controller_of(pod) is None


def _is_of_node(pod: core.Pod) -> bool:
    owner = controller_of(pod)
    return (owner is not None and owner.kind in {"DaemonSet", "Node"}) or names.MIRROR in pod.metadata.annotations


def _is_safe(pod: core.Pod) -> bool:
    return pod.metadata.annotations.get(SAFE) == "true"


def _is_kept(pod: core.Pod) -> bool:
    told = pod.metadata.annotations
    return _PREFERS in told or any(told.get(key) == value for key, value in _KEPT.items())


def _is_job(pod: core.Pod) -> bool:
    owner = controller_of(pod)
    return owner is not None and owner.kind == "Job" and not _is_safe(pod)


def _has_local_data(pod: core.Pod) -> bool:
    def is_local(one: core.Volume) -> bool:
        on_disk = one.empty_dir is not None and one.empty_dir.medium != "Memory"
        return on_disk or one.host_path is not None or one.ephemeral is not None

    return not _is_safe(pod) and any(is_local(one) for one in pod.spec.volumes)


REASONS: Final[Mapping[str, Callable[[core.Pod], bool]]] = {
    "no controller recreates them": _is_alone,
    "they belong to their node": _is_of_node,
    "annotations keep them": _is_kept,
    "a Job's work would be lost": _is_job,
    "they have data on their node": _has_local_data,
    "they have claimed devices of their node": lifecycle.has_claims,
    "their priority is a system's": lambda pod: (pod.spec.priority or 0) >= min(priority.SYSTEM.values()),
}
"""Why a pod stays where it is. `safe-to-evict: "true"` answers for a Job's work and for local data."""
_FOREIGN: Final = "another scheduler places them"
_ENDING: Final = "they are being ended"
_CLAIMS: Final = "their claims are not bound"
_YOUNG: Final = "they started too lately"


def why_kept(pod: core.Pod, cache: Cache, workloads: Workloads, options: Options) -> str:
    """Return why a pod stays where it is; "": it may be moved."""
    if pod.spec.scheduler_name != options.scheduler_name:
        return _FOREIGN
    if workloads.is_ending(pod):
        return _ENDING
    if why := next((why for why, keeps in REASONS.items() if keeps(pod)), ""):
        return why
    if cache.constraint_refusal(pod) is not None:
        return _CLAIMS
    least_s = max(options.min_runtime_s, rule.minimum_s(workloads.ledger, workloads.queue_of(pod.metadata.uid)))
    return _YOUNG if options.now - (rule.started_at(pod) or options.now) < least_s else ""


def propose(
    cache: Cache,
    workloads: Workloads,
    budgets: Iterable[policy.PodDisruptionBudget],
    waiting: Iterable[core.Pod],
    options: Options,
) -> Plan:
    """Return the moves that make room, proved one after another on the state that those before leave.

    Args: cache: with every change taken in.   waiting: pods that fit nowhere.
    """
    known = tuple(budgets)
    placed = {pod.metadata.uid: pod for pod, _ in cache.placed()}
    why = {uid: why_kept(pod, cache, workloads, options) for uid, pod in placed.items()}
    needs = ((pod, need if why[pod.metadata.uid] else cache.need(pod)) for pod, need in cache.placed())
    there = (*rule.running(needs, workloads, known, with_ending=True), *rule.held(cache, ()))
    running = tuple(dataclasses.replace(one, is_fixed=bool(why.get(one.uid, _FOREIGN))) for one in there)
    kept = Counter(why[one.uid] for one in running if why.get(one.uid) and _has_devices(one.need))
    terms = frozenset(term for one in running for term in one.need.peer.terms)
    trial = WhatIf(cache.empty(), (dataclasses.replace(one, need=one.need.among(terms)) for one in running))
    steps, unhelped, moved = list[Step](), list[core.Pod](), dict[str, Running]()
    for goal, is_waiting in _goals(cache, workloads, waiting, placed, options):
        need = cache.need(goal).among(terms)
        search = defragment.Terms(
            barred=frozenset(moved),
            allowed=_left(rule.allowed(known), moved.values()),
            most=options.moves - len(moved),
        )
        found = defragment.find(need, trial, search)
        if found is None:
            unhelped.append(goal)
        elif found.moves:
            steps.append(Step(goal=goal, is_waiting=is_waiting, proposal=found))
            moved |= {one.pod.uid: one.pod for one in found.moves}
    return Plan(steps=tuple(steps), unhelped=tuple(unhelped), kept=dict(sorted(kept.items())))


def _has_devices(need: PodInfo) -> bool:
    return any("/" in name for name in need.requests)


def _left(allowed: Mapping[str, int], moved: Iterable[Running]) -> dict[str, int]:
    gone = Counter(budget for one in moved for budget in one.budgets)
    return {budget: count - gone[budget] for budget, count in allowed.items()}


def _goals(
    cache: Cache,
    workloads: Workloads,
    waiting: Iterable[core.Pod],
    placed: Mapping[str, core.Pod],
    options: Options,
) -> Iterator[tuple[core.Pod, bool]]:
    """Yield pods for which room is to be made, and whether each waits."""
    seen = set[object]()
    for pod in sorted(waiting, key=gang.turn):
        if workloads.gang(pod.metadata.uid) is not None or workloads.refusal(pod.metadata.uid)[0]:
            continue  # a group is placed as a whole, and a queue's limit is no matter of room
        try:
            key = cache.need(pod).key()
        except errors.Invalid:
            continue  # said where it is judged
        if key not in seen and len(seen) < _GOALS:
            seen.add(key)
            yield pod, True
    ours = [pod for pod in placed.values() if pod.spec.scheduler_name == options.scheduler_name]
    sizes = {pod.metadata.uid: gpus_of(cache.need(pod).requests) for pod in ours} if options.is_for_largest else {}
    largest = max(ours, key=lambda pod: (sizes[pod.metadata.uid], pod.metadata.uid), default=None) if sizes else None
    if largest is not None and sizes[largest.metadata.uid] > 1:
        yield anew(largest, f"block:{largest.metadata.uid}"), False


def anew(pod: core.Pod, uid: str) -> core.Pod:
    """Return a pod as one that is to come, without node and claims, under a uid of its own."""
    about = msgspec.structs.replace(pod.metadata, uid=uid, deletion_timestamp=None)
    return core.Pod(metadata=about, spec=msgspec.structs.replace(pod.spec, node_name="", volumes=()))

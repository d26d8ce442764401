"""Says which pods may be ended for others: by priority inside a queue, by share between queues. Pure.

Inside a queue a pod ends for one of a higher priority, unless that one's `preemptionPolicy` is Never. Between queues
priority does not count: a queue within its share takes from one beyond its own (`fairshare.tree`). Both relations go
one way only, so no two pods can take each other's place. No pod ends that runs for less than the minimum of its queue,
is being ended, or that no API can end (static pods).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from fairlead.plan.schedule import peers
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.fairshare.ledger import Ledger
from fairlead.plan.schedule.preempt.plan import Terms
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.trial import Running
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import core, names, selector
from fairlead.wire.kubernetes.scheduling import policy

_DAY_S = 86400.0


def running(
    placed: Iterable[tuple[core.Pod, PodInfo]],
    workloads: Workloads,
    budgets: Iterable[policy.PodDisruptionBudget],
    *,
    with_ending: bool = False,
) -> tuple[Running, ...]:
    """Return the pods with a node as a search for room sees them.

    Args: with_ending: also those that are being ended, whose room is not free yet.
    """
    found, rules = [], [(one, peers.label_rules(one.spec.selector)) for one in budgets]
    for pod, need in placed:
        about = pod.metadata
        if workloads.is_ending(pod) and not with_ending:
            continue
        bond = workloads.gangs.bond(about.uid)
        found.append(
            Running(
                uid=about.uid,
                namespace=about.namespace,
                name=about.name,
                node=pod.spec.node_name,
                need=need,
                priority=pod.spec.priority or 0,
                started_at=started_at(pod),
                unit=bond.unit,
                surplus=bond.surplus,
                block=bond.block,
                spare=bond.spare,
                whole=bond.whole,
                budgets=frozenset(
                    f"{one.metadata.namespace}/{one.metadata.name}"
                    for one, rule in rules
                    if one.metadata.namespace == about.namespace
                    and rule is not None
                    and selector.matches(rule, about.labels)
                ),
                is_fixed=names.MIRROR in about.annotations,
            )
        )
    return tuple(found)


def held(cache: Cache, asked: Collection[str]) -> tuple[Running, ...]:
    """Return the room that is held for others than those who are asked for, by uid."""
    return tuple(
        Running(
            uid=uid,
            namespace=one.pod.metadata.namespace,
            name=one.pod.metadata.name,
            node=one.node,
            need=cache.need(one.pod),
            priority=one.pod.spec.priority or 0,
            is_held=True,
        )
        for uid, one in cache.held.items()
        if uid not in asked
    )


def standing(cache: Cache, asked: Collection[str]) -> tuple[Running, ...]:
    """Return all that takes room on nodes, for a search that ends no pods. Args: asked: for whom it is, by uid."""
    there = (
        Running(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=pod.spec.node_name,
            need=need,
            is_fixed=True,
        )
        for pod, need in cache.placed()
    )
    return (*there, *held(cache, asked))


def allowed(budgets: Iterable[policy.PodDisruptionBudget]) -> dict[str, int]:
    """Return how many pods each budget lets go now."""
    return {f"{one.metadata.namespace}/{one.metadata.name}": max(0, one.status.disruptions_allowed) for one in budgets}


def started_at(pod: core.Pod) -> float:
    """Return when a pod started, Unix seconds; 0.0 where it has not, or its kubelet does not say."""
    text = pod.status.start_time
    try:
        return dt.datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def terms(asked: Sequence[core.Pod], workloads: Workloads, budgets: Mapping[str, int], *, now: float) -> Terms:
    """Return who may end for pods that are placed at once; `now`: Unix seconds."""
    uids = tuple(pod.metadata.uid for pod in asked)
    mine = workloads.queue_of(uids[0])
    is_meek = any(pod.spec.preemption_policy == "Never" for pod in asked)
    priority = min(pod.spec.priority or 0 for pod in asked)
    ledger = workloads.ledger

    def may_end(one: Running) -> bool:
        if one.is_fixed or one.uid in uids:
            return False
        queue = workloads.queue_of(one.uid)
        if now - one.started_at < minimum_s(ledger, queue) and not one.is_held:
            return False
        if queue == mine:
            return not is_meek and one.priority < priority
        return not one.is_held and ledger.may_reclaim(uids, one.uid)

    def still(one: Running, gone: Sequence[Running]) -> bool:
        queue = workloads.queue_of(one.uid)
        if queue == mine:
            return True
        taken: dict[str, dict[str, int]] = {}
        for other in gone:
            amounts = taken.setdefault(workloads.queue_of(other.uid), {})
            for name, value in other.need.requests.items():
                amounts[name] = amounts.get(name, 0) + value
        return ledger.is_over(one.uid, taken, mine)

    return Terms(may_end=may_end, value=worth, cost=loss(now), allowed=budgets, still=still)


def minimum_s(ledger: Ledger, queue: str) -> int:
    """Return how long pods of a queue run before they are ended for others."""
    return max((ledger.tree.specs[name].min_runtime_s for name in ledger.tree.path(queue)), default=0)


def worth(one: Running) -> tuple[bool, int, float]:
    """Return the order of importance: what runs before what is held, then priority, then the older."""
    return (not one.is_held, one.priority, -one.started_at)


def loss(now: float) -> Callable[[Sequence[Running]], Any]:
    """Return what it costs to end pods: the highest priority, how many, and the device-seconds that are lost."""

    def cost(gone: Sequence[Running]) -> tuple[int, int, float]:
        real = [one for one in gone if not one.is_held]
        return (
            max((one.priority for one in real), default=-(1 << 40)),
            len(real),
            sum(_lost(one, now) for one in real),
        )

    return cost


def _lost(one: Running, now: float) -> float:
    devices = sum(value for name, value in one.need.requests.items() if "/" in name)
    ran_s = now - one.started_at if one.started_at else _DAY_S
    return (1 + devices) * max(0.0, ran_s)

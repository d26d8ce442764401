"""Decides which pods a ReplicaSet makes and gives up, and what its status says. Pure.

Source: kubernetes pkg/controller/replicaset (syncReplicaSet, calculateStatus).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from fairlead.plan.workload import podset
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.apps import ReplicaSet, ReplicaSetStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step."""

    make: int = 0
    """How many pods are missing."""
    remove: tuple[core.Pod, ...] = ()
    status: ReplicaSetStatus
    wake_s: float | None = None
    """Seconds after which time alone changes the plan."""


def plan(item: ReplicaSet, pods: Iterable[core.Pod], now: float) -> Plan:
    """Return the next step. Args: pods: those that it owns; ended ones are removed.   now: Unix seconds."""
    mine = list(pods)
    active = [one for one in mine if podset.is_active(one)]
    ended = tuple(one for one in mine if one.status.phase in core.ENDED_PHASES and not one.metadata.deletion_timestamp)
    wanted = 1 if item.spec.replicas is None else item.spec.replicas
    if item.metadata.deletion_timestamp is not None:
        return Plan(status=_status(item, active, now))
    surplus = podset.by_worth(active)[: max(0, len(active) - wanted)]
    return Plan(
        make=max(0, wanted - len(active)),
        remove=(*ended, *surplus),
        status=_status(item, active, now),
        wake_s=_wake_s(item, active, now),
    )


def _status(item: ReplicaSet, active: Sequence[core.Pod], now: float) -> ReplicaSetStatus:
    return msgspec.structs.replace(
        item.status,
        replicas=len(active),
        ready_replicas=sum(map(podset.is_ready, active)),
        available_replicas=sum(podset.is_available(one, item.spec.min_ready_seconds, now) for one in active),
        observed_generation=item.metadata.generation,
    )


def _wake_s(item: ReplicaSet, active: Sequence[core.Pod], now: float) -> float | None:
    """Return when the next pod has been ready for long enough."""
    since = [found for one in active if (found := podset.ready_since(one)) is not None]
    left = [at + item.spec.min_ready_seconds - now for at in since]
    return min((one for one in left if one > 0), default=None)

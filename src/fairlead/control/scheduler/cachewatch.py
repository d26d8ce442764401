"""Follows what a scheduler's cache is made of: pods, nodes, namespaces, GPUDevices, groups, queues, budgets, and more.

The objects that constraints read are among them (`Constraint.kinds`).

GPUDevices describe the links between the GPUs of a node. They change the scores of nodes and free nothing, so a change
of one has no waiting pod judged again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fairlead.control.manager import Watch
from fairlead.control.scheduler.preemption import Preemptor
from fairlead.control.scheduler.queuereport import QueueReport
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.constraint import Constraint
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.topology import defaultspread
from fairlead.plan.schedule.workloads import Workloads
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.scheduling import podgroup, policy, queue, selecting

Changed = Callable[[], Iterable[str]]
"""Is called after the cache took a change in; returns what to reconcile."""


def watches(cache: Cache, changed: Changed) -> tuple[Watch, ...]:
    """Return what keeps a cache up to date."""
    return (
        Watch(kind=core.Pod, keys=_keys(cache.note_pod, changed), reset=cache.forget_pods),
        Watch(kind=core.Node, keys=_keys(cache.note_node, changed), reset=cache.forget_nodes),
        Watch(kind=core.Namespace, keys=_keys(cache.note_namespace, changed), is_optional=True),
        devices(cache),
        *(_read(cache, one, kind, changed) for one in cache.constraints.values() for kind in one.kinds),
    )


@dataclass(frozen=True, slots=True)
class WatchedState:
    """Follows groups, queues and disruption budgets, and passes their changes to the queue and the preemptor."""

    cache: Cache
    workloads: Workloads
    queue: SchedulingQueue
    preemptor: Preemptor
    report: QueueReport

    def watches(self, groups: Iterable[type[podgroup.PodGroup]], changed: Changed) -> tuple[Watch, ...]:
        """Return the watches of groups, queues and disruption budgets; a cluster may serve none of these kinds."""

        def take_group(change: Change[podgroup.PodGroup]) -> Iterable[str]:
            for pod in self.workloads.note_group(change.object, is_gone=change.kind is ChangeKind.DELETED):
                self.queue.recall(pod.metadata.uid)
            return changed()

        def take_queue(change: Change[queue.Queue]) -> Iterable[str]:
            if not self.workloads.note_queue(change.object, is_gone=change.kind is ChangeKind.DELETED):
                return ()
            self.report.restore(change.object)
            self.workloads.set_nodes(self.cache.everywhere())
            self.queue.reorder()
            return changed()

        def take_budget(change: Change[policy.PodDisruptionBudget]) -> Iterable[str]:
            self.preemptor.note_budget(change.object, is_gone=change.kind is ChangeKind.DELETED)
            return ()

        return (
            *(Watch(kind=kind, keys=take_group, is_optional=True) for kind in groups),
            Watch(kind=queue.Queue, keys=take_queue, is_optional=True),
            Watch(kind=policy.PodDisruptionBudget, keys=take_budget, is_optional=True),
        )


def selectors(cache: Cache) -> tuple[Watch, ...]:
    """Return the watches of kinds whose selectors pods are spread by; their changes wake no waiting pod."""

    def watch(kind: type[defaultspread.Object]) -> Watch:
        def reset() -> None:
            cache.selectors.forget(kind)

        return Watch(kind=kind, keys=_keys(cache.selectors.note, lambda: ()), reset=reset, is_optional=True)

    return tuple(watch(kind) for kind in selecting.KINDS)


def _read(cache: Cache, one: Constraint, kind: type[Object], changed: Changed) -> Watch:
    keys = _keys(functools.partial(cache.note_for, one), changed)
    return Watch(kind=kind, keys=keys, reset=functools.partial(cache.forget_for, one, kind), is_optional=True)


def devices(cache: Cache) -> Watch:
    """Return the watch that keeps the cache's GPUs up to date; without the kind, or the right to it, there are none."""
    keys = _keys(cache.note_device, lambda: ())
    return Watch(kind=GPUDevice, keys=keys, reset=cache.forget_devices, is_optional=True)


def _keys(note: Callable[..., None], changed: Changed) -> Callable[[Change[Any]], Iterable[str]]:
    def take(change: Change[Any]) -> Iterable[str]:
        note(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return changed()

    return take

"""The scheduler: waiting pods in, bindings out; every decision is `plan.place`, every refusal is kept with its reasons.

One key stands for the whole queue, so decisions are made one after another from one cache of nodes and pods. A binding
is written with the pod's version: whoever changed the pod meanwhile wins and the pod is looked at again. What was
bound counts as taken at once, before the watch echoes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.model.step import Step
from fairlead.plan import place
from fairlead.settings import ControlSettings
from fairlead.store import recorder
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.wire.kubernetes import core, meta

_QUEUE = "pending-pods"
_ENDED = frozenset({"Succeeded", "Failed"})


class Scheduler:
    """Binds pods that carry our scheduler name."""

    name = "scheduler"

    def __init__(self, store: Store, settings: ControlSettings) -> None:
        """Take the store and the name we answer to."""
        self._store = store
        self._settings = settings
        self._pods: dict[str, core.Pod] = {}
        self._nodes: dict[str, core.Node] = {}

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods and nodes."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._pods.clear),
            Watch(kind=core.Node, keys=self._node_changed, reset=self._nodes.clear),
        )

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        pod, known = change.object, self._pods.get(change.object.metadata.uid)
        if change.kind is ChangeKind.DELETED:
            self._pods.pop(pod.metadata.uid, None)
        elif known is None or pod.spec.node_name or not known.spec.node_name:
            # An echo from before our own binding must not make its devices look free again: bindings are never undone.
            self._pods[pod.metadata.uid] = pod
        return (_QUEUE,)

    def _node_changed(self, change: Change[core.Node]) -> Iterable[str]:
        node = change.object
        if change.kind is ChangeKind.DELETED:
            self._nodes.pop(node.metadata.name, None)
        else:
            self._nodes[node.metadata.name] = node
        return (_QUEUE,)

    async def reconcile(self, _key: str) -> float | None:
        """Try every waiting pod once, higher priority first, then oldest first."""
        for pod in sorted((pod for pod in self._pods.values() if self._is_waiting(pod)), key=_turn):
            telemetry.crash_point("scheduler.before-bind")
            try:
                await self._schedule(pod)
            except (errors.Conflict, errors.NotFound) as error:
                telemetry.log.debug("pod changed while it was placed", pod=pod.metadata.name, reason=error.reason)
            except errors.Invalid as error:
                # Its own matter: the pods behind it must not wait for it.
                telemetry.log.warning(
                    "pod cannot be placed", pod=pod.metadata.name, reason=error.reason, error=error.message
                )
        return None

    def _is_waiting(self, pod: core.Pod) -> bool:
        return (
            not pod.spec.node_name
            and pod.spec.scheduler_name == self._settings.scheduler_name
            and pod.status.phase not in _ENDED
            and pod.metadata.deletion_timestamp is None
        )

    async def _schedule(self, pod: core.Pod) -> None:
        with telemetry.timed("pod placed", pod=pod.metadata.name) as timing:
            decision = place.place(place.need_of(pod), self._views())
        step = Step(
            layer="scheduler",
            reason="Scheduled" if decision.node else "FailedScheduling",
            message=decision.message,
            at=time.time(),
            duration_s=timing.duration_s,
            facts={"policy": "packed", "nodes": [_fact(verdict) for verdict in decision.verdicts]},
            is_warning=decision.node is None,
        )
        if decision.node is None:
            await self._refuse(pod, step)
        else:
            await self._bind(pod, decision.node, step)

    def _views(self) -> tuple[place.NodeView, ...]:
        by_node: dict[str, list[core.Pod]] = {}
        for pod in self._pods.values():
            by_node.setdefault(pod.spec.node_name, []).append(pod)
        return tuple(place.view_of(node, tuple(by_node.get(node.metadata.name, ()))) for node in self._nodes.values())

    async def _bind(self, pod: core.Pod, node: str, step: Step) -> None:
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        self._take_over(await self._store.update(msgspec.structs.replace(pod, spec=spec)))
        telemetry.crash_point("scheduler.after-bind")
        telemetry.log.info("pod bound", pod=pod.metadata.name, node=node)
        await recorder.record(self._store, recorder.reference(pod), step)

    async def _refuse(self, pod: core.Pod, step: Step) -> None:
        """Keep the reason on the pod; the same reason is not written twice."""
        old = next((item for item in pod.status.conditions if item.type == "PodScheduled"), None)
        if old is not None and old.message == step.message:
            return
        condition = meta.Condition(
            type="PodScheduled",
            status="False",
            reason="Unschedulable",
            message=step.message,
            last_transition_time=meta.now(),
        )
        others = tuple(item for item in pod.status.conditions if item.type != "PodScheduled")
        status = msgspec.structs.replace(pod.status, phase="Pending", conditions=(*others, condition))
        self._take_over(await self._store.update_status(msgspec.structs.replace(pod, status=status)))
        telemetry.log.info("pod waits", pod=pod.metadata.name, reason="FailedScheduling", error=step.message)
        await recorder.record(self._store, recorder.reference(pod), step)

    def _take_over(self, written: core.Pod) -> None:
        """Believe our own write ahead of its echo, unless the watch was faster: the pod may be bound or gone by now."""
        known = self._pods.get(written.metadata.uid)
        if known is not None and not known.spec.node_name:
            self._pods[written.metadata.uid] = written


def _turn(pod: core.Pod) -> tuple[int, str, str]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.name)


def _fact(verdict: place.Verdict) -> dict[str, object]:
    return {"name": verdict.node, "fits": verdict.fits, "score": verdict.score, "why": list(verdict.why_not)}

"""Answers kube-scheduler's extender calls: filter, prioritize, bind and preempt, from a cache of its own.

For clusters that keep kube-scheduler. The nodes are judged as our own scheduler judges them, scored by the policy that
is set, and an eviction is agreed to only on nodes where the pod fits once the victims are gone. A binding counts from
the moment it is sent, so the next question sees it before the watch does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.scheduler import cachewatch, holdback
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.fabric import guestdriver
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.rankings import Rankings
from fairlead.store.port import Change, ChangeKind
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import extender
from fairlead.wire.kubernetes.workload import RuntimeClass
from fairlead.wire.text import typedjson

T = TypeVar("T")

_LASTING: Final = frozenset(
    {"NodeReady", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "KubeletRejection", guestdriver.FILTER}
)
"""Filters whose refusal no eviction changes."""
_UNKNOWN: Final = "the extender does not know the node yet"
_OTHERS: Final = "node(s) didn't match the rules on other pods"


class Extender:
    """A controller that decides nothing by itself; `calls` answers."""

    name = "extender"

    def __init__(
        self, placement: Placement, rankings: Rankings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take what binds pods, and what judges nodes."""
        self._placement = placement
        self._rankings = rankings
        self._cache = Cache(SchedulingQueue(clock), lambda _pod: False, clock)
        self._drivers = guestdriver.GuestDrivers()
        self._listed: set[type[core.Pod | core.Node]] = set()
        self.calls: Mapping[str, Callable[[bytes], Awaitable[bytes]]] = {
            "/filter": _call(extender.Args, self.filter),
            "/prioritize": _call(extender.Args, self.prioritize),
            "/bind": _call(extender.BindingArgs, self.bind),
            "/preempt": _call(extender.PreemptionArgs, self.preempt),
        }
        """By path: takes a body, returns a body."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods and nodes, and the classes whose drivers kube-scheduler does not know."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._pods_listed),
            Watch(kind=core.Node, keys=self._node_changed, reset=self._nodes_listed),
            Watch(kind=core.Namespace, keys=self._namespace_changed, is_optional=True),
            cachewatch.devices(self._cache),
            Watch(kind=RuntimeClass, keys=self._class_changed, reset=self._classes_listed, is_optional=True),
        )

    def problem(self) -> str:
        """Return why no call can be answered yet; empty: pods and nodes have been listed."""
        lacking = [kind.PLURAL for kind in (core.Pod, core.Node) if kind not in self._listed]
        return f"the {' and '.join(lacking)} of the cluster are not known yet" if lacking else ""

    def _pods_listed(self) -> None:
        self._cache.forget_pods()
        self._listed.add(core.Pod)

    def _nodes_listed(self) -> None:
        self._cache.forget_nodes()
        self._listed.add(core.Node)

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        self._cache.note_pod(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return ()

    def _node_changed(self, change: Change[core.Node]) -> Iterable[str]:
        self._cache.note_node(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return ()

    def _namespace_changed(self, change: Change[core.Namespace]) -> Iterable[str]:
        self._cache.note_namespace(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return ()

    def _class_changed(self, change: Change[RuntimeClass]) -> Iterable[str]:
        self._drivers.note(change.object, is_gone=change.kind is ChangeKind.DELETED)
        return ()

    def _classes_listed(self) -> None:
        self._drivers.forget(RuntimeClass)

    def _need(self, pod: core.Pod) -> reference.PodInfo:
        """Return what a pod asks for; what its volumes and claims ask kube-scheduler judges itself."""
        need = self._cache.need(pod)
        ask = self._drivers.ask(pod) if self._drivers.concerns(pod) else None
        return need if ask is None else dataclasses.replace(need, asks=(ask,))

    async def reconcile(self, _key: str) -> float | None:
        """Do nothing: kube-scheduler asks."""
        return None

    def _scores(self, pod: core.Pod) -> tuple[reference.PodInfo, Mapping[str, float]]:
        """Return what a pod asks for, and the nodes that it fits on with their scores."""
        self._cache.expire()
        if changes := self._cache.changes():
            self._rankings.take(self._cache.views, changes)
        need = self._need(pod)
        ranking = self._rankings.of(need)
        for _ in ranking.refresh(self._cache.views):
            pass
        return need, ranking.scores()

    async def filter(self, asked: extender.Args) -> extender.FilterResult:
        """Return which of the nodes a pod may run on, and why not on the others."""
        if asked.node_names is None:
            return extender.FilterResult(error="set nodeCacheCapable: true for this extender")
        if closed := holdback.tenancy(self._cache, asked.pod.metadata.namespace):
            return extender.FilterResult(failed_nodes=dict.fromkeys(asked.node_names, closed))
        need, scores = self._scores(asked.pod)
        failed, lasting = dict[str, str](), dict[str, str]()
        for name in asked.node_names:
            if name in scores:
                continue
            node = self._cache.views.get(name)
            refusal = ("", (_UNKNOWN,)) if node is None else reference.first_refusal(need, node) or ("", (_OTHERS,))
            (lasting if refusal[0] in _LASTING else failed)[name] = ", ".join(refusal[1])
        fitting = tuple(name for name in asked.node_names if name in scores)
        return extender.FilterResult(node_names=fitting, failed_nodes=failed, failed_and_unresolvable_nodes=lasting)

    async def prioritize(self, asked: extender.Args) -> tuple[extender.HostPriority, ...]:
        """Return what the nodes are worth, the best `extender.MOST` and the worst 0."""
        _, scores = self._scores(asked.pod)
        names = [name for name in asked.node_names or () if name in scores]
        most, least = max((scores[name] for name in names), default=0), min((scores[name] for name in names), default=0)
        scale = extender.MOST / (most - least) if most > least else 0
        return tuple(extender.HostPriority(host=name, score=round((scores[name] - least) * scale)) for name in names)

    async def bind(self, asked: extender.BindingArgs) -> extender.BindingResult:
        """Bind a pod where kube-scheduler wants it."""
        if closed := holdback.tenancy(self._cache, asked.pod_namespace):
            return extender.BindingResult(error=closed)
        known = self._cache.waiting(asked.pod_uid)
        about = meta.ObjectMeta(name=asked.pod_name, namespace=asked.pod_namespace, uid=asked.pod_uid)
        if known is not None:
            self._cache.assume(known, asked.node)
        try:
            await self._placement.bind(core.Pod(metadata=about), asked.node)
        except errors.FairleadError as error:
            self._cache.forget(asked.pod_uid)
            telemetry.log.warning("pod not bound", pod=asked.pod_name, reason=error.reason, error=error.message)
            return extender.BindingResult(error=errors.sentence(error))
        self._cache.confirm(asked.pod_uid)
        telemetry.log.info("pod bound", pod=asked.pod_name, node=asked.node)
        return extender.BindingResult()

    async def preempt(self, asked: extender.PreemptionArgs) -> extender.PreemptionResult:
        """Return the nodes where a pod fits once the victims are gone."""
        need = self._need(asked.pod)
        kept = {
            name: victims
            for name, victims in (asked.victims or {}).items()
            if (node := self._cache.without(name, {pod.uid for pod in victims.pods or ()})) is not None
            and reference.first_refusal(need, node) is None
        }
        return extender.PreemptionResult(victims=kept)


def _call(kind: type[T], act: Callable[[T], Awaitable[Any]]) -> Callable[[bytes], Awaitable[bytes]]:
    """Return a function from request body to response body. It raises ProtocolError for a body that does not parse."""
    decoder = typedjson.Decoder(kind)

    async def answer(body: bytes) -> bytes:
        try:
            asked = decoder.decode(body)
        except msgspec.MsgspecError as error:
            message = f"a call of {act.__name__} cannot be read: {error}"
            raise errors.ProtocolError(message, reason="ExtenderCallUnreadable") from error
        return msgspec.json.encode(await act(asked))

    return answer

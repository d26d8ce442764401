"""Keeps the scheduler's cache: pods by uid, nodes by name, and each node as decisions see it, remade on change.

What the store said last stands here, and what we have written ourselves a moment before the store's watch says it too.
A binding is assumed before it is sent: it counts at once, until it is confirmed or forgotten. A confirmed one is never
undone by a late echo, nor, until its own echo came, by a list that may be older than it; after that a fresh list, which
may come from a store restored to an earlier day, is believed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.plan.schedule import constraints, peers, reference
from fairlead.plan.schedule.cache import version
from fairlead.plan.schedule.cache.entry import Assumed, Held, News
from fairlead.plan.schedule.cache.rejections import Rejections
from fairlead.plan.schedule.constraint import Ask, Constraint, Noted, Refusal, Reservation, Timed, Users
from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.group.place import Places
from fairlead.plan.schedule.queue.queue import Changes, SchedulingQueue
from fairlead.plan.schedule.shard.pool import WHOLE, Pool, Shard
from fairlead.plan.schedule.topology import defaultspread
from fairlead.plan.schedule.topology.devices import Devices
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.fairlead import tenancy
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.meta import Object

ECHO_S: Final = 30.0
"""After this a confirmed binding that no watch has reported is dropped."""


class Cache:
    """Pods and nodes; this scheduler's pods without a node are put into the queue."""

    def __init__(
        self,
        queue: SchedulingQueue,
        is_ours: Callable[[core.Pod], bool],
        clock: Callable[[], float] = time.monotonic,
        *,
        workloads: Workloads | None = None,
        date: Callable[[], float] | None = time.time,
        levels: domain.Levels = (),
        shard: Shard = WHOLE,
        made: Sequence[Callable[[Users], Constraint]] = constraints.MADE,
    ) -> None:
        """Take the queue of waiting pods, what separates our pods from other schedulers', and who counts them.

        Args: clock: gives monotonic seconds.   date: gives Unix seconds; None: what kubelets refused does not count.
              levels: of the network, as labels of nodes.   shard: nodes and pods that are ours to decide on.
              made: make the constraints that have a say.
        """
        self._pool = Pool(shard, clock)
        self._queue, self._is_ours, self._clock = queue, is_ours, clock
        self._workloads = workloads or Workloads()
        self.held: dict[str, Held] = {}
        """By uid: pods that wait and have room held for them; it counts as taken."""
        self._pods: dict[str, core.Pod] = {}
        self._of_namespace: dict[str, dict[str, None]] = {}
        """By namespace: uids of its pods, in the order in which they came."""
        self._assumed: dict[str, Assumed] = {}
        self._nodes: dict[str, reference.NodeInfo] = {}
        """By name: with nothing on them."""
        self.places = Places(self._workloads.gangs, levels, self._nodes)
        self._needs: dict[str, dict[str, reference.PodInfo]] = {}
        """By node and uid: what pods take; ended ones take nothing and are not here."""
        self._devices = Devices()
        self.views: dict[str, reference.NodeInfo] = {}
        """By name: every node with what is taken of it, as of the last `changes`."""
        self.selectors = defaultspread.Selectors()
        """What spreads pods that say nothing of it; empty: nothing does."""
        self.constraints = {one.name: one for one in (make(_Users(self._pods, self._of_namespace)) for make in made)}
        """By name: what has a say beside amounts, labels and other pods."""
        self._timed = tuple(one for one in self.constraints.values() if isinstance(one, Timed))
        self._workloads.more = self._amounts
        self._unlimited: set[str] | None = set()
        """Nodes whose limits changed since the last `changes`; None: every node's."""
        self._constrained: dict[str, None] = {}
        """Uids of pods that wait and ask for something by a constraint."""
        self.news = News()
        self.namespaces: dict[str, Mapping[str, str]] = {}
        """Labels by namespace, of those that are known."""
        self.closed: dict[str, str] = {}
        """Namespaces of tenancies that are not ready, with the phase that each says."""
        self._last_read: tuple[core.Pod | None, reference.PodInfo] = (None, reference.PodInfo(requests={}))
        """The pod that was read last, and what it says."""
        self._rejections = Rejections(date)
        self._touched: set[str] = set()
        self._terms = Counter[peers.Term]()
        """What pods that have a node say of others, with how many say it."""

    def forget_pods(self) -> None:
        """Reset pods: a list follows, and what is assumed stays so."""
        self._pods.clear()
        self._of_namespace.clear()
        self._queue.clear()
        self._touched.update(self._needs)
        self._needs.clear()
        self._terms.clear()
        self.held.clear()
        for name in self._rejections.forget_pods():
            self._refuse(name)
        self._workloads.clear()
        for one in self._assumed.values():
            self._put(version.bound(one.pod, one.node))

    def forget_nodes(self) -> None:
        """Reset nodes: a list follows."""
        self._touched.update(self._nodes)
        self._nodes.clear()
        self._pool.forget()
        self._rejections.forget_nodes()

    def note_pod(self, pod: core.Pod, *, is_gone: bool = False) -> None:
        """Take in what the watch says."""
        uid = pod.metadata.uid
        known, assumed = self._pods.get(uid), self._assumed.get(uid)
        if known is not None and not is_gone and version.is_echo(known, pod):
            return
        gang = self._workloads.gangs.of(uid)
        if known is not None and not known.spec.node_name and not version.asks_same(known, pod):
            self._queue.pardon(uid)
        if is_gone:
            self.release(uid)
            self._drop(uid)
            self._queue.settle(uid)
        if is_gone or pod.spec.node_name:
            self._assumed.pop(uid, None)
            self._workloads.gangs.confirm(uid)
        elif assumed is not None:
            assumed.pod = pod
            pod = version.bound(pod, assumed.node)
        # An echo from before our own binding must not make its devices look free again.
        if not is_gone and (pod.spec.node_name or known is None or not known.spec.node_name):
            self._put(pod)
        if gang is not None and self._workloads.gangs.of(uid) is not gang:
            for one in tuple(gang.waiting):
                self._queue.recall(one)  # what is placed at once is another: without it the others may fit

    def note_node(self, node: core.Node, *, is_gone: bool = False) -> None:
        """Take in what the watch says."""
        name = node.metadata.name
        self._touched.add(name)
        self.news.is_freed = True
        self._nodes.pop(name, None)
        try:
            if self._pool.takes(node, is_gone=is_gone):
                found = reference.offered(node)
                self._nodes[name] = dataclasses.replace(found, limits=self._limits(found))
            self._refuse(name)
        except errors.Invalid as error:
            telemetry.log.warning("node left out", node=name, reason=error.reason, error=error.message)

    def forget_devices(self) -> None:
        """Reset GPUs: a list follows."""
        self._touched.update(self._devices.forget())

    def note_device(self, device: GPUDevice, *, is_gone: bool = False) -> None:
        """Take in what the watch says of a GPU."""
        if node := self._devices.note(device, is_gone=is_gone):
            self._touched.add(node)

    def _full_name(self, uid: str) -> str:
        pod = self._pods.get(uid)
        return "" if pod is None else f"{pod.metadata.namespace}/{pod.metadata.name}"

    def note_for(self, one: Constraint, item: Object, *, is_gone: bool = False) -> None:
        """Take in what the watch says of what a constraint reads; pods that wait by it are looked at again."""
        self.heed(one.note(item, is_gone=is_gone))

    def heed(self, found: Noted) -> None:
        """Count what a constraint says of a change: nodes' limits, and pods that are looked at again."""
        if found.concerns:
            self._constrain()
        self.news.recall(found.pods)
        for uid in found.pods or ():
            self._workloads.recount(uid)
        if found.nodes is None:
            self._unlimited = None
        elif self._unlimited is not None:
            self._unlimited.update(found.nodes)
        if found.counts:
            self._recount()

    def _constrain(self) -> None:
        """Find out again which pods that wait ask by a constraint; those that did until now are looked at too."""
        waiting = (pod for uid, pod in self._pods.items() if uid in self._queue and self.is_constrained(pod))
        found = {pod.metadata.uid: None for pod in waiting}
        self.news.recall([uid for uid in self._constrained if uid not in found])
        self._constrained = found

    def forget_for(self, one: Constraint, kind: type[Object]) -> None:
        """Reset one kind that a constraint reads: a list follows."""
        one.forget(kind)
        self._unlimited = None

    def assume_reserved(self, reserved: Iterable[Reservation]) -> None:
        """Count what is reserved as given, so that no other pod takes it."""
        for one in reserved:
            known = self.constraints[one.constraint]
            for before, after in one.changes:
                self.heed(known.assume(before, after))
            for item in one.assumed:
                self.heed(known.assume(item, item))

    def withdraw_reserved(self, reserved: Iterable[Reservation]) -> None:
        """Take back, the last first, what `assume_reserved` counted and was not written."""
        for one in reversed(tuple(reserved)):
            known = self.constraints[one.constraint]
            for item in reversed(one.assumed):
                self.heed(known.withdraw(item, item))
            for before, after in reversed(one.changes):
                self.heed(known.withdraw(before, after))

    def _relimit(self) -> None:
        """Ask constraints again what nodes can take, of which something changed."""
        names, self._unlimited = self._nodes if self._unlimited is None else self._unlimited, set()
        for name in tuple(names):
            node = self._nodes.get(name)
            if node is not None and (limits := self._limits(node)) != node.limits:
                self._nodes[name] = dataclasses.replace(node, limits=limits)
                self._touched.add(name)

    def _limits(self, node: reference.NodeInfo) -> dict[str, Any]:
        found = ((name, one.limits(node.name, node.labels)) for name, one in self.constraints.items())
        return {name: limits for name, limits in found if limits}

    def _recount(self) -> None:
        """Count again what pods that have a node take by constraints: an object of theirs may be another."""
        for name, there in self._needs.items():
            for uid, need in there.items():
                pod = self._pods.get(uid)
                if pod is None or not self.is_constrained(pod):
                    continue
                if (asks := self._has(pod)) != need.asks:
                    there[uid] = dataclasses.replace(need, asks=asks)
                    self._touched.add(name)

    def _amounts(self, pod: core.Pod) -> Mapping[str, int]:
        found = Counter[str]()
        for one in self.constraints.values():
            if one.concerns(pod):
                found.update(one.amounts(pod))
        return found

    def is_constrained(self, pod: core.Pod) -> bool:
        """Return whether a pod asks for anything by a constraint."""
        return any(one.concerns(pod) for one in self.constraints.values())

    def _has(self, pod: core.Pod) -> tuple[Ask, ...]:
        concerned = (one for one in self.constraints.values() if one.has_limits and one.concerns(pod))
        return tuple(ask for one in concerned if (ask := one.has(pod)) is not None)

    def constraint_refusal(self, pod: core.Pod) -> Refusal | None:
        """Return why a constraint keeps a pod waiting whatever nodes there are; None: none does."""
        concerned = (one for one in self.constraints.values() if one.concerns(pod))
        return next((found for one in concerned if (found := one.refusal(pod)) is not None), None)

    def reserve(self, pod: core.Pod, need: reference.PodInfo, node: str) -> tuple[Reservation, ...] | None:
        """Return what is to be written before a pod is bound to a node; nothing: it may be bound; None: it may not."""
        view = self.views.get(node, reference.NodeInfo(name=node))
        try:
            found = [self.constraints[ask.constraint].reserve(pod, ask, view) for ask in need.asks]
        except errors.Conflict as error:
            telemetry.log.warning("node does not have what it was judged by", pod=pod.metadata.name, node=node)
            telemetry.log.debug("not reserved", error=error.message)
            return None
        return tuple(one for one in found if one is not None)

    def give_back(self, pod: core.Pod) -> tuple[Reservation, ...]:
        """Return what is to be written so that a pod that fits nowhere may fit elsewhere."""
        concerned = (one for one in self.constraints.values() if one.concerns(pod))
        return tuple(found for one in concerned if (found := one.give_back(pod)) is not None)

    def _read(self, pod: core.Pod) -> reference.PodInfo:
        """Return what a pod says; read once for its decision and its binding. Raises: Invalid: a bad quantity."""
        known, need = self._last_read
        if known is not pod:
            need = reference.pod_info(pod, self.namespaces)
            self._last_read = pod, need
        return need

    def _info(self, pod: core.Pod) -> reference.PodInfo:
        """Return what a pod takes of its node. Raises: Invalid: a bad quantity."""
        need = self._read(self._assumed[pod.metadata.uid].pod if pod.metadata.uid in self._assumed else pod)
        asks = self._has(pod)
        return dataclasses.replace(need, asks=asks) if asks else need

    def note_namespace(self, item: core.Namespace, *, is_gone: bool = False) -> None:
        """Take in what the watch says; its pods are judged again where its labels or its tenancy's phase changed."""
        name, labels = item.metadata.name, None if is_gone else item.metadata.labels
        phase = None if labels is None else tenancy.closed_phase(item)
        if self.namespaces.get(name) == labels and self.closed.get(name) == phase:
            return
        self.closed.pop(name, None)
        self.closed |= {} if phase is None else {name: phase}
        self.namespaces.pop(name, None)
        self.namespaces |= {} if labels is None else {name: labels}
        self._last_read = (None, self._last_read[1])
        for uid in self._of_namespace.get(name, ()):
            pod = self._pods[uid]
            if uid in (there := self._needs.get(pod.spec.node_name, {})):
                there[uid] = self._info(pod)
                self._touched.add(pod.spec.node_name)
            elif uid in self._queue:
                self._queue.put(pod)

    def note_written(self, written: core.Pod) -> None:
        """Believe our own write ahead of its echo, unless the watch was faster: the pod may be bound or gone by now."""
        uid = written.metadata.uid
        if not self._waits(uid):
            return
        if uid not in self._queue or not version.asks_same(self._pods[uid], written):
            self._put(written)
            return
        self._pods[uid] = written
        self._workloads.put(written)
        if uid in self.held:
            self._workloads.reserve(uid, is_held=True)
        self._queue.replace(written)

    def assume(self, pod: core.Pod, node: str) -> None:
        """Count a pod as bound before the store has confirmed it."""
        if self._waits(pod.metadata.uid):
            self.news.is_freed = True  # the next of those parked alike has its turn
            self._assumed[pod.metadata.uid] = Assumed(pod, node)
            self._put(version.bound(pod, node))

    def confirm(self, uid: str) -> None:
        """Note that the store has bound a pod; its watch will say so too."""
        if uid in self._assumed:
            self._assumed[uid].ends_at = self._clock() + ECHO_S
            self.news.echoes_due = min(self.news.echoes_due, self._assumed[uid].ends_at)
            self._workloads.gangs.confirm(uid)

    def forget(self, uid: str, *, is_in_hand: bool = False) -> None:
        """Take an assumption back: the pod was not bound. Args: is_in_hand: it is being looked at still."""
        if assumed := self._assumed.pop(uid, None):
            self._put(assumed.pod)
        if is_in_hand:
            self._queue.take(uid)

    def correct(self, uid: str, found: core.Pod | None) -> None:
        """Replace what was assumed by what the store has; None: the pod is gone."""
        self._assumed.pop(uid, None)
        self.release(uid)
        self._drop(uid)
        if found is not None and found.metadata.uid == uid:
            self._put(found)

    def _refuse(self, name: str) -> None:
        """Have a node refuse what its kubelet refused lately."""
        node = self._nodes.get(name)
        if node is None:
            self._rejections.close(name)
        elif node.rejected != (found := self._rejections.on(name)):
            self._nodes[name] = dataclasses.replace(node, rejected=found)
            self._touched.add(name)

    def rejections_due_s(self) -> float | None:
        """Return the seconds until a node is open again to what its kubelet refused, None where none refuses."""
        return self._rejections.due_s()

    def settles_in_s(self) -> float | None:
        """Return the seconds until a node that became ours is used, None where there is none."""
        return self._pool.due_s()

    def expire(self) -> tuple[str, ...]:
        """Forget confirmed bindings that no watch has reported, and room held for too long.

        Returns: whose room it was, and who waits with claims where any claim changed: they are to be looked at again.
        """
        for one in self._timed:
            self.heed(one.expire())
        for name in self._rejections.due():
            self._refuse(name)
        for node in self._pool.settled():
            self.note_node(node)
        now = self._clock()
        over = tuple(uid for uid, one in self.held.items() if one.ends_at <= now)
        for uid in over:
            self.release(uid)
        for uid in [uid for uid, one in self._assumed.items() if one.ends_at <= now]:
            self.forget(uid)
        self.news.echoes_due = min((one.ends_at for one in self._assumed.values()), default=math.inf)
        return (*over, *self.news.take_recalled(self._constrained))

    @property
    def now(self) -> float:
        """Monotonic seconds, as `Held.ends_at` counts them."""
        return self._clock()

    def expires_in_s(self) -> float | None:
        """Return the seconds until `expire` may have something to do, None where nothing is to come."""
        due_at = min((one.ends_at for one in self.held.values()), default=math.inf)
        due_at = min(due_at, self.news.echoes_due)
        times = [] if math.isinf(due_at) else [max(0.0, due_at - self._clock())]
        return min((*times, *(due_s for one in self._timed if (due_s := one.due_s) is not None)), default=None)

    def hold(
        self, pod: core.Pod, node: str, *, for_s: float, free_at: float = math.inf, is_waited_for: bool = False
    ) -> None:
        """Count a pod that waits as if it were on a node already, so that no other takes the room made there."""
        uid = pod.metadata.uid
        self.release(uid)
        if self._waits(uid):
            self.held[uid] = Held(pod, node, self._clock() + for_s, free_at, is_waited_for)
            self._queue.hold(uid)
            self._needs.setdefault(node, {})[_held(uid)] = reference.pod_info(pod, self.namespaces)
            self._touched.add(node)
            self._workloads.reserve(uid, is_held=True)

    def keep(self, pod: core.Pod, node: str, *, for_s: float) -> None:
        """Count a pod that is to come as if it were on a node: one that a controller recreates, or a block kept free.

        It goes under the uid that the pod has here; `find_held` knows the one that comes by its controller.
        """
        uid = pod.metadata.uid
        self.release(uid)
        self.held[uid] = Held(pod, node, self._clock() + for_s)
        self._needs.setdefault(node, {})[_held(uid)] = reference.pod_info(pod, self.namespaces)
        self._touched.add(node)

    def find_held(self, pod: core.Pod) -> str:
        """Return under which uid room is held for a pod, or for the one that it replaces; "": none is."""
        uid = pod.metadata.uid
        if not self.held:
            return ""
        if uid in self.held or not any(one.pod.metadata.uid not in self._pods for one in self.held.values()):
            return uid if uid in self.held else ""
        return next(
            (key for key, one in self.held.items() if key not in self._pods and version.is_anew(pod, one.pod)), ""
        )

    def hold_again(self, held: Held) -> None:
        """Hold room that was let go for a moment."""
        for_s, is_waited_for = held.ends_at - self._clock(), held.is_waited_for
        self.hold(held.pod, held.node, for_s=for_s, free_at=held.free_at, is_waited_for=is_waited_for)

    def release(self, uid: str) -> Held | None:
        """Let go of the room that is held for a pod; returns what it was."""
        found = self.held.pop(uid, None)
        if found is not None:
            self._needs.get(found.node, {}).pop(_held(uid), None)
            self._touched.add(found.node)
            self.news.is_freed = True
            self._workloads.reserve(uid, is_held=False)
            self._queue.let_go(uid)
        return found

    def is_assumed(self, uid: str) -> bool:
        """Return whether a pod counts as bound, and the store has not refused it."""
        return uid in self._assumed

    def is_placed(self, uid: str) -> bool:
        """Return whether a pod has a node."""
        return uid in self._pods and bool(self._pods[uid].spec.node_name)

    def placed(self) -> Iterator[tuple[core.Pod, reference.PodInfo]]:
        """Yield the pods that have a node, with what they take."""
        for name, there in self._needs.items():
            if name in self._nodes:
                yield from ((self._pods[uid], need) for uid, need in there.items() if uid in self._pods)

    def everywhere(self) -> Iterable[reference.NodeInfo]:
        """Return the nodes of every scheduler, with nothing on them."""
        return (*self._nodes.values(), *self._pool.others.values())

    def empty(self) -> dict[str, reference.NodeInfo]:
        """Return the nodes with nothing on them, for a search that thinks pods away."""
        if not self._constrained:
            return dict(self._nodes)
        return {name: dataclasses.replace(node, is_imagined=True) for name, node in self._nodes.items()}

    @property
    def is_current(self) -> bool:
        """Whether no change has happened since the last `changes`."""
        return not self._touched and self._unlimited == set()

    def changes(self) -> Changes:
        """Bring `views` up to date; returns the nodes that differ, each as it was and as it is."""
        found = {}
        self._relimit()
        for name in self._touched:
            before, node, after = self.views.pop(name, None), self._nodes.get(name), None
            if node is not None:
                pods = self._needs.get(name, {})
                free = self._devices.free(name, pods, self._full_name)
                after = self.views[name] = reference.occupied(node, pods.values(), free)
            if after != before:
                found[name] = (before, after)
        self._touched.clear()
        return found

    def need(self, pod: core.Pod) -> reference.PodInfo:
        """Return what a pod asks for, with other pods judged if they matter. Raises: Invalid: a bad quantity."""
        need = self.concerned(self._read(pod))
        if not self._is_ours(pod):
            return need
        need = self.places.narrowed(pod, need)
        policy, is_grouped = self._workloads.policy_of(pod), self._workloads.is_grouped(pod)
        if policy or is_grouped:
            need = dataclasses.replace(need, policy=policy, is_grouped=is_grouped)
        if spread := self.selectors.spread(pod):
            need = dataclasses.replace(need, peer=dataclasses.replace(need.peer, spread=spread).among(()))
        concerned = (one for one in self.constraints.values() if one.concerns(pod))
        asks = tuple(ask for one in concerned if (ask := one.ask(pod)) is not None)
        return dataclasses.replace(need, asks=asks) if asks else need

    def concerned(self, need: reference.PodInfo) -> reference.PodInfo:
        """Return a need as it is to be judged beside the pods that have a node now."""
        return need.among(self._terms)

    def waiting(self, uid: str) -> core.Pod | None:
        """Return a pod that has no node; None: it has one, or is not known."""
        return self._pods[uid] if self._waits(uid) else None

    def without(self, node: str, uids: Collection[str]) -> reference.NodeInfo | None:
        """Return a node as it would be without these pods; None: it is not known."""
        known, there = self._nodes.get(node), self._needs.get(node, {})
        kept = (need for uid, need in there.items() if uid not in uids)
        return None if known is None else reference.occupied(known, kept)

    def _waits(self, uid: str) -> bool:
        return uid in self._pods and not self._pods[uid].spec.node_name

    def _put(self, pod: core.Pod) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self._pods.get(uid)
        if node and known is not None and version.is_same(known, pod):
            self._pods[uid] = pod  # a status: neither its node nor its requests changed
            return
        self._drop(uid)
        if node or version.is_over(pod) or pod.metadata.deletion_timestamp:
            self.release(uid)
        self._pods[uid] = pod
        self._of_namespace.setdefault(pod.metadata.namespace, {})[uid] = None
        if not node and self._is_ours(pod) and not version.is_over(pod) and not pod.metadata.deletion_timestamp:
            if self._pool.shard.owns_pod(pod):
                self._have_wait(pod)
            else:
                self._workloads.put_elsewhere(pod)
        elif node and version.is_over(pod):
            if self._rejections.put(pod):
                self._refuse(node)
        elif node:
            self._touched.add(node)
            try:
                need = self._needs.setdefault(node, {})[uid] = self._info(pod)
            except errors.Invalid as error:
                telemetry.log.warning(
                    "pod not counted", pod=pod.metadata.name, reason=error.reason, error=error.message
                )
            else:
                self._terms.update(need.peer.terms)
                is_sure = uid not in self._assumed or math.isfinite(self._assumed[uid].ends_at)
                self._workloads.put(pod, is_assumed=not is_sure)

    def _have_wait(self, pod: core.Pod) -> None:
        uid = pod.metadata.uid
        self._workloads.put(pod)
        if uid in self.held:
            self._workloads.reserve(uid, is_held=True)
        if self.is_constrained(pod):
            self._constrained[uid] = None
        self._queue.put(pod)

    def _drop(self, uid: str) -> None:
        self._queue.drop(uid)
        self._workloads.drop(uid)
        self._constrained.pop(uid, None)
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        if pod.spec.node_name:
            self.news.is_freed = True
            self.news.left.add(pod.spec.node_name)
        if pod.spec.node_name and any(one.frees(pod) for one in self.constraints.values()):
            self.news.recall(None)
        if self._rejections.drop(pod):
            self._refuse(pod.spec.node_name)
        of_namespace = self._of_namespace[pod.metadata.namespace]
        del of_namespace[uid]
        if not of_namespace:
            del self._of_namespace[pod.metadata.namespace]
        if uid in (there := self._needs.get(pod.spec.node_name, {})):
            for term in there.pop(uid).peer.terms:
                self._terms[term] -= 1
                if not self._terms[term]:
                    del self._terms[term]
            self._touched.add(pod.spec.node_name)


@dataclasses.dataclass(frozen=True, slots=True)
class _Users:
    """See `constraint.Users`."""

    pods: Mapping[str, core.Pod]
    of_namespace: Mapping[str, Mapping[str, None]]

    def __call__(self, namespace: str) -> Iterator[core.Pod]:
        pods = (self.pods[uid] for uid in self.of_namespace.get(namespace, ()))
        return (pod for pod in pods if pod.spec.node_name and not version.is_over(pod))

    def wait(self, uid: str) -> bool:
        pod = self.pods.get(uid)
        return pod is not None and not pod.spec.node_name and not version.is_over(pod)


def _held(uid: str) -> str:
    return f"held:{uid}"

"""Keeps the scheduler's cache: pods by uid, nodes by name, and each node as decisions see it, remade on change.

What the store said last stands here, and what we have written ourselves a moment before the store's watch says it too.
A binding is assumed before it is sent: it counts at once, until the watch tells of it, or it is forgotten. A list that
is told while it is under way does not undo it, nor does a late echo, ever; after that a fresh list, which may come from
a store restored to an earlier day, is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from fairlead.plan.schedule import reference
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core


class Cache:
    """Pods and nodes, and which of the pods wait for us."""

    def __init__(self, is_ours: Callable[[core.Pod], bool]) -> None:
        """Take what tells our pods from those of other schedulers."""
        self._is_ours = is_ours
        self._pods: dict[str, core.Pod] = {}
        self._waiting: dict[str, core.Pod] = {}
        self._assumed: dict[str, tuple[core.Pod, str]] = {}
        """By uid: pods as they are without the binding that is under way, and their nodes."""
        self._nodes: dict[str, core.Node] = {}
        self._on_node: dict[str, dict[str, core.Pod]] = {}
        self._touched: set[str] = set()
        self.views: dict[str, reference.NodeInfo] = {}
        """By name: every node with what is taken of it, as of the last `changes`."""

    def forget_pods(self) -> None:
        """Begin anew with pods: a list follows, and what is assumed stays so."""
        self._touched.update(self._on_node)
        for known in (self._pods, self._waiting, self._on_node):
            known.clear()
        for pod, node in self._assumed.values():
            self._put(_bound(pod, node))

    def forget_nodes(self) -> None:
        """Begin anew with nodes: a list follows."""
        self._touched.update(self._nodes)
        self._nodes.clear()

    def note_pod(self, step: Change[core.Pod]) -> None:
        """Take in what the watch says."""
        pod, uid = step.object, step.object.metadata.uid
        known = self._pods.get(uid)
        if step.kind is ChangeKind.DELETED:
            self._assumed.pop(uid, None)
            self._drop(uid)
        elif uid in self._assumed and not pod.spec.node_name:
            self._assumed[uid] = (pod, self._assumed[uid][1])
        elif known is None or pod.spec.node_name or not known.spec.node_name:
            # An echo from before our own binding must not make its devices look free again.
            self._assumed.pop(uid, None)
            self._put(pod)

    def note_node(self, step: Change[core.Node]) -> None:
        """Take in what the watch says."""
        name = step.object.metadata.name
        self._touched.add(name)
        if step.kind is ChangeKind.DELETED:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = step.object

    def note_written(self, written: core.Pod) -> None:
        """Believe our own write ahead of its echo, unless the watch was faster: the pod may be bound or gone by now."""
        known = self._pods.get(written.metadata.uid)
        if known is not None and not known.spec.node_name:
            self._put(written)

    def assume(self, pod: core.Pod, node: str) -> None:
        """Count a pod as bound although nobody confirmed it."""
        self._assumed[pod.metadata.uid] = (pod, node)
        self.note_written(_bound(pod, node))

    def confirm(self, uid: str) -> None:
        """Note that the store has bound a pod; its watch will say so too."""
        self._assumed.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Take an assumption back: the pod was not bound."""
        if (assumed := self._assumed.pop(uid, None)) is not None:
            self._put(assumed[0])

    def correct(self, uid: str, found: core.Pod | None) -> None:
        """Replace what was assumed by what the store has; None: the pod is gone."""
        self._assumed.pop(uid, None)
        self._drop(uid)
        if found is not None and found.metadata.uid == uid:
            self._put(found)

    def waiting(self) -> list[core.Pod]:
        """Return our pods without a node: higher priority first, then the oldest."""
        return sorted(self._waiting.values(), key=_turn)

    def is_waiting(self, pod: core.Pod) -> bool:
        """Tell whether the pod still waits, and is as it was."""
        return self._waiting.get(pod.metadata.uid) is pod

    @property
    def is_current(self) -> bool:
        """Whether nothing has happened to a node since the last `changes`."""
        return not self._touched

    def changes(self) -> Mapping[str, tuple[reference.NodeInfo | None, reference.NodeInfo | None]]:
        """Bring `views` up to date; returns the nodes that differ, each as it was and as it is."""
        found = {}
        for name in self._touched:
            before, node, after = self.views.pop(name, None), self._nodes.get(name), None
            if node is not None:
                after = self.views[name] = reference.node_info(node, self._on_node.get(name, {}).values())
            if after != before:
                found[name] = (before, after)
        self._touched.clear()
        return found

    def _put(self, pod: core.Pod) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        self._drop(uid)
        self._pods[uid] = pod
        if node:
            self._on_node.setdefault(node, {})[uid] = pod
            self._touched.add(node)
        elif self._is_ours(pod) and _can_be_placed(pod):
            self._waiting[uid] = pod

    def _drop(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.spec.node_name:
            self._touched.add(pod.spec.node_name)
            del self._on_node[pod.spec.node_name][uid]


def _bound(pod: core.Pod, node: str) -> core.Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def _can_be_placed(pod: core.Pod) -> bool:
    is_over = pod.status.phase in core.ENDED_PHASES or pod.metadata.deletion_timestamp is not None
    return not is_over and not pod.spec.scheduling_gates


def _turn(pod: core.Pod) -> tuple[int, str, str, str]:
    about = pod.metadata
    return (-(pod.spec.priority or 0), about.creation_timestamp or "", about.namespace, about.name)

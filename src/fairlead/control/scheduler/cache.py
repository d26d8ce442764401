"""Keeps the scheduler's cache: pods by uid, nodes by name, and each node as decisions see it, remade on change.

What the store said last stands here, and what we have written ourselves a moment before the store's watch says it too.
A binding is believed at once and never undone by a late echo; only a fresh list, which may come from a store restored
to an earlier day, can do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
        self._nodes: dict[str, core.Node] = {}
        self._on_node: dict[str, dict[str, core.Pod]] = {}
        self._views: dict[str, reference.NodeInfo] = {}

    def forget_pods(self) -> None:
        """Begin anew with pods: a list follows."""
        self._pods.clear()
        self._waiting.clear()
        self._on_node.clear()
        self._views.clear()

    def forget_nodes(self) -> None:
        """Begin anew with nodes: a list follows."""
        self._nodes.clear()
        self._views.clear()

    def note_pod(self, step: Change[core.Pod]) -> None:
        """Take in what the watch says."""
        pod = step.object
        known = self._pods.get(pod.metadata.uid)
        if step.kind is ChangeKind.DELETED:
            self._drop(pod.metadata.uid)
        elif known is None or pod.spec.node_name or not known.spec.node_name:
            # An echo from before our own binding must not make its devices look free again.
            self._put(pod)

    def note_node(self, step: Change[core.Node]) -> None:
        """Take in what the watch says."""
        name = step.object.metadata.name
        self._views.pop(name, None)
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
        self.note_written(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node)))

    def correct(self, uid: str, found: core.Pod | None) -> None:
        """Replace what was assumed by what the store has; None: the pod is gone."""
        self._drop(uid)
        if found is not None and found.metadata.uid == uid:
            self._put(found)

    def waiting(self) -> list[core.Pod]:
        """Return our pods without a node: higher priority first, then the oldest."""
        return sorted(self._waiting.values(), key=_turn)

    def is_waiting(self, uid: str) -> bool:
        """Tell whether the pod still waits."""
        return uid in self._waiting

    def views(self) -> Iterable[reference.NodeInfo]:
        """Return every node with what is taken of it."""
        for name, node in self._nodes.items():
            if name not in self._views:
                self._views[name] = reference.node_info(node, tuple(self._on_node.get(name, {}).values()))
        return self._views.values()

    def _put(self, pod: core.Pod) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name
        self._drop(uid)
        self._pods[uid] = pod
        if node:
            self._on_node.setdefault(node, {})[uid] = pod
            self._views.pop(node, None)
        elif self._is_ours(pod) and _can_be_placed(pod):
            self._waiting[uid] = pod

    def _drop(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.spec.node_name:
            self._views.pop(pod.spec.node_name, None)
            beside = self._on_node[pod.spec.node_name]
            del beside[uid]
            if not beside:
                del self._on_node[pod.spec.node_name]


def _can_be_placed(pod: core.Pod) -> bool:
    is_over = pod.status.phase in core.ENDED_PHASES or pod.metadata.deletion_timestamp is not None
    return not is_over and not pod.spec.scheduling_gates


def _turn(pod: core.Pod) -> tuple[int, str, str, str]:
    about = pod.metadata
    return (-(pod.spec.priority or 0), about.creation_timestamp or "", about.namespace, about.name)

"""Keeps which pods kubelets refused, by node, and until when that counts (`plan.schedule.rejection`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlead import errors
from fairlead.plan.schedule import reference, rejection
from fairlead.wire.kubernetes import core


class Rejections:
    """Refusals of kubelets."""

    def __init__(self, date: Callable[[], float] | None) -> None:
        """Begin without any; `date` gives Unix seconds, None: what kubelets refused does not count."""
        self._date = date
        self._of: dict[str, dict[str, rejection.Rejection]] = {}
        """By node and uid: pods that its kubelet refused."""
        self._due: dict[str, float] = {}
        """By node: when a shape is let go there again, Unix seconds."""

    def forget_pods(self) -> tuple[str, ...]:
        """Forget all pods; returns the nodes that refused any."""
        self._of.clear()
        return tuple(self._due)

    def forget_nodes(self) -> None:
        """Forget when nodes are open again."""
        self._due.clear()

    def put(self, pod: core.Pod) -> bool:
        """Take in a pod that ended; returns whether its kubelet had refused it."""
        if self._date is None or pod.status.reason not in rejection.REASONS:
            return False
        try:
            requests = reference.pod_info(pod).requests
        except errors.Invalid:
            return False  # it was said when the pod was counted
        if (found := rejection.of_pod(pod, requests, self._date())) is None:
            return False
        self._of.setdefault(pod.spec.node_name, {})[pod.metadata.uid] = found
        return True

    def drop(self, pod: core.Pod) -> bool:
        """Forget a pod; returns whether it was refused."""
        return self._of.get(pod.spec.node_name, {}).pop(pod.metadata.uid, None) is not None

    def on(self, node: str) -> Mapping[rejection.Shape, str]:
        """Return what a node refuses now, and keep until when."""
        self._due.pop(node, None)
        if self._date is None:
            return {}
        found, due = rejection.refused(self._of.get(node, {}).values(), self._date())
        if found:
            self._due[node] = due
        return found

    def close(self, node: str) -> None:
        """Forget until when a node refuses: it is not there."""
        self._due.pop(node, None)

    def due_s(self) -> float | None:
        """Return the seconds until a node is open again to what its kubelet refused, None where none refuses."""
        if not self._due or self._date is None:
            return None
        return max(0.0, min(self._due.values()) - self._date())

    def due(self) -> tuple[str, ...]:
        """Return the nodes that may be open again."""
        return tuple(self._due) if self.due_s() == 0.0 else ()

"""Says which of several schedulers owns a node or a pod, by the value of one label. Pure.

A node is of the pool that its label names, of the pool "" where it has none. A pod is of the pool that its own label
names, else its node selector, else of "". So each has one owner, whatever schedulers run, and no two decide on one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.schedule import reference
from fairlead.wire.kubernetes import core

SETTLE_S: Final = 10.0
"""After this a node that was another scheduler's is used: bindings that were on their way to it are seen by then."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Shard:
    """What one scheduler owns; without a label, everything."""

    label: str = ""
    pool: str = ""

    def owns_node(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node is of the pool."""
        return not self.label or labels.get(self.label, "") == self.pool

    def owns_pod(self, pod: core.Pod) -> bool:
        """Return whether a pod is of the pool."""
        return not self.label or self.pool_of(pod) == self.pool

    def pool_of(self, pod: core.Pod) -> str:
        """Return the pool that a pod names."""
        told = (pod.metadata.labels, pod.spec.node_selector)
        return next((one[self.label] for one in told if self.label in one), "") if self.label else ""

    def lease(self, name: str) -> str:
        """Return the name of the lease of those who may work for the pool."""
        if not self.label or not self.pool:
            return name
        if _NAME.fullmatch(self.pool):
            return f"{name}-{self.pool}"
        return f"{name}-{hashlib.sha256(self.pool.encode()).hexdigest()[:16]}"


WHOLE: Final = Shard()


class Pool:
    """The nodes that one scheduler sees: its own, those of others, and those that became its own just now."""

    def __init__(self, shard: Shard, clock: Callable[[], float]) -> None:
        """Take what is owned; `clock` gives monotonic seconds."""
        self.shard, self._clock = shard, clock
        self.others: dict[str, reference.NodeInfo] = {}
        """By name: they count for what queues are due, and nothing is placed on them."""
        self._settling: dict[str, tuple[float, core.Node]] = {}
        """By name: nodes that became ours, and when they are used; they are among the others until then."""

    def forget(self) -> None:
        """Reset: a list follows. What became ours before it is used at once."""
        self.others.clear()
        self._settling.clear()

    def takes(self, node: core.Node, *, is_gone: bool) -> bool:
        """Take in what the watch says; returns whether the node is there and used. Raises: Invalid: a bad quantity."""
        name = node.metadata.name
        was_other, settling = self.others.pop(name, None) is not None, self._settling.pop(name, None)
        if is_gone:
            return False
        if not self.shard.owns_node(node.metadata.labels):
            self.others[name] = reference.offered(node)
            return False
        if not was_other:
            return True
        self._settling[name] = (self._clock() + SETTLE_S if settling is None else settling[0], node)
        self.others[name] = reference.offered(node)
        return False

    def due_s(self) -> float | None:
        """Return the seconds until a node that became ours is used, None where there is none."""
        times = [due_at - self._clock() for due_at, _ in self._settling.values()]
        return max(0.0, min(times)) if times else None

    def settled(self) -> tuple[core.Node, ...]:
        """Return the nodes that became ours long enough ago; they are not of others any more."""
        found = tuple(node for due_at, node in self._settling.values() if due_at <= self._clock())
        for node in found:
            del self._settling[node.metadata.name]
            self.others.pop(node.metadata.name, None)
        return found

"""Reads from leases which schedulers share a cluster, and says whose a pod is. Pure.

Each scheduler writes on its lease by which label the cluster is divided and which value is its own. What explains a pod
reads that, so it needs no setting: only nodes of the pod's pool matter, and a pool may have no scheduler at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.plan.schedule.shard.pool import Shard
from fairlead.wire.kubernetes import coordination, core, meta

LABEL: Final = "fairlead.dev/shard-label"
POOL: Final = "fairlead.dev/shard"
SCHEDULER: Final = "fairlead.dev/scheduler-name"
_SLACK_S: Final = 30.0
"""How much later than due a renewal may be, by a clock that is not the holder's."""


def marks(shard: Shard, scheduler: str) -> Mapping[str, str]:
    """Return what a scheduler writes on its lease; all are there, so that a former division is overwritten.

    Args: scheduler: the name that its pods have.
    """
    return {LABEL: shard.label, POOL: shard.pool if shard.label else "", SCHEDULER: scheduler}


@dataclass(frozen=True, slots=True)
class Shards:
    """The label that divides a cluster, and the pools that have a scheduler now."""

    label: str = ""
    pools: frozenset[str] = frozenset()
    scheduler: str = ""
    """Whose pods are divided."""

    def divide(self, pod: core.Pod) -> bool:
        """Return whether a pod waits for one of several schedulers."""
        return bool(self.label) and pod.spec.scheduler_name == self.scheduler

    def pool_of(self, pod: core.Pod) -> str:
        """Return the pool of a pod; "" also where nothing is divided."""
        return Shard(self.label if self.divide(pod) else "").pool_of(pod)

    def nodes_for(self, pod: core.Pod, nodes: Sequence[core.Node]) -> tuple[core.Node, ...]:
        """Return the nodes that the pod's scheduler uses."""
        shard = Shard(self.label if self.divide(pod) else "", self.pool_of(pod))
        return tuple(node for node in nodes if shard.owns_node(node.metadata.labels))

    def refusal(self, pod: core.Pod) -> str:
        """Return that no scheduler runs for a pod's pool, with the next step; "" where one does."""
        pool = self.pool_of(pod)
        if not self.divide(pod) or pool in self.pools:
            return ""
        there = ", ".join(f'"{one}"' for one in sorted(self.pools)) or "none"
        which = f'pods of {self.label} "{pool}"' if pool else f"pods without the label {self.label}"
        return f"no scheduler runs for {which} (pools with one: {there}): start it, or name another pool on the pod"

    def words(self, pod: core.Pod) -> str:
        """Return what follows a reason that is about the nodes of the pod's pool alone; "" where nothing is divided."""
        if not self.divide(pod):
            return ""
        pool = self.pool_of(pod)
        return f' (of the nodes with {self.label} "{pool}")' if pool else f" (of the nodes without {self.label})"


WHOLE: Final = Shards()


def shards_of(leases: Iterable[coordination.Lease], now: float) -> Shards:
    """Return what leases say that are held at a time, Unix seconds; where they disagree, the newest holder's word."""
    held = [one for one in leases if LABEL in one.metadata.annotations and _is_held(one, now)]
    newest = max(held, key=lambda one: one.spec.acquire_time or "", default=None)
    if newest is None or not newest.metadata.annotations[LABEL]:
        return WHOLE
    label, scheduler = newest.metadata.annotations[LABEL], newest.metadata.annotations.get(SCHEDULER, "")
    told = (one.metadata.annotations for one in held)
    pools = (one.get(POOL, "") for one in told if (one[LABEL], one.get(SCHEDULER, "")) == (label, scheduler))
    return Shards(label, frozenset(pools), scheduler)


def _is_held(lease: coordination.Lease, now: float) -> bool:
    renewed, spec = meta.timestamp(lease.spec.renew_time), lease.spec
    return (
        bool(spec.holder_identity)
        and renewed is not None
        and (now - renewed <= (spec.lease_duration_seconds or 0) + _SLACK_S)
    )

"""Ends and removes GPULeases whose node is gone; a node's agent does both for its own.

Where the Node object is gone for `GONE_S` no agent can say any more who has its GPUs: leases that have not ended are
`Lost`. What ended is kept for `lease.keep_days` like any other, for audit and accounting.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Final

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.plan.lease import possession
from fairlead.store import retry
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.wire.kubernetes import core, gpulease
from fairlead.wire.kubernetes.gpulease import GPULease

GONE_S: Final = 60.0
_AGAIN_S: Final = 3600.0
_NODE_GONE: Final = "NodeGone"


class GPULeases:
    """Keeps the leases of nodes that are gone."""

    name = "gpulease"

    def __init__(self, store: Store, *, keep_s: float, gone_s: float = GONE_S) -> None:
        """Take the store, how long leases are kept after their end, and how long a node may be missing."""
        self._store, self._keep_s, self._gone_s = store, keep_s, gone_s
        self._nodes: set[str] = set()
        self._leases: dict[str, dict[str, GPULease]] = {}
        """By node, then by name."""
        self._missed_at: dict[str, float] = {}

    def watches(self) -> tuple[Watch, ...]:
        """Follow nodes and leases; both are keyed by the node."""
        return (
            Watch(kind=core.Node, keys=self._node_changed, reset=self._nodes.clear),
            Watch(kind=GPULease, keys=self._lease_changed, reset=self._leases.clear, is_optional=True),
        )

    def _node_changed(self, step: Change[core.Node]) -> Iterable[str]:
        name = step.object.metadata.name
        (self._nodes.discard if step.kind is ChangeKind.DELETED else self._nodes.add)(name)
        return (name,)

    def _lease_changed(self, step: Change[GPULease]) -> Iterable[str]:
        one = step.object
        siblings = self._leases.setdefault(one.spec.node_name, {})
        if step.kind is ChangeKind.DELETED:
            siblings.pop(one.metadata.name, None)
        else:
            siblings[one.metadata.name] = one
        if not siblings:
            del self._leases[one.spec.node_name]
        return (one.spec.node_name,)

    async def reconcile(self, key: str) -> float | None:
        """End and remove leases of one node, if it is gone; returns seconds until it is to be looked at again."""
        leases = tuple(self._leases.get(key, {}).values())
        if key in self._nodes or not leases:
            self._missed_at.pop(key, None)
            return None
        now = asyncio.get_running_loop().time()
        left_s = self._gone_s - (now - self._missed_at.setdefault(key, now))
        if left_s > 0:
            return left_s
        for one in leases:
            if one.status.state not in gpulease.ENDED:
                with contextlib.suppress(errors.NotFound):
                    await retry.change_status(self._store, GPULease, one.metadata.name, lambda found: _lost(found, key))
                    telemetry.log.info("lease lost", lease=one.metadata.name, node=key, reason=_NODE_GONE)
        for one in possession.find_old(leases, before=time.time() - self._keep_s):
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._store.delete(GPULease, one.metadata.name, uid=one.metadata.uid)
        return _AGAIN_S


def _lost(found: GPULease, node: str) -> GPULease | None:
    return possession.lose(found, at=time.time(), reason=_NODE_GONE, message=f"node {node} is gone")

"""Ends the pods that hold MIG devices which a configuration ends, where the node may be drained for that.

A setting says whether: never, always, or where the Node's label `fairlead.dev/mig.drain` says `true`. Pods go by the
eviction API, so disruption budgets hold, and those of this GPU's doomed devices alone. Their devices are kept back
meanwhile, so whatever a controller makes in their place waits or gets others. Pods that do not end in time, or that a
budget keeps, leave everything as it is: the round fails, says which, and is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from fairlead import errors, telemetry
from fairlead.model import replica
from fairlead.node.inventory import latest
from fairlead.plan.gpu.attribution import Holding
from fairlead.store.port import Store
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core

LABEL: Final = "fairlead.dev/mig.drain"
NEVER, ALWAYS, BY_LABEL = "never", "always", "label"
CHOICES: Final = (NEVER, BY_LABEL, ALWAYS)
REASON: Final = "MIGDrained"
"""Why a pod ended, where its record stays."""
WITHIN_S: Final = 300.0
_ASK_S: Final = 0.5
_AGAIN_S: Final = 5.0
"""Between two tries of an eviction that a disruption budget refused."""


class Drain:
    """Ends holders of devices on one node."""

    def __init__(
        self,
        choice: str,
        store: Store,
        placement: Placement,
        *,
        labels: latest.Latest[Mapping[str, str] | None] | None,
        ask: Callable[[], Awaitable[Collection[Holding]]],
        within_s: float = WITHIN_S,
    ) -> None:
        """Take how to end pods.

        Args: choice: one of CHOICES.   labels: of the Node.   ask: asks the kubelet who holds what.
        """
        self._choice, self._labels = choice, labels
        self._store, self._placement = store, placement
        self._ask, self._within_s = ask, within_s

    def is_allowed(self) -> bool:
        """Return whether pods may be ended on this node now."""
        labels = (self._labels.value if self._labels is not None else None) or {}
        return self._choice == ALWAYS or (self._choice == BY_LABEL and labels.get(LABEL) == "true")

    async def end_holders(self, devices: Collection[str], *, why: str) -> None:
        """Evict the pods that hold any of these GPUs or MIG devices, and wait until the kubelet lists none.

        Raises: Conflict (`MIGDrainTimeout`): some are still there.   Denied: this account may not evict pods.
        """
        loop = asyncio.get_running_loop()
        end, tried = loop.time() + self._within_s, dict[tuple[str, str], float]()
        refused = ""
        while holders := _holders(devices, await self._ask()):
            if loop.time() >= end:
                names = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(holders))
                message = f"these pods hold MIG devices and did not end: {names}" + (f" ({refused})" if refused else "")
                raise errors.Conflict(message, reason="MIGDrainTimeout", hint="end them, and the change is made")
            for one in sorted(holders):
                if loop.time() - tried.get(one, -self._within_s) >= _AGAIN_S:
                    tried[one] = loop.time()
                    refused = await self._evict(one, why) or refused
            await asyncio.sleep(_ASK_S)

    async def _evict(self, holder: tuple[str, str], why: str) -> str:
        """Evict a pod, if it is not ending; returns why a budget keeps it. Raises: Denied: it is forbidden."""
        namespace, name = holder
        try:
            pod = await self._store.get(core.Pod, name, namespace)
            if pod.metadata.deletion_timestamp is None and pod.status.stop_request is None:
                await self._placement.evict(pod, grace_s=None, why=why, reason=REASON)
                telemetry.log.info("pod drained", pod=f"{namespace}/{name}", reason=REASON)
        except errors.NotFound:
            return ""  # its record is gone; the kubelet's list follows
        except errors.Denied as error:
            if error.reason != "DisruptionBudget":
                raise
            return error.message
        return ""


def _holders(devices: Collection[str], holdings: Collection[Holding]) -> set[tuple[str, str]]:
    return {(one.namespace, one.pod) for one in holdings if any(replica.origin(name) in devices for name in one.ids)}

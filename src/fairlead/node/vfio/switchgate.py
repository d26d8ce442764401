"""Gives NVSwitches to the Service VM's pod alone, all at once; everything else is the ledger's gate's.

A device plugin is not told whose pod it answers for. So the pods of this node are looked at: while one outside the
namespace asks for switches nobody gets them, and neither while none in it does. An agent without the API server
cannot know: then it checks the number alone, and the log says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from fairlead import errors, telemetry
from fairlead.model.device import Device
from fairlead.plan.vfio import switchoffer
from fairlead.wire.kubernetes import core

NEWS_S: Final = 1.5
"""How long the store may take to tell of a pod that its kubelet has admitted, or of one that has ended."""
_GAP_S: Final = 0.05

ListPods = Callable[[], Collection[core.Pod] | None]
"""Returns the pods of this node; None: nobody knows them."""


class Gate(Protocol):
    """What gives all other devices away."""

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        """Give all devices away or raise."""
        ...


class SwitchGate:
    """The gate of a node whose switches may go to a Service VM's pod."""

    def __init__(self, gate: Gate | None, namespace: str, *, whole: Callable[[], int], pods: ListPods) -> None:
        """Take what is behind it. Args: gate: None: there is no ledger.   whole: returns how many there are."""
        self._gate, self._namespace, self._whole, self._pods = gate, namespace, whole, pods

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        """Give all devices away or raise. Raises: RequestError, Denied, Unavailable; what the ledger's gate raises."""
        if resource != switchoffer.RESOURCE:
            if self._gate is not None:
                await self._gate.hold(resource, devices)
            return
        until = asyncio.get_running_loop().time() + NEWS_S
        while (refusal := self._refusal(len(devices))) is not None:
            if refusal.reason == switchoffer.NOT_WHOLE or asyncio.get_running_loop().time() > until:
                raise refusal
            await asyncio.sleep(_GAP_S)
        if self._pods() is None:
            telemetry.log.warning(
                "nvswitches given away", error="whose pod it is cannot be known without an API server"
            )

    def _refusal(self, asked: int) -> errors.FairleadError | None:
        return switchoffer.find_refusal(asked, self._whole(), self._pods(), self._namespace)

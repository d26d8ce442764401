"""Gives NVSwitches to the Service VM's pod alone, all at once; everything else is the ledger's gate's.

A device plugin is not told whose pod it answers for. So the pods of this node are looked at: while one outside the
namespace asks for switches nobody gets them, and neither while none in it does. The API server is asked for them then:
a kubelet may have heard of a pod, and ask for it, before this agent has, and a pod of the namespace that runs with the
switches would vouch for it. An agent without an API server cannot know: then it checks the number alone, and the log
says so.

Two pods of the namespace are one here. The kubelet counts what the first has and admits no second; where it has
forgotten that, VFIO lets one machine open a group, so the second's does not start and the first's goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

from fairlead import errors, telemetry
from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.plan.vfio import switchoffer
from fairlead.wire.kubernetes import core

NEWS_S: Final = 1.5
"""How long the store may take to tell of a pod that its kubelet has admitted, or of one that has ended."""
ASKED_S: Final = 5.0
"""Longest that the API server is waited for: a kubelet admits no other pod meanwhile."""
UNKNOWN: Final = "NVSwitchPodsUnknown"
_GAP_S: Final = 0.2

AskPods = Callable[[], Awaitable[Collection[core.Pod] | None]]
"""Asks for the pods of this node as they are now; None: there is no API server. Raises: Unavailable."""


class Gate(Protocol):
    """What gives all other devices away."""

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        """Give all devices away or raise."""
        ...


class SwitchGate:
    """The gate of a node whose switches may go to a Service VM's pod."""

    def __init__(
        self,
        gate: Gate | None,
        namespace: str,
        *,
        whole: Callable[[], int],
        pods: AskPods,
        resource: str = cdikind.SWITCHES,
    ) -> None:
        """Take what is behind it.

        Args: gate: None: there is no ledger.   whole: returns how many there are.   resource: of the switches.
        """
        self._gate, self._namespace, self._whole, self._pods = gate, namespace, whole, pods
        self._resource = resource

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        """Give all devices away or raise. Raises: RequestError, Denied, Unavailable; what the ledger's gate raises."""
        if resource != self._resource:
            if self._gate is not None:
                await self._gate.hold(resource, devices)
            return
        until = asyncio.get_running_loop().time() + NEWS_S
        while True:
            pods = await self._ask()
            refusal = switchoffer.find_refusal(len(devices), self._whole(), pods, self._namespace, resource)
            if refusal is None:
                break
            if refusal.reason == switchoffer.NOT_WHOLE or asyncio.get_running_loop().time() > until:
                raise refusal
            await asyncio.sleep(_GAP_S)
        if pods is None:
            telemetry.log.warning(
                "nvswitches given away", error="whose pod it is cannot be known without an API server"
            )
        elif len(several := switchoffer.asking(pods, resource)) > 1:
            message = f"one of these pods gets the NVSwitches, and the others do not start: {', '.join(several)}"
            telemetry.log.warning("nvswitches given away", error=message)

    async def _ask(self) -> Collection[core.Pod] | None:
        """Return the pods of this node as they are now. Raises: Unavailable (`NVSwitchPodsUnknown`)."""
        why = f"it did not answer within {ASKED_S:g} s"
        try:
            async with asyncio.timeout(ASKED_S):
                return await self._pods()
        except TimeoutError:
            pass
        except errors.Unavailable as error:
            why = error.message
        message = f"NVSwitches are not given away while the API server does not say which pods ask for them: {why}"
        raise errors.Unavailable(message, reason=UNKNOWN, hint="make the pod again once the API server answers")

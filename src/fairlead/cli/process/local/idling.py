"""Composes the policy for idle GPUs of one machine: its controller, and the figures that it judges by."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead import errors, settings, telemetry
from fairlead.control.idle.keeper import ENDED, IdleKeeper
from fairlead.plan.idle import policy
from fairlead.plan.idle.judge import Measured, Window
from fairlead.serve.backend import account
from fairlead.serve.backend.containers.lifecycle import LocalLifecycle
from fairlead.serve.backend.place import Everywhere
from fairlead.serve.backend.port import Absent
from fairlead.serve.history.local import LocalHistory
from fairlead.serve.history.port import History
from fairlead.serve.v1.containers.restart import like
from fairlead.store.port import Store
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core


@dataclass(slots=True)
class LateFigures:
    """A `keeper.Figures` that has none until the history is open; only this machine's own file is judged by."""

    source: History | Absent | None = None
    """Who answers questions about figures; None: the service is starting."""

    async def measured(self, uid: str, devices: Iterable[str], window: Window) -> Measured:
        """See `keeper.Figures.measured`."""
        if not isinstance(self.source, LocalHistory):
            message = "this machine keeps no figures of its own, or not yet"
            hint = "set history.days, without history.prometheus"
            raise errors.Unavailable(message, reason="FiguresMissing", hint=hint)
        return await self.source.measured(uid, devices, window)


def keeper(
    config: settings.Settings,
    store: Store,
    placement: Placement,
    living: LocalLifecycle,
    figures: LateFigures,
    tasks: asyncio.TaskGroup,
) -> IdleKeeper:
    """Return the controller. Raises: Invalid: a setting."""

    async def again(pod: core.Pod) -> None:
        """Have a container like one wait in its place; one that would be refused now is ended all the same."""
        try:
            asked = Everywhere().again(pod).submission(like(pod))
            await living.replace(pod, asked, grace_s=None)
        except errors.FairleadError as error:
            telemetry.log.warning("idle container not queued", pod=pod.metadata.name, error=error.message)
            why = f"its GPUs were idle, and it was not put back into the queue: {error.message[:300]}"
            try:
                await placement.evict(pod, grace_s=None, why=why, reason=ENDED)
            except errors.FairleadError as failed:
                telemetry.log.warning("pod not ended", pod=pod.metadata.name, error=failed.message)

    async def requeue(pod: core.Pod) -> None:
        tasks.create_task(again(pod), name="idle container to the queue")

    default = policy.of_settings(config.idle)
    return IdleKeeper(store, placement, default, figures, requeue=requeue, owner=account.owner)

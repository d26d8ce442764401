"""Keeps the health verdicts of this node's GPUs up to date from events and scans.

The rules are `plan.health`'s. This book holds one verdict a GPU, says which of them changed what is offered, and when
the next look could change one by time alone. Who looks, and when, is `node.inventory`'s part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.model.gpu import GPU, GPUEvent, Inventory, UnreadableGPU
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A GPU that began or ceased to be offered."""

    uuid: GPUUUID
    is_healthy: bool
    reason: str
    """Why it is not offered; once it is again, why it was not."""
    message: str


class HealthTracker:
    """One verdict a GPU."""

    def __init__(
        self, policy: health.Policy = health.DEFAULT, *, remembered: Mapping[GPUUUID, health.Verdict] | None = None
    ) -> None:
        """Take the rules, and the verdicts that GPUs begin with where they are seen."""
        self._policy = policy
        self._verdicts: dict[GPUUUID, health.Verdict] = {}
        self._remembered = dict(remembered or {})

    def verdicts(self) -> Mapping[GPUUUID, health.Verdict]:
        """Return a copy that stays as it is."""
        return dict(self._verdicts)

    def latched(self) -> dict[GPUUUID, health.Verdict]:
        """Return the verdicts that only a reset ends, of GPUs that have not been seen yet too."""
        every = {**self._remembered, **self._verdicts}
        return {uuid: one for uuid, one in every.items() if one.is_latched and not one.is_healthy}

    def observe_event(self, event: GPUEvent, *, now: float) -> tuple[Change, ...]:
        """Judge one event; events of no GPU in particular change nothing."""
        if event.uuid is None:
            return ()
        verdict = health.judge_event(self._of(event.uuid), event, now=now, policy=self._policy)
        return self._keep(event.uuid, verdict)

    def observe_inventory(self, inventory: Inventory, *, now: float) -> tuple[Change, ...]:
        """Judge one scan that began at `now`; GPUs that are not in it at all are forgotten."""
        seen: Iterable[GPU | UnreadableGPU] = (*inventory.gpus, *inventory.unreadable)
        found = {gpu.uuid: gpu for gpu in seen if gpu.uuid is not None}
        for uuid in self._verdicts.keys() - found.keys():
            del self._verdicts[uuid]
        changes: list[Change] = []
        for uuid, gpu in found.items():
            if self._of(uuid).found_at > now:
                continue  # an event came while the scan ran: what it read is older than what we know
            verdict = health.judge_reading(self._of(uuid), gpu, now=now, policy=self._policy)
            changes += self._keep(uuid, verdict)
        return tuple(changes)

    def recheck_s(self, *, now: float) -> float | None:
        """Return in how many seconds a scan can change a verdict by time alone; None: not before something happens."""
        waits = [health.recheck_s(verdict, now=now, policy=self._policy) for verdict in self._verdicts.values()]
        return min((wait for wait in waits if wait is not None), default=None)

    def _of(self, uuid: GPUUUID) -> health.Verdict:
        return self._verdicts.get(uuid) or self._remembered.get(uuid, health.Verdict())

    def _keep(self, uuid: GPUUUID, verdict: health.Verdict) -> tuple[Change, ...]:
        before = self._of(uuid)
        self._verdicts[uuid] = verdict
        self._remembered.pop(uuid, None)
        if before.is_healthy == verdict.is_healthy:
            return ()
        cause = before if verdict.is_healthy else verdict
        change = Change(uuid=uuid, is_healthy=verdict.is_healthy, reason=cause.reason, message=cause.message)
        return (change,)

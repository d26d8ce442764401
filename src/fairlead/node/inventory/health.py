"""Keeps the health verdicts of this node's GPUs and MIG devices up to date from events and scans.

An event that names an instance is about the MIG devices in it alone; where no device of that instance is known, it
counts against the whole GPU.
The rules are `plan.gpu.health`'s. The tracker holds one verdict a GPU, says which of them changed what is
offered, and when the next look could change one by time alone. `node.inventory.monitor` decides when to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.model.gpu import GPU, EventKind, GPUEvent, Inventory, MIGDevice, UnreadableGPU
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.gpu import health


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A GPU, or a MIG device on it, that began or ceased to be offered."""

    uuid: GPUUUID | MIGUUID
    is_healthy: bool
    reason: str
    """Why it is not offered; once it is again, why it was not."""
    message: str


class HealthTracker:
    """One verdict a GPU, and one for each MIG device that anything was ever said against."""

    def __init__(
        self, policy: health.Policy = health.DEFAULT, *, remembered: Mapping[GPUUUID, health.Verdict] | None = None
    ) -> None:
        """Take the rules, and the verdicts that GPUs begin with where they are seen."""
        self._policy = policy
        self._verdicts: dict[GPUUUID, health.Verdict] = {}
        self._remembered = dict(remembered or {})
        self._devices: dict[MIGUUID, health.Verdict] = {}
        self._parts: dict[GPUUUID, tuple[MIGDevice, ...]] = {}
        """MIG devices of each GPU, as last read."""

    def judge_by(self, policy: health.Policy, *, now: float) -> tuple[Change, ...]:
        """Take other rules; a GPU that waits for a reset which they do not ask for begins its way back."""
        self._policy = policy
        back = GPUEvent(kind=EventKind.RECOVERED, uuid=None)
        gpus = [uuid for uuid, one in self._verdicts.items() if health.is_excused(one, policy)]
        devices = [uuid for uuid, one in self._devices.items() if health.is_excused(one, policy)]
        self._remembered = {uuid: one for uuid, one in self._remembered.items() if not health.is_excused(one, policy)}
        changes: list[Change] = []
        for gpu in gpus:
            changes += self._keep(gpu, health.judge_event(self._of(gpu), back, now=now, policy=policy))
        for device in devices:
            changes += self._judge_device(device, back, now)
        return tuple(changes)

    def verdicts(self) -> Mapping[GPUUUID, health.Verdict]:
        """Return a copy that stays as it is."""
        return dict(self._verdicts)

    def device_verdicts(self) -> Mapping[MIGUUID, health.Verdict]:
        """Return a copy of the MIG devices' own verdicts; one without has none against it."""
        return dict(self._devices)

    def latched(self) -> dict[GPUUUID, health.Verdict]:
        """Return the verdicts that only a reset ends, by UUID, of GPUs that have not been seen yet too."""
        parts = {GPUUUID(uuid): one for uuid, one in self._devices.items()}
        every = {**self._remembered, **self._verdicts, **parts}
        return {uuid: one for uuid, one in every.items() if one.is_latched and not one.is_healthy}

    def observe_event(self, event: GPUEvent, *, now: float) -> tuple[Change, ...]:
        """Judge one event; events of no GPU in particular change nothing."""
        if event.uuid is None:
            return ()
        hit = [part for part in self._parts.get(event.uuid, ()) if _is_in(part, event)]
        if hit and event.kind is EventKind.XID:
            return tuple(change for part in hit for change in self._judge_device(part.uuid, event, now))
        changes: list[Change] = []
        if event.kind is EventKind.RECOVERED:
            known = [part.uuid for part in self._parts.get(event.uuid, ()) if part.uuid in self._devices]
            changes += [change for uuid in known for change in self._judge_device(uuid, event, now)]
        verdict = health.judge_event(self._of(event.uuid), event, now=now, policy=self._policy)
        return (*changes, *self._keep(event.uuid, verdict))

    def _judge_device(self, uuid: MIGUUID, event: GPUEvent, now: float) -> tuple[Change, ...]:
        before = self._devices.get(uuid, health.Verdict())
        return self._keep_device(uuid, health.judge_event(before, event, now=now, policy=self._policy))

    def _keep_device(self, uuid: MIGUUID, verdict: health.Verdict) -> tuple[Change, ...]:
        before = self._devices.get(uuid, health.Verdict())
        if verdict != health.Verdict():
            self._devices[uuid] = verdict
        return _change(uuid, before, verdict)

    def _observe_parts(self, gpu: GPU, now: float) -> tuple[Change, ...]:
        """Judge the MIG devices of one reading; those that are gone are forgotten, and new ones have their memory."""
        there = {part.uuid for part in gpu.mig_devices}
        for part in self._parts.get(gpu.uuid, ()):
            if part.uuid not in there:
                self._devices.pop(part.uuid, None)
        self._parts[gpu.uuid] = gpu.mig_devices
        changes: list[Change] = []
        for uuid in there:
            if (kept := self._remembered.pop(GPUUUID(uuid), None)) is not None:
                changes += self._keep_device(uuid, kept)
            before = self._devices.get(uuid)
            if before is not None and before.found_at <= now:
                changes += self._keep_device(uuid, health.judge_reading(before, gpu, now=now, policy=self._policy))
        return tuple(changes)

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
        for gpu in inventory.gpus:
            changes += self._observe_parts(gpu, now)
        return tuple(changes)

    def recheck_s(self, *, now: float) -> float | None:
        """Return in how many seconds a scan can change a verdict by time alone; None: not before something happens."""
        every = (*self._verdicts.values(), *self._devices.values())
        waits = [health.recheck_s(verdict, now=now, policy=self._policy) for verdict in every]
        return min((wait for wait in waits if wait is not None), default=None)

    def _of(self, uuid: GPUUUID) -> health.Verdict:
        return self._verdicts.get(uuid) or self._remembered.get(uuid, health.Verdict())

    def _keep(self, uuid: GPUUUID, verdict: health.Verdict) -> tuple[Change, ...]:
        before = self._of(uuid)
        self._verdicts[uuid] = verdict
        self._remembered.pop(uuid, None)
        return _change(uuid, before, verdict)


def _change(uuid: GPUUUID | MIGUUID, before: health.Verdict, verdict: health.Verdict) -> tuple[Change, ...]:
    if before.is_healthy == verdict.is_healthy:
        return ()
    cause = before if verdict.is_healthy else verdict
    return (Change(uuid=uuid, is_healthy=verdict.is_healthy, reason=cause.reason, message=cause.message),)


def _is_in(part: MIGDevice, event: GPUEvent) -> bool:
    """Return whether an event names the instance of a MIG device: its GPU instance, or exactly its compute instance."""
    return event.gpu_instance == part.gpu_instance and event.compute_instance in {None, part.compute_instance}

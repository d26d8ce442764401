"""Brings the claims of a pod to prepared before its containers start, and to unprepared after they have ended.

A claim that cannot be prepared keeps its pod waiting, never failing: its driver may come. One that cannot be unprepared
keeps its pod from ending, since its devices are still set up for it. Either way the pod's status says which driver is
waited for, and its trace says it once until it changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead import backoff, errors, telemetry
from fairlead.node.kubelet.dra import drivers
from fairlead.node.kubelet.dra.claimrecord import ClaimRecord, DeviceRecord
from fairlead.node.kubelet.dra.devicehealth import DeviceHealth
from fairlead.node.kubelet.dra.dramanager import DRAManager
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.pod.life import podsync
from fairlead.wire.kubelet import podresources
from fairlead.wire.kubernetes import core

NOT_PREPARED: Final = "FailedPrepareDynamicResources"
NOT_UNPREPARED: Final = "FailedUnprepareDynamicResources"
PREPARED: Final = "ClaimsPrepared"
UNPREPARED: Final = "ClaimsUnprepared"
_FIRST_WAIT_S, _LAST_WAIT_S = 1.0, 30.0
_UNWRITTEN: Final = "StateWriteFailed"


class StepRecorder(Protocol):
    """Records a step of a pod, as `Runtime.record`."""

    async def __call__(
        self,
        pod: core.Pod,
        layer: str,
        reason: str,
        message: str,
        *,
        facts: Mapping[str, object],
        duration_s: float | None = None,
        is_warning: bool = False,
    ) -> None:
        """Record it."""


@dataclass(frozen=True, slots=True)
class _Wait:
    text: str
    count: int
    """How often in a row."""


class PodClaims:
    """The claims of one node's pods; called by each pod's own worker, one at a time."""

    def __init__(self, manager: DRAManager, health: DeviceHealth, record: StepRecorder) -> None:
        self._manager, self._health, self._record = manager, health, record
        self._waits: dict[str, _Wait] = {}
        """By uid of a pod: what it waits for."""

    def waiting(self) -> tuple[str, ...]:
        """Return the uids of pods that wait for a driver."""
        return tuple(self._waits)

    def forget(self, uid: str) -> None:
        """Forget what a pod that is gone waited for."""
        self._waits.pop(uid, None)

    async def prepare(self, pod: core.Pod) -> podsync.Blocked | None:
        """Have a pod's claims prepared; returns what is in the way.

        Raises: Unavailable (`StateWriteFailed`): the checkpoint cannot be written.
        """
        if not lifecycle.has_claims(pod) or self._manager.is_prepared(pod):
            self.forget(pod.metadata.uid)
            return None
        try:
            with telemetry.timed("drivers asked to prepare", pod=pod.metadata.uid) as timing:
                records = await self._manager.prepare(pod)
        except errors.FairleadError as error:
            return await self._wait(pod, NOT_PREPARED, error)
        self.forget(pod.metadata.uid)
        await self._record(
            pod, "kubelet", PREPARED, _said(records), facts=_facts(records), duration_s=timing.duration_s
        )
        return None

    async def unprepare(self, pod: core.Pod) -> podsync.Blocked | None:
        """Give a pod's claims back; returns what is in the way. Raises: as `prepare`."""
        if not self._manager.of_pod(pod.metadata.uid):
            self.forget(pod.metadata.uid)
            return None
        try:
            with telemetry.timed("drivers asked to unprepare", pod=pod.metadata.uid) as timing:
                records = await self._manager.unprepare(pod.metadata.uid)
        except errors.FairleadError as error:
            return await self._wait(pod, NOT_UNPREPARED, error)
        self.forget(pod.metadata.uid)
        if records:
            text = f"the devices of {_names(records)} are given back"
            await self._record(pod, "kubelet", UNPREPARED, text, facts=_facts(records), duration_s=timing.duration_s)
        return None

    async def unprepare_orphan(self, uid: str) -> float | None:
        """Give back the claims of a pod that is gone; returns after how many seconds to try again."""
        try:
            await self._manager.unprepare(uid)
        except errors.FairleadError as error:
            wait = self._count(uid, errors.sentence(error))
            if wait.count == 1:
                telemetry.log.warning("claims of a vanished pod kept", pod=uid, error=wait.text)
            return _pause_s(wait)
        self.forget(uid)
        return None

    async def _wait(self, pod: core.Pod, reason: str, error: errors.FairleadError) -> podsync.Blocked:
        if error.reason == _UNWRITTEN:
            raise error
        text = errors.sentence(error)
        wait = self._count(pod.metadata.uid, text)
        # Drivers register within moments of the kubelet's own start: the first look for one says nothing yet.
        if wait.count == 1 + (error.reason == drivers.NOT_REGISTERED):
            facts = {"cause": error.reason, "claims": lifecycle.claim_names(pod)}
            await self._record(pod, "kubelet", reason, text, facts=facts, is_warning=True)
        return podsync.Blocked(reason=reason, message=text, is_final=False, retry_at=time.time() + _pause_s(wait))

    def _count(self, uid: str, text: str) -> _Wait:
        before = self._waits.get(uid)
        wait = _Wait(text, before.count + 1 if before is not None and before.text == text else 1)
        self._waits[uid] = wait
        return wait

    # what others show

    def statuses(self, pod: core.Pod) -> dict[str, tuple[core.ResourceStatus, ...]]:
        """Return the devices of each container's claims, with their health, as a pod's status has them."""
        every = (*pod.spec.init_containers, *pod.spec.containers)
        found = {item.name: self._statuses(pod, item) for item in every} if lifecycle.has_claims(pod) else {}
        return {name: some for name, some in found.items() if some}

    def _statuses(self, pod: core.Pod, item: core.Container) -> tuple[core.ResourceStatus, ...]:
        by_word: dict[str, dict[str, core.ResourceHealth]] = {}
        for word, driver, device in self._manager.devices(pod, item):
            one = self._judged(driver, device)
            by_word.setdefault(word, {})[one.resource_id] = one
        return tuple(
            core.ResourceStatus(name=f"{core.CLAIM}{word}", resources=tuple(found.values()))
            for word, found in sorted(by_word.items())
        )

    def _judged(self, driver: str, device: DeviceRecord) -> core.ResourceHealth:
        state = self._health.find(driver, device.pool, device.device)
        named = device.cdi_devices[0] if device.cdi_devices else f"{driver}/{device.pool}/{device.device}"
        return core.ResourceHealth(
            resource_id=named, health=state.health.name.capitalize(), message=state.message or None
        )

    def dynamic_resources(self, pod: core.Pod, item: core.Container) -> tuple[podresources.DynamicResource, ...]:
        """Return what a container has by claims, as the PodResources API lists it."""
        records = {one.name: one for one in self._manager.of_pod(pod.metadata.uid)}
        found: dict[str, dict[podresources.ClaimDevice, None]] = {}
        for claim, driver, device in self._manager.claimed(pod, item):
            shown = podresources.ClaimDevice(
                driver=driver,
                pool=device.pool,
                device=device.device,
                cdi_devices=device.cdi_devices,
                share_id=device.share_id,
            )
            found.setdefault(claim, {})[shown] = None
        return tuple(
            podresources.DynamicResource(claim=name, namespace=records[name].namespace, devices=tuple(some))
            for name, some in sorted(found.items())
        )


def _pause_s(wait: _Wait) -> float:
    return backoff.doubled(wait.count - 1, first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S)


def _names(records: Iterable[ClaimRecord]) -> str:
    return ", ".join(one.name for one in records)


def _said(records: tuple[ClaimRecord, ...]) -> str:
    drivers = sorted({driver.driver for one in records for driver in one.drivers})
    count = sum(len(driver.devices) for one in records for driver in one.drivers)
    return (
        f"{', '.join(drivers) or 'no driver'} prepared {count} device{'s' if count != 1 else ''} of {_names(records)}"
    )


def _facts(records: Iterable[ClaimRecord]) -> dict[str, object]:
    devices = [
        f"{driver.driver}/{device.pool}/{device.device}"
        for one in records
        for driver in one.drivers
        for device in driver.devices
    ]
    return {"claims": [one.name for one in records], "devices": devices}

"""Keeps reservations: warns and ends pods in the way, gives back unused windows, as `plan.reservation.keep` says.

One key stands for all of them: whatever changes, the windows that are open or near are looked at together. What is
remembered beside objects (who was warned) is lost with the process; then owners are warned once more, and have as long
again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.model.container.step import TraceStep
from fairlead.plan.reservation import calendar, keep
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.reservation.keep import Running
from fairlead.plan.schedule.reservation import reservations
from fairlead.settings import ReserveSettings
from fairlead.store import retry, tracerecorder
from fairlead.store.port import Store
from fairlead.store.subresource import Placement
from fairlead.wire.fairlead.reservation import Reservation, ReservationStatus
from fairlead.wire.kubernetes import core, meta, quantity

_KEY: Final = "reservations"
_AHEAD_S: Final = 86400.0
"""How far ahead windows are read: further than any warning."""
_KEPT: Final = 8
"""Windows that a status remembers."""
_LAYER: Final = "scheduler"


class ReservationKeeper:
    """A controller."""

    name = "reservation"

    def __init__(
        self,
        store: Store,
        placement: Placement,
        settings: ReserveSettings,
        *,
        resource: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the store, what ends pods, and whose devices are reserved. Args: clock: gives Unix seconds."""
        self._store, self._placement, self._resource, self._clock = store, placement, resource, clock
        self._rules = keep.Rules(
            is_ended=settings.overrun == "stop", warn_s=settings.warn_min * 60, no_show_s=settings.no_show_min * 60
        )
        self._warned: dict[str, float] = {}
        """By uid of a pod: when its owner was warned."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow reservations, and the pods that are in their way."""
        return tuple(Watch(kind=kind, keys=_all) for kind in (Reservation, core.Pod, core.Node, core.Namespace))

    async def reconcile(self, _key: str) -> float | None:
        """Do what is to be done now; returns when to look again."""
        items = (await self._store.list(Reservation)).items
        if not items:
            self._warned.clear()
            return None
        now = self._clock()
        spaces = {one.metadata.name for one in (await self._store.list(core.Namespace)).items}
        for item in items:
            if item.metadata.namespace not in spaces or calendar.is_over(item, now - _AHEAD_S):
                await self._remove(item)  # its owner is gone, or it has been shown for a day more
        windows = calendar.all_windows(items, now, now + _AHEAD_S + self._rules.warn_s)
        pods = {pod.metadata.uid: pod for pod in (await self._store.list(core.Pod)).items}
        nodes = (await self._store.list(core.Node)).items
        capacity = sum(int(quantity.parse_quantity(one.status.allocatable.get(self._resource, "0"))) for one in nodes)
        used = {(_name(one), at) for one in items for at in _times(one.status.used, windows)}
        found = keep.plan(
            windows,
            [one for pod in pods.values() if (one := self._running(pod, now)) is not None],
            capacity=capacity,
            now=now,
            rules=self._rules,
            used=used,
            warned=self._warned,
        )
        self._warned = {uid: at for uid, at in self._warned.items() if uid in pods}
        for notice in found.warn:
            await self._warn(pods[notice.uid], notice, now)
        for notice in found.end:
            await self._end(pods[notice.uid], notice)
        for item in items:
            await self._note(item, found, now)
        return keep.POLL_S if found.wake_s is None else found.wake_s

    def _running(self, pod: core.Pod, now: float) -> Running | None:
        gpus = reservations.gpus_of(pod, self._resource)
        if not gpus or pod.status.phase in core.ENDED_PHASES:
            return None
        return Running(
            holder=reservations.holder(pod, gpus, now),
            started=meta.timestamp(pod.status.start_time or None) or 0.0,
            has_node=bool(pod.spec.node_name),
            is_ending=pod.metadata.deletion_timestamp is not None or pod.status.stop_request is not None,
        )

    async def _warn(self, pod: core.Pod, notice: keep.Notice, now: float) -> None:
        self._warned[pod.metadata.uid] = now
        words = keep.words(notice, is_ended=self._rules.is_ended)
        await self._say(pod, "ReservationAhead", words, now, is_warning=True)

    async def _end(self, pod: core.Pod, notice: keep.Notice) -> None:
        """End a pod that is in the way; one that is gone meanwhile is left alone. Raises: Unavailable."""
        be = "GPU is" if notice.others == 1 else "GPUs are"
        why = f"{notice.others} {be} reserved for others, and it held some of them"
        try:
            await self._placement.evict(pod, grace_s=None, why=why, reason="Reserved")
        except (errors.Conflict, errors.NotFound, errors.Denied, errors.Invalid) as error:
            telemetry.log.warning("pod not ended", pod=pod.metadata.name, reason=error.reason, error=error.message)
            return
        telemetry.log.info("pod ended for a reservation", pod=pod.metadata.name, reason="Reserved")
        await self._say(pod, "Reserved", why, self._clock(), is_warning=True)

    async def _remove(self, item: Reservation) -> None:
        about = item.metadata
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._store.delete(Reservation, about.name, about.namespace, uid=about.uid)

    async def _note(self, item: Reservation, found: keep.Plan, now: float) -> None:
        """Write which of a reservation's windows are used, and which were given back."""
        key = _name(item)
        used = [one for one in found.used if one.key == key]
        released = [one for one in found.release if one.key == key]
        if not used and not released:
            return

        def noted(fresh: Reservation) -> Reservation | None:
            if fresh.metadata.uid != item.metadata.uid:
                return None
            status = ReservationStatus(
                used=_added(fresh.status.used, used), released=_added(fresh.status.released, released)
            )
            return None if status == fresh.status else msgspec.structs.replace(fresh, status=status)

        with contextlib.suppress(errors.NotFound):
            await retry.change_status(self._store, Reservation, key[1], noted, namespace=key[0])
        for one in released:
            minutes = self._rules.no_show_s / 60
            words = f"{one.gpus} GPUs are given back: nobody used them for {minutes:g} minutes (reserve.no_show_min)"
            await self._say(item, "ReservationReleased", words, now, is_warning=True)

    async def _say(self, item: meta.Object, reason: str, words: str, now: float, *, is_warning: bool) -> None:
        step = TraceStep(layer=_LAYER, reason=reason, message=words, at=now, is_warning=is_warning)
        await tracerecorder.record(self._store, tracerecorder.reference(item), step)


def _name(item: Reservation) -> tuple[str, str]:
    return item.metadata.namespace, item.metadata.name


def _all(_change: object) -> Iterable[str]:
    return (_KEY,)


def _times(texts: Iterable[str], windows: Iterable[Window]) -> Iterable[float]:
    """Return the begins of windows that a status names."""
    named = frozenset(texts)
    return (one.start for one in windows if calendar.start_text(one.start) in named)


def _added(texts: tuple[str, ...], windows: Iterable[Window]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*texts, *(calendar.start_text(one.start) for one in windows))))[-_KEPT:]

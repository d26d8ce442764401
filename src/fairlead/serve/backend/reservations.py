"""Keeps reservations on one machine: judged one after another, so that two never get the same GPUs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.plan.reservation import calendar, rule
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.schedule.reservation import reservations
from fairlead.serve.backend import port
from fairlead.serve.backend.place import Place
from fairlead.serve.backend.tenancy import namespaces
from fairlead.settings import ReserveSettings
from fairlead.store.port import Selector, Store
from fairlead.wire.fairlead.reservation import Reservation
from fairlead.wire.kubernetes import core, meta, names, quantity

_MOST_NAME: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReservations:
    """A `port.Reservations` of one machine."""

    store: Store
    settings: ReserveSettings
    resource: str
    zone: str
    """Of reservations that name none."""
    clock: Callable[[], float] = time.time
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def find(self, name: str, namespace: str) -> Reservation:
        """See `port.Reservations.find`."""
        try:
            return await self.store.get(Reservation, name, namespace)
        except errors.NotFound as error:
            message = f'there is no reservation "{name}"'
            hint = "`fairlead reserve list` shows yours"
            raise errors.NotFound(message, reason="ReservationNotFound", hint=hint) from error

    async def list_all(self, namespace: str | None) -> port.ReservationListing:
        """See `port.Reservations.list_all`."""
        items = (await self.store.list(Reservation)).items
        mine = tuple(one for one in items if namespace in {None, one.metadata.namespace})
        others = tuple(one for one in items if namespace not in {None, one.metadata.namespace})
        return port.ReservationListing(items=mine, others=self._ahead(others), capacity=await self._capacity())

    def _ahead(self, items: tuple[Reservation, ...]) -> tuple[Window, ...]:
        now = self.clock()
        return calendar.all_windows(items, now, now + calendar.MOST_DAYS * 86400)

    async def create(self, asked: Reservation, place: Place, *, sees: Callable[[str], bool]) -> Reservation:
        """See `port.Reservations.create`."""
        if not names.is_dns_label(asked.metadata.name):
            shown = errors.readable(asked.metadata.name[:_MOST_NAME])
            message = f'name: "{shown}": {names.DNS_RULE}'
            raise errors.Invalid(message, reason="NameInvalid", hint="for example --name night")
        spec = rule.bounded(asked.spec, self.settings, self.clock(), is_tenant=place.is_tenants)
        about = meta.ObjectMeta(name=asked.metadata.name, namespace=place.namespace)
        item = Reservation(metadata=about, spec=spec)
        async with self._one:
            await self._check(item, place, sees)
            await namespaces.ensure(self.store, place.namespace, labels=place.labels)
            try:
                return await self.store.create(item)
            except errors.Conflict as error:
                message = f'reservation "{item.metadata.name}" is there already'
                hint = "delete it first, or give this one another --name"
                raise errors.Conflict(message, reason=error.reason, hint=hint) from error

    async def _check(self, item: Reservation, place: Place, sees: Callable[[str], bool]) -> None:
        """Refuse what cannot be kept or is not allowed. Raises: as `rule.check`."""
        if place.most_devices and item.spec.gpus > place.most_devices:
            message = f"{item.spec.gpus} GPUs are asked for, and one user may have {place.most_devices}"
            raise errors.Denied(message, reason="QuotaExceeded", hint="reserve fewer (setting api.user_gpus)")
        await self._check_quota(item)
        now = self.clock()
        ground = rule.Ground(
            capacity=await self._capacity(),
            others=(await self.store.list(Reservation)).items,
            holders=reservations.holders((await self.store.list(core.Pod)).items, self.resource, now),
            now=now,
        )
        try:
            await asyncio.to_thread(rule.check, item, ground, self.settings, is_tenant=place.is_tenants)
        except errors.Insufficient as error:
            raise rule.with_whom(error, sees) from None

    async def _check_quota(self, item: Reservation) -> None:
        """Refuse more GPUs than the namespace's quotas let its containers have. Raises: Denied."""
        where = Selector(namespace=item.metadata.namespace)
        for one in (await self.store.list(core.ResourceQuota, where)).items:
            for key in (f"requests.{self.resource}", self.resource):
                hard = one.spec.hard.get(key)
                if hard is not None and item.spec.gpus > quantity.parse_quantity(hard):
                    message = f'{item.spec.gpus} GPUs are asked for, and quota "{one.metadata.name}" allows {hard}'
                    raise errors.Denied(message, reason="QuotaExceeded", hint="reserve fewer, or have it raised")

    async def _capacity(self) -> int:
        """Return how many GPUs there are, sick ones too: they may be well by then."""
        found = (await self.store.list(core.Node)).items
        return sum(int(quantity.parse_quantity(one.status.capacity.get(self.resource, "0"))) for one in found)

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Reservations.remove`."""
        await self.find(name, namespace)
        await self.store.delete(Reservation, name, namespace)

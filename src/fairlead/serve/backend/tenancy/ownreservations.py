"""Narrows reservations to a caller's own: of the others' it is known that GPUs are taken, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.plan.reservation import calendar
from fairlead.serve.backend import port
from fairlead.serve.backend.place import Part, Place
from fairlead.wire.fairlead.reservation import Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReservations:
    """A `port.Reservations` within one user's namespace, or those of an account's tenancies."""

    whole: port.Reservations
    user: Part

    @property
    def zone(self) -> str:
        """See `port.Reservations.zone`."""
        return self.whole.zone

    async def find(self, name: str, namespace: str) -> Reservation:
        """See `port.Reservations.find`."""
        return await self.whole.find(name, self.user.place(namespace))

    async def list_all(self, namespace: str | None) -> port.ReservationListing:
        """See `port.Reservations.list_all`; of the others' is known that GPUs are taken, and when."""
        wanted = None if namespace is None else self.user.place(namespace)
        found = await self.whole.list_all(None)
        mine = tuple(
            one
            for one in found.items
            if self.user.sees(one.metadata.namespace) and wanted in {None, one.metadata.namespace}
        )
        keys = {(one.metadata.namespace, one.metadata.name) for one in mine}
        now = time.time()
        every = calendar.all_windows(found.items, now, now + calendar.MOST_DAYS * 86400)
        others = tuple(one for one in every if one.key not in keys)
        return port.ReservationListing(items=mine, others=others, capacity=found.capacity)

    async def create(self, asked: Reservation, place: Place, *, sees: Callable[[str], bool]) -> Reservation:  # noqa: ARG002
        """See `port.Reservations.create`."""
        return await self.whole.create(asked, place, sees=self.user.sees)

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Reservations.remove`."""
        await self.whole.remove(name, self.user.place(namespace))

"""Composes reservations of one machine: the scheduler's constraint, their controller, the API's capability."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Final

from fairlead import errors, settings, telemetry
from fairlead.control.reservation import reservation
from fairlead.plan.reservation import when
from fairlead.plan.schedule import constraints
from fairlead.plan.schedule.reservation.reservations import Terms
from fairlead.serve.backend.reservations import LocalReservations
from fairlead.store.port import Store
from fairlead.store.subresource import Placement

_LOCALTIME: Final = Path("/etc/localtime")
_ZONES: Final = "/zoneinfo/"


def constraint(config: settings.Settings) -> constraints.Make:
    """Return what makes the scheduler's constraint."""
    given = config.reserve
    is_ended = given.overrun == "stop"
    open_ended_s = given.open_ended_h * 3600 if is_ended and given.open_ended_h else math.inf
    terms = Terms(resource=config.node.resource, open_ended_s=open_ended_s, is_ended=is_ended)
    return constraints.reservations(terms, time.time)


def keeper(config: settings.Settings, store: Store, placement: Placement) -> reservation.ReservationKeeper:
    """Return the controller."""
    return reservation.ReservationKeeper(store, placement, config.reserve, resource=config.node.resource)


def capability(config: settings.Settings, store: Store) -> LocalReservations:
    """Return what the API makes reservations by. Raises: Invalid (`ZoneUnknown`): of reserve.zone."""
    if config.reserve.zone:
        when.zone(config.reserve.zone)
    return LocalReservations(
        store=store,
        settings=config.reserve,
        resource=config.node.resource,
        zone=config.reserve.zone or machine_zone(),
    )


def machine_zone(localtime: Path = _LOCALTIME) -> str:
    """Return the time zone of this machine by its name; UTC where its file names none that is known."""
    try:
        name = os.path.realpath(localtime).rpartition(_ZONES)[2]
        return when.zone(name.removeprefix("posix/")).key
    except errors.Invalid:
        telemetry.log.info("time zone not known, reservations are in UTC", reason="ZoneUnknown")
        return "UTC"

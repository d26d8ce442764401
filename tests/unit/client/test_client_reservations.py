"""Reservations from Python: made by words or by a moment, listed, given back."""

from __future__ import annotations

import datetime as dt

import pytest

from fairlead import AsyncClient, Client, errors
from tests.unit.cli.liveservice import Service


def test_gpus_are_reserved_listed_and_given_back(client: Client) -> None:
    made = client.reserve(2, "tomorrow 9:00", dt.timedelta(hours=3), name="night", repeat="weekdays", zone="UTC")
    assert (made.gpus, made.duration_seconds, made.first[11:]) == (2, 10800, "09:00")
    assert [one.name for one in client.reservations()] == ["night"]
    client.delete_reservation("night")
    assert list(client.reservations()) == []
    with pytest.raises(errors.NotFound):
        client.delete_reservation("night")


def test_a_moment_is_its_own_whatever_the_zone(client: Client) -> None:
    moment = dt.datetime.now(dt.UTC).replace(microsecond=0, second=0) + dt.timedelta(days=2)
    made = client.reserve(1, moment, 3600, zone="America/New_York")
    assert dt.datetime.fromisoformat(made.start) == moment


async def test_the_asynchronous_client_has_them_too(service: Service) -> None:
    async with AsyncClient(service.env["FAIRLEAD_URL"]) as client:
        made = await client.reserve(1, "tomorrow 9:00", 60)
        assert [one.name for one in await client.reservations()] == [made.name]

"""Budgets by the API: who sets them, what is told, refused and stopped, with the clock in hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.metering import price
from fairlead.serve.admission import budget
from fairlead.serve.metering.budgetkeeper import Keeper
from fairlead.serve.metering.leases import StoreMetering
from fairlead.serve.v1.budgets import routes
from tests.unit.plan.metering.leases import keep, lease
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.world import World

_NOW = dt.datetime.now(dt.UTC)
MONTH = _NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


class Clock:
    """Time that a test sets; it stands in the present month, as the API's own does."""

    def __init__(self) -> None:
        self.now = MONTH + 1

    def __call__(self) -> float:
        return self.now


class Held:
    """A tenancy that holds a GPU of 3.60 an hour from the beginning of the month on."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.clock = lab, Clock()
        self.stopped: list[tuple[str, str]] = []
        pricing = price.read("*=3.6", "EUR")
        metering = StoreMetering(store=lab.world.store, pricing=pricing, clock=self.clock)
        lab.services = replace(lab.services, backend=replace(lab.services.backend, metering=metering))
        lab.app = lab.guarded(lab.policy)
        self.keeper = Keeper(
            budgets=lab.accounts.budgets, metering=metering, store=lab.world.store, stop=self.stop, now=self.clock
        )

    async def stop(self, name: str, namespace: str) -> None:
        self.stopped.append((name, namespace))
        await self.lab.world.backend.lifecycle.stop(name, namespace, grace_s=0)

    async def look(self, seconds: float) -> None:
        """Look when so much of the month is over: each costs a tenth of a cent."""
        self.clock.now = MONTH + seconds
        await self.keeper.look()

    async def events(self) -> list[str]:
        (hook,) = (await self.lab.ask("root", "GET", "/v1/webhooks")).json()["items"]
        found = (await self.lab.ask("root", "GET", f"/v1/webhooks/{hook['id']}")).json()["deliveries"]
        return [one["type"] for one in found]


@pytest.fixture
async def held(world: World, tmp_path: Path) -> AsyncIterator[Held]:
    async with opened(world, tmp_path) as lab:
        made = Held(lab)
        await keep(world.store, lease("a", MONTH, None, of=(lab.namespaces["red"],)))
        hook = {"url": "https://hooks.example/x", "tenancy": "red", "events": ["budget.*"]}
        assert (await lab.ask("owner", "POST", "/v1/webhooks", json=hook)).status_code == 201
        yield made


async def _set(lab: Lab, who: str = "root", **body: Any) -> Any:
    return await lab.ask(who, "PUT", "/v1/tenancies/red/budget", json={"amount": "1", **body})


async def test_administrators_set_budgets_and_members_see_their_own(held: Held) -> None:
    lab = held.lab
    assert (await _set(lab, "owner")).status_code == 403
    assert (await _set(lab)).json()["state"] == "within"
    for who, status, seen in (("viewer", 200, 1), ("stranger", 404, 0), ("root", 200, 1)):
        assert (await lab.ask(who, "GET", "/v1/tenancies/red/budget")).status_code == status, who
        assert len((await lab.ask(who, "GET", "/v1/budgets")).json()["items"]) == seen, who
    for body in ({"amount": "0"}, {"amount": "x"}, {"action": "burn"}, {"notify_percent": [0]}):
        refused = await _set(lab, **body)
        assert (refused.status_code, refused.json()["reason"]) == (422, "BudgetInvalid"), body
    assert (await lab.ask("root", "DELETE", "/v1/tenancies/red/budget")).status_code == 204
    assert (await lab.ask("root", "GET", "/v1/tenancies/red/budget")).json()["reason"] == "BudgetUnknown"


async def test_percentages_are_told_once_and_what_is_used_up_is_refused(held: Held) -> None:
    lab = held.lab
    await _set(lab, action="refuse")
    await held.look(499)
    assert await held.events() == []
    await held.look(810)
    await held.look(811)
    shown = (await lab.ask("viewer", "GET", "/v1/tenancies/red/budget")).json()
    assert (shown["spent"], shown["percent"], shown["currency"]) == ("0.811000", 81.1, "EUR")
    assert await held.events() == ["budget.threshold"]
    assert (await lab.run("developer", "one", tenancy="red")).status_code == 201
    await held.look(1000)
    refused = await lab.run("developer", "two", tenancy="red")
    assert (refused.status_code, refused.json()["reason"]) == (403, "BudgetExceeded")
    assert "1.000000 of its budget of 1 EUR" in refused.json()["detail"]
    again = await lab.ask("developer", "POST", "/v1/containers/one:restart")
    assert again.json()["reason"] == "BudgetExceeded"
    by_root = await lab.run("root", "three", tenancy="red")
    assert by_root.json()["reason"] == "BudgetExceeded"
    assert (await lab.run("stranger", "two", tenancy="blue")).status_code == 201
    await _set(lab, amount="2", action="refuse")
    assert (await lab.run("developer", "two", tenancy="red")).status_code == 201
    assert await held.events() == ["budget.threshold"] * 2


async def test_what_holds_gpus_is_stopped_after_the_grace_and_nothing_else(held: Held) -> None:
    lab = held.lab
    sleeping = {"command": ["sleep"], "args": ["60"], "tenancy": "red"}
    await lab.run("developer", "train", gpus=1, **sleeping)
    await lab.run("developer", "editor", **sleeping)
    await _set(lab, action="stop", grace_s=100)
    await held.look(1000)
    assert held.stopped == []
    await held.look(1099)
    assert held.stopped == []
    await held.look(1100)
    assert held.stopped == [("train", lab.namespaces["red"])]
    ended = await lab.ask("developer", "GET", "/v1/containers/train/wait?timeout=20")
    assert ended.json()["state"] == "stopped"
    await held.look(1200)
    assert len(held.stopped) == 1
    assert sorted(await held.events()) == ["budget.stopping", "budget.threshold"]


async def test_without_accounts_nothing_is_limited(world: World) -> None:
    await budget.check(world.services.admission, "default")
    assert isinstance(world.services.accounts, object)
    with pytest.raises(errors.Unavailable):
        routes._kept(world.services)

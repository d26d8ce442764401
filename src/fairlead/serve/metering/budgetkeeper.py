"""Looks at budgets once a minute: adds up what was held, tells webhooks, and stops what holds GPUs beyond the grace.

Only possessions that are written down count, as in `usage`; GPUs without a price cost nothing. Refusing new containers
is left to the routes that make them, which read what the last look wrote.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.metering import budget, price
from fairlead.plan.metering.usage import MICROS
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline
from fairlead.serve.metering.budgets import Budget, BudgetNotice, Budgets
from fairlead.serve.metering.port import Metering
from fairlead.store.port import Selector, Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core

LOOK_S: Final = 60.0
THRESHOLD, STOPPING = ("budget.threshold", "budget.stopping")
"""Kinds of events."""
Stop = Callable[[str, str], Awaitable[object]]
"""Stops a container by name and namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Carries out what budgets ask for."""

    budgets: Budgets
    metering: Metering
    store: Store
    stop: Stop
    now: Callable[[], float] = time.time

    async def run(self) -> None:
        """Look until cancelled; a look that fails is logged, and the next one made."""
        while True:
            try:
                await self.look()
            except errors.FairleadError as error:
                telemetry.log.error("budgets not looked at", reason=error.reason, error=errors.sentence(error))
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at every budget once."""
        every = await self.budgets.list(None)
        if not every:
            return
        now = self.now()
        namespaces = {one.metadata.uid: baseline.namespace_name(one) for one in (await self.store.list(Tenancy)).items}
        spent = await self._spent(now)
        for one in every:
            if (namespace := namespaces.get(one.uid)) is not None:
                await self._settle(one, namespace, spent.get(namespace, Decimal(0)), now)

    async def _spent(self, now: float) -> Mapping[str, Decimal]:
        """Return what each namespace has spent in this month."""
        begin, end = round(budget.begin(now) * MICROS), round(now * MICROS)
        try:
            found = await self.metering.measure(begin=begin, end=end)
        except errors.NotFound:
            return {}

        def added() -> Mapping[str, Decimal]:
            sums: dict[str, Decimal] = {}
            for one in found.charges:
                if (rate := self.metering.pricing.find(one.model)) is not None:
                    cost = price.cost(rate.hourly, one.amount)
                    sums[one.namespace] = sums.get(one.namespace, Decimal(0)) + cost
            return sums

        return await asyncio.to_thread(added)

    async def _settle(self, one: Budget, namespace: str, spent: Decimal, now: float) -> None:
        found = budget.decide(one.limit, one.standing, spent, now=now)
        currency = self.metering.pricing.currency
        holders = await self._holders(namespace) if found.stops else ()
        notice = BudgetNotice(type=THRESHOLD, percent=found.tells, currency=currency) if found.tells else None
        if holders:
            notice = BudgetNotice(type=STOPPING, percent=budget.WHOLE, currency=currency)
        await self.budgets.note(one, found.standing, notice)
        for pod in holders:
            telemetry.log.warning("container stopped", reason="BudgetExceeded", pod=pod, tenant=one.tenancy)
            try:
                await self.stop(pod, namespace)
            except errors.FairleadError as error:
                telemetry.log.error("container not stopped", reason=error.reason, error=errors.sentence(error))

    async def _holders(self, namespace: str) -> tuple[str, ...]:
        """Return the containers that ask for devices and neither ended nor are being stopped."""
        found = (await self.store.list(core.Pod, Selector(namespace=namespace))).items
        return tuple(
            one.metadata.name
            for one in found
            if podstate.asked_devices(one) and not podstate.is_final(one) and podstate.state_of(one) != "stopping"
        )

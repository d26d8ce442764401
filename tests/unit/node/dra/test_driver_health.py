"""What a kubelet hears of the devices' health: a report for each source, at once, on a change, and again in time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from fairlead.node.dra import driver
from fairlead.node.dra.driver import DeviceState
from fairlead.node.dra.preparer import ClaimRef
from fairlead.node.inventory import latest
from fairlead.plan.dra.preparation import PreparedDevice
from fairlead.wire.kubelet.drahealth import Health


class Nobody:
    """Prepares nothing."""

    async def prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, tuple[str, ...]], ...]:
        return ()

    async def unprepare(self, ref: ClaimRef) -> None:
        return None


def states(**why: str) -> driver.States:
    return {("here", name): DeviceState(why=text, source=name.split("_")[0]) for name, text in why.items()}


async def test_each_gpu_has_its_report_and_a_change_tells_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "HEALTH_S", 0.05)
    health = latest.Latest(states(a="", a_mig1="", b=""))
    reports = driver.Driver(Nobody(), health).watch()
    async with asyncio.timeout(5), contextlib.aclosing(reports):  # type: ignore[type-var]
        first = [await anext(reports), await anext(reports)]
        assert [[one.device for one in report] for report in first] == [["a", "a_mig1"], ["b"]]
        health.set(states(a="", a_mig1="it has an XID", b=""))
        (gpu, part) = await anext(reports)
        assert (gpu.health, part.health, part.message) == (Health.HEALTHY, Health.UNHEALTHY, "it has an XID")
        again = [await anext(reports), await anext(reports)]  # without a change, before a kubelet forgets
        assert [[one.device for one in report] for report in again] == [["a", "a_mig1"], ["b"]]

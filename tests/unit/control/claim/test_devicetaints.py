"""Pods leave devices with a NoExecute taint when they do not tolerate it any more; a rule without effect only tells."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

from fairlead.control.claim.devicetaint import REASON
from fairlead.wire.kubernetes import core
from tests.unit.control.claim.taintplane import MachinePlane, naming, wait_for
from tests.unit.control.scheduler.claimplane import DRIVER, devices


async def _bound(plane: MachinePlane, **exactly: Any) -> None:
    await plane.add_class()
    await plane.add_machine("a", 4)
    await plane.add_claim("mine", 1, **exactly)
    await plane.add_user("p", naming("mine"))
    await plane.until_bound(["p"])


async def _stop(plane: MachinePlane) -> core.StopRequest | None:
    return (await plane.store.get(core.Pod, "p", "default")).status.stop_request


async def test_a_pod_is_ended_whose_device_a_rule_taints() -> None:
    plane = MachinePlane()
    async with plane.controlled():
        await _bound(plane)
        await plane.add_rule("sick", "NoExecute", device="gpu-0")
        stop = await wait_for(lambda: _stop(plane))
        assert stop.reason == REASON
        assert "DeviceTaintRule sick" in stop.message
        await wait_for(lambda: _has_said(plane, "Completed"))


async def _has_said(plane: MachinePlane, reason: str, name: str = "sick") -> bool:
    return (await plane.rule_words(name))[0] == reason


async def test_a_rule_without_effect_says_what_it_would_do() -> None:
    plane = MachinePlane()
    async with plane.controlled():
        await _bound(plane)
        await plane.add_rule("sick", "None")
        await wait_for(lambda: _has_said(plane, "NoEffect"))
        words = (await plane.rule_words("sick"))[1]
        assert words == (
            "4 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the "
            "effect was NoExecute."
        )
        assert await _stop(plane) is None


async def test_a_taint_that_keeps_new_claims_away_ends_nothing() -> None:
    plane = MachinePlane()
    async with plane.controlled():
        await _bound(plane)
        await plane.add_rule("sick", "NoSchedule")
        await wait_for(lambda: _has_said(plane, "OtherEffect"))
        assert await _stop(plane) is None


async def test_a_toleration_bears_a_taint_for_its_seconds() -> None:
    now = [dt.datetime.now(dt.UTC).timestamp()]
    plane = MachinePlane(now=lambda: now[0])
    tolerations = [{"key": "sick", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]
    async with plane.controlled():
        await _bound(plane, tolerations=tolerations)
        await plane.add_rule("sick", "NoExecute")
        await wait_for(lambda: _has_said(plane, "PodsPendingEviction"))
        assert (await plane.rule_words("sick"))[1] == "1 pod needs to be evicted in 1 namespace."
        assert await _stop(plane) is None
        now[0] += 31
        await plane.add_rule("again", "None")  # any change has the pod looked at again
        await wait_for(lambda: _stop(plane))


async def test_a_toleration_without_an_end_or_an_effect_bears_a_taint() -> None:
    plane = MachinePlane()
    async with plane.controlled():
        await _bound(plane, tolerations=[{"operator": "Exists"}])
        await plane.add_rule("sick", "NoExecute")
        await wait_for(lambda: _has_said(plane, "NotStarted"))
        assert await _stop(plane) is None


async def test_a_taint_of_the_driver_counts_and_one_of_another_device_does_not() -> None:
    plane = MachinePlane()
    async with plane.controlled():
        await _bound(plane)
        taint = {"key": "xid", "value": "79", "effect": "NoExecute"}
        body = [{**one, **({"taints": [taint]} if one["name"] == "gpu-1" else {})} for one in devices(2)]
        pool = {"name": "b", "generation": 1, "resourceSliceCount": 1}
        await plane.publish("b", body, pool=pool)
        await asyncio.sleep(0.05)
        assert await _stop(plane) is None
        await plane.publish("a2", [{**devices(1)[0], "taints": [taint]}], pool={**pool, "name": "a", "generation": 2})
        stop = await wait_for(lambda: _stop(plane))
        assert "the driver of a/gpu-0" in stop.message


async def test_a_rule_of_another_driver_and_an_empty_one_select_nothing_and_everything() -> None:
    plane = MachinePlane()
    async with plane.controlled():
        await _bound(plane)
        await plane.add_rule("sick", "None", pool="z")
        await wait_for(lambda: _has_said(plane, "NoEffect"))
        assert (await plane.rule_words("sick"))[1].startswith("0 published devices selected. 0 allocated devices")
        assert DRIVER == "gpu.example.com"

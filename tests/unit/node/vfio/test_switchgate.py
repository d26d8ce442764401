"""What gives NVSwitches away: it waits for the store's word of the pod, and lets all else through to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fairlead import errors
from fairlead.model.device import Device
from fairlead.node.vfio import switchgate
from fairlead.plan.vfio import switchoffer
from fairlead.wire.kubernetes import core
from tests.unit.plan.vfio.test_switchoffer import BOARD, pod

(OFFERED,) = switchoffer.plan_resource(BOARD, with_iommufd=False)


class Ledger:
    def __init__(self) -> None:
        self.held: list[str] = []

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        self.held.append(f"{resource} {len(devices)}")


async def test_a_pod_that_the_store_tells_of_a_moment_later_is_waited_for() -> None:
    ledger, pods = Ledger(), list[core.Pod]()
    gate = switchgate.SwitchGate(ledger, "fabric", whole=lambda: 4, pods=lambda: tuple(pods))
    asyncio.get_running_loop().call_later(0.1, lambda: pods.append(pod("fabric", "vm")))
    await gate.hold(switchoffer.RESOURCE, OFFERED.devices)
    await gate.hold("nvidia.com/h100-x1", OFFERED.devices[:1])
    assert ledger.held == ["nvidia.com/h100-x1 1"]


async def test_while_a_foreign_pod_asks_or_none_is_known_nothing_is_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switchgate, "NEWS_S", 0.1)
    pods = list[core.Pod]()
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=lambda: tuple(pods))
    with pytest.raises(errors.Unavailable, match="no pod of the namespace fabric"):
        await gate.hold(switchoffer.RESOURCE, OFFERED.devices)
    pods.append(pod("t-evil", "x"))
    with pytest.raises(errors.Denied, match="t-evil/x"):
        await gate.hold(switchoffer.RESOURCE, OFFERED.devices)
    with pytest.raises(errors.RequestError, match="2 of 4"):
        await gate.hold(switchoffer.RESOURCE, OFFERED.devices[:2])


async def test_a_foreign_pod_that_has_ended_a_moment_ago_is_waited_for() -> None:
    pods = [pod("t-evil", "x"), pod("fabric", "vm")]
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=lambda: tuple(pods))
    asyncio.get_running_loop().call_later(0.1, lambda: pods.pop(0))
    await gate.hold(switchoffer.RESOURCE, OFFERED.devices)


async def test_without_an_api_server_the_number_alone_is_checked() -> None:
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=lambda: None)
    await gate.hold(switchoffer.RESOURCE, OFFERED.devices)
    await gate.hold("nvidia.com/gpu", [])
    with pytest.raises(errors.RequestError):
        await gate.hold(switchoffer.RESOURCE, OFFERED.devices[:3])

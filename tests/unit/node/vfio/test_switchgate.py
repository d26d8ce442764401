"""What gives NVSwitches away: it waits for the store's word of the pod, and lets all else through to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
import structlog.testing

from fairlead import errors
from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.node.inventory import pods
from fairlead.node.vfio import switchgate
from fairlead.plan.vfio import switchoffer
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core
from tests.unit.plan.vfio.test_switchoffer import BOARD, pod

(OFFERED,) = switchoffer.plan_resource(BOARD, with_iommufd=False)


class Ledger:
    def __init__(self) -> None:
        self.held: list[str] = []

    async def hold(self, resource: str, devices: Sequence[Device]) -> None:
        self.held.append(f"{resource} {len(devices)}")


def answering(pods: list[core.Pod] | None) -> switchgate.AskPods:
    async def ask() -> tuple[core.Pod, ...] | None:
        return None if pods is None else tuple(pods)

    return ask


async def test_a_pod_that_the_store_tells_of_a_moment_later_is_waited_for() -> None:
    ledger, known = Ledger(), list[core.Pod]()
    gate = switchgate.SwitchGate(ledger, "fabric", whole=lambda: 4, pods=answering(known))
    asyncio.get_running_loop().call_later(0.1, lambda: known.append(pod("fabric", "vm")))
    await gate.hold(cdikind.SWITCHES, OFFERED.devices)
    await gate.hold("nvidia.com/h100-x1", OFFERED.devices[:1])
    assert ledger.held == ["nvidia.com/h100-x1 1"]


async def test_while_a_foreign_pod_asks_or_none_is_known_nothing_is_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switchgate, "NEWS_S", 0.1)
    known = list[core.Pod]()
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=answering(known))
    with pytest.raises(errors.Unavailable, match="no pod of the namespace fabric"):
        await gate.hold(cdikind.SWITCHES, OFFERED.devices)
    known.append(pod("t-evil", "x"))
    with pytest.raises(errors.Denied, match="t-evil/x"):
        await gate.hold(cdikind.SWITCHES, OFFERED.devices)
    with pytest.raises(errors.RequestError, match="2 of 4"):
        await gate.hold(cdikind.SWITCHES, OFFERED.devices[:2])


async def test_a_foreign_pod_that_has_ended_a_moment_ago_is_waited_for() -> None:
    known = [pod("t-evil", "x"), pod("fabric", "vm")]
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=answering(known))
    asyncio.get_running_loop().call_later(0.1, lambda: known.pop(0))
    await gate.hold(cdikind.SWITCHES, OFFERED.devices)


async def test_without_an_api_server_the_number_alone_is_checked() -> None:
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=answering(None))
    await gate.hold(cdikind.SWITCHES, OFFERED.devices)
    await gate.hold("nvidia.com/gpu", [])
    with pytest.raises(errors.RequestError):
        await gate.hold(cdikind.SWITCHES, OFFERED.devices[:3])


async def test_while_the_api_server_does_not_say_which_pods_ask_nobody_gets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away() -> tuple[core.Pod, ...]:
        raise errors.Unavailable("connection refused", reason="StoreUnavailable")

    async def hanging() -> tuple[core.Pod, ...]:
        await asyncio.sleep(60)
        return ()

    monkeypatch.setattr(switchgate, "ASKED_S", 0.05)
    for ask, why in ((away, "connection refused"), (hanging, "within 0.05 s")):
        gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=ask)
        with pytest.raises(errors.Unavailable, match=why) as caught:
            await gate.hold(cdikind.SWITCHES, OFFERED.devices)
        assert caught.value.reason == switchgate.UNKNOWN


async def test_a_pod_that_runs_with_them_vouches_for_none_that_the_agent_has_not_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent's own copy of the pods is late: it has the Service VM's, which runs, and not the thief's."""
    monkeypatch.setattr(switchgate, "NEWS_S", 0.1)
    store = MemoryStore()
    running = pods.Pods("node-1", store)
    await store.create(bound(pod("fabric", "vm", phase="Running")))
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(running.run())
        await running.listed.wait()
        following.cancel()
    await store.create(bound(pod("t-evil", "thief")))
    await store.create(pod("t-evil", "elsewhere"))
    assert [one.metadata.name for one in running.all()] == ["vm"]
    gate = switchgate.SwitchGate(None, "fabric", whole=lambda: 4, pods=running.ask)
    with pytest.raises(errors.Denied, match=r"t-evil/thief asks for some"):
        await gate.hold(cdikind.SWITCHES, OFFERED.devices)
    await store.delete(core.Pod, "thief", "t-evil", grace_s=0)
    await gate.hold(cdikind.SWITCHES, OFFERED.devices)


def bound(one: core.Pod) -> core.Pod:
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, node_name="node-1"))


async def test_of_two_pods_of_the_namespace_the_log_names_both() -> None:
    gate = switchgate.SwitchGate(
        None, "fabric", whole=lambda: 4, pods=answering([pod("fabric", "vm", phase="Running"), pod("fabric", "new")])
    )
    with structlog.testing.capture_logs() as said:
        await gate.hold(cdikind.SWITCHES, OFFERED.devices)
    assert "fabric/vm, fabric/new" in said[0]["error"]

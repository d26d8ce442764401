"""A call of the driver is answered before a kubelet gives up, whatever hangs, and what was begun is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.node.dra import driver, hardware
from fairlead.node.inventory import latest
from fairlead.plan.lease.row import State
from fairlead.wire.kubelet import draplugin
from tests.unit.node.dra.claimnode import ClaimNode, claim, result


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClaimNode]:
    try:
        found = ClaimNode(tmp_path)
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))
    try:
        async with found.running():
            yield found
    finally:
        await found.close()


def test_the_driver_is_done_before_a_kubelet_gives_up() -> None:
    assert driver.CALL_S < 45


async def test_hardware_that_hangs_is_given_up_and_holds_no_claim_beside_it(
    node: ClaimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hardware.Hardware.make

    async def hang(self: hardware.Hardware, wanted: Any, *more: Any) -> Any:
        if wanted.name == "stuck":
            await asyncio.Event().wait()
        return await whole(self, wanted, *more)

    monkeypatch.setattr(hardware.Hardware, "make", hang)
    monkeypatch.setattr(driver, "CALL_S", 1.0)
    served = driver.Driver(node.preparer, latest.Latest({}))
    named = [
        draplugin.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
        for ref in (node.store.write(claim("stuck", result("gpu-0"))), node.store.write(claim("well", result("gpu-1"))))
    ]
    answers = await served.prepare(tuple(named))
    assert "was not prepared within 1 s; the kubelet tries again" in answers[named[0].uid].error
    assert [one.device for one in answers[named[1].uid].devices] == ["gpu-1"]
    assert node.journal.uids() == {named[1].uid}
    async with asyncio.timeout(20):
        while node.row(0).state is not State.FREE:
            node.gate.poke()
            await asyncio.sleep(0.01)
    (step, reason) = next(
        (told.step.value, told.reason) for name, told in reversed(node.told) if name == "stuck" and told is not None
    )
    assert (step, reason) == ("GPUsHeld", "Interrupted")
    monkeypatch.setattr(hardware.Hardware, "make", whole)
    assert not (await served.prepare((named[0],)))[named[0].uid].error

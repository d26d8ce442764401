"""What is checked of a GPU between two tenants, by its newest reading."""

from __future__ import annotations

import pytest

from fairlead.model.gpu import GPU, GPUHealth
from fairlead.model.ids import GPUUUID
from fairlead.plan.lease import check
from fairlead.plan.lease.check import Verdict


def gpu(health: GPUHealth) -> GPU:
    return GPU(uuid=GPUUUID("g"), index=0, minor=0, pci_bus_id="0000:01:00.0", name="X", memory_bytes=1, health=health)


@pytest.mark.parametrize(
    ("health", "verdict", "reason"),
    [
        (GPUHealth(), Verdict.GOOD, ""),
        (GPUHealth(remap_failed=True, recovery_action=1), Verdict.FAIL, "RowRemapFailed"),
        (GPUHealth(remap_pending=True), Verdict.WAIT, "RowRemapPending"),
        (GPUHealth(recovery_action=2), Verdict.WAIT, "RecoveryRequired"),
    ],
)
def test_the_worst_check_decides(health: GPUHealth, verdict: Verdict, reason: str) -> None:
    found = check.judge(gpu(health))
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize("name", list(check.CHECKS))
def test_every_check_passes_a_gpu_that_is_well_and_says_why_where_it_does_not(name: str) -> None:
    one = check.CHECKS[name]
    assert one(gpu(GPUHealth())) == check.PASSED
    found = one(None)
    assert found.verdict is Verdict.GOOD or (found.reason and found.message)


def test_a_gpu_that_does_not_answer_is_not_verified() -> None:
    assert check.judge(None).verdict is Verdict.WAIT


@pytest.mark.parametrize(
    ("health", "verdict"),
    [
        (GPUHealth(recovery_action=1), Verdict.GOOD),
        (GPUHealth(recovery_action=4), Verdict.GOOD),
        (GPUHealth(remap_pending=True), Verdict.GOOD),
        (GPUHealth(recovery_action=2, remap_pending=True), Verdict.WAIT),
        (GPUHealth(remap_failed=True, recovery_action=1), Verdict.FAIL),
    ],
)
def test_what_a_reset_mends_is_not_waited_for_where_gpus_are_reset(health: GPUHealth, verdict: Verdict) -> None:
    assert check.judge(gpu(health), is_reset=True).verdict is verdict


@pytest.mark.parametrize(("action", "asked"), [(1, "a GPU reset"), (2, "a node reboot"), (99, "recovery")])
def test_a_person_is_told_what_the_driver_asks_for(action: int, asked: str) -> None:
    assert check.judge(gpu(GPUHealth(recovery_action=action))).message.startswith(f"the driver asks for {asked} (")

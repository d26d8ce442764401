"""A container of high priority ends one of low priority on one machine: podman stops it, and both users are told."""

from __future__ import annotations

import pytest
from home import Home

pytestmark = pytest.mark.podman

_PATIENCE_S = 90.0
"""For each step, on a machine that is busy with other tests."""
_TRAP = 'trap "echo saved; exit 0" TERM; echo ready; while :; do sleep 0.1; done'


@pytest.mark.slow
def test_a_container_of_higher_priority_takes_the_gpus_of_one_of_lower_and_both_are_told(home: Home) -> None:
    home.up(wait=False)
    home.until(home.is_answering, what="the service answers", timeout_s=_PATIENCE_S)
    home.until(lambda: home.allocatable() == 8, what="the GPUs are offered", timeout_s=_PATIENCE_S)
    home.ok("run", "-d", "--name", "low", "-g", "8", "--priority", "-5", home.image, "--", "sh", "-c", _TRAP)
    home.until_state("low", "running", timeout_s=_PATIENCE_S)
    home.until(lambda: "ready" in home.ok("logs", "low").out, what="it traps")
    held = set(home.show("low")["gpu_ids"])

    home.ok("run", "-d", "--name", "meek", "-g", "8", "--priority", "10", home.image, "--", "sleep", "1000")
    home.until_state("meek", "waiting", "pending", timeout_s=_PATIENCE_S)
    assert home.show("low")["state"] == "running", "without --preempt nobody ends for another"
    home.rm("meek")

    home.ok(
        "run", "-d", "--name", "high", "-g", "8", "--priority", "10", "--preempt", home.image, "--", "sleep", "1000"
    )
    home.until_state("low", "stopped", timeout_s=_PATIENCE_S)
    high = home.until_state("high", "running", timeout_s=_PATIENCE_S)
    assert set(high["gpu_ids"]) == held
    assert "saved" in home.ok("logs", "low").out, "it had its grace"
    names = home.podman("ps", "--format", "{{.Names}}").split()
    assert any("high" in name for name in names)
    assert not any("low" in name for name in names)

    words = "ended to make room for default/high (priority 10 before -5)"
    assert words in home.ok("explain", "low").out
    assert words in home.ok("trace", "low").out
    waited = home.ok("trace", "high").out
    assert "default/low must end" in waited
    said = home("start", "low")
    assert said.code == 0, said.err
    assert home.until_state("low", "waiting", "pending", timeout_s=_PATIENCE_S)["state"] != "running"
    assert "too few GPUs free" in home.ok("explain", "low").out
    home.rm("high")
    home.until_state("low", "running", timeout_s=_PATIENCE_S)
    assert set(home.show("low")["gpu_ids"]) == held
    home.rm("low")

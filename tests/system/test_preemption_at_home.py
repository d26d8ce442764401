"""A container of high priority ends one of low priority on one machine: podman stops it, and both users are told."""

from __future__ import annotations

import pytest
from conftest import Home

pytestmark = pytest.mark.podman

_TRAP = 'trap "echo saved; exit 0" TERM; echo ready; while :; do sleep 0.1; done'


def test_a_container_of_higher_priority_takes_the_gpus_of_one_of_lower_and_both_are_told(service: Home) -> None:
    service.start("low", "-g", "8", "--priority", "-5", command=("sh", "-c", _TRAP))
    service.until(lambda: "ready" in service.ok("logs", "low").out, what="it traps")
    held = set(service.show("low")["gpu_ids"])

    service.ok("run", "-d", "--name", "meek", "-g", "8", "--priority", "10", service.image, "--", "sleep", "1000")
    service.until_state("meek", "waiting", "pending")
    assert service.show("low")["state"] == "running", "without --preempt nobody ends for another"
    service.rm("meek")

    service.ok(
        "run", "-d", "--name", "high", "-g", "8", "--priority", "10", "--preempt", service.image, "--", "sleep", "1000"
    )
    service.until_state("low", "stopped")
    high = service.until_state("high", "running")
    assert set(high["gpu_ids"]) == held
    assert "saved" in service.ok("logs", "low").out, "it had its grace"
    names = service.podman("ps", "--format", "{{.Names}}").split()
    assert any("high" in name for name in names)
    assert not any("low" in name for name in names)

    words = "ended to make room for default/high (priority 10 before -5)"
    assert words in service.ok("explain", "low").out
    assert words in service.ok("trace", "low").out
    waited = service.ok("trace", "high").out
    assert "default/low must end" in waited
    said = service("start", "low")
    assert said.code == 0, said.err
    assert service.until_state("low", "waiting", "pending")["state"] != "running"
    assert "Insufficient nvidia.com/gpu" in service.ok("explain", "low").out
    service.rm("high")
    service.until_state("low", "running")
    assert set(service.show("low")["gpu_ids"]) == held
    service.rm("low")

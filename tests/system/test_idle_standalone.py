"""Idle GPUs of a real service: the owner is warned first, everywhere; then the container is ended, or queued again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from home import Home, machine_of_tenancies

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(400)]
_SETTINGS = {
    "FAIRLEAD_NODE_METRICS": "none",
    "FAIRLEAD_IDLE_ACTION": "stop",
    "FAIRLEAD_IDLE_AFTER_MIN": "1",
    "FAIRLEAD_IDLE_WARN_MIN": "0.25",
}


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service that ends idle containers after 75 s; none of its GPUs does anything."""
    with machine_of_tenancies(image, **_SETTINGS) as home:
        home.up()
        for index in range(8):
            home.ok("simulate", "fault", "utilization", "0", "--gpu", str(index))
        yield home


def _idle(machine: Home, name: str) -> Any:
    return machine.show(name).get("idle")


def test_idle_containers_are_warned_and_ended_and_the_others_are_not(machine: Home) -> None:
    machine.start("busy", "-g", "1")
    (gpu,) = machine.show("busy")["gpu_ids"]
    (index,) = (one["gpu"]["index"] for one in machine.ask("/v1/gpus")["gpus"] if one["gpu"]["uuid"] == gpu)
    machine.ok("simulate", "fault", "utilization", "90", "--gpu", str(index))
    machine.start("lazy", "-g", "1", "-n", "lazy")
    machine.start("both", "-g", "1", "--restart", "always")
    before = machine.show("both")["uid"]
    machine.ok("queue", "create", "again", "-n", "default", "--idle", "requeue")
    machine.until(lambda: _idle(machine, "lazy") is not None, what="the warning", timeout_s=200)
    shown = machine.ok("ps").out
    assert "idle GPUs, ends in" in next(line for line in shown.splitlines() if line.startswith("lazy")), shown
    assert "its GPUs are below 5 %" in machine.ok("explain", "lazy", "-n", "lazy").out
    assert "GPUsIdleAhead" in machine.ok("events").out
    assert _idle(machine, "busy") is None
    machine.until(
        lambda: "it goes back to the queue" in machine.ok("events", "-o", "json").out,
        what="the container goes back to the queue",
        timeout_s=120,
    )
    assert machine.until_state("both", "running", timeout_s=60)["uid"] != before
    found = machine.until_state("lazy", "stopped", timeout_s=120)
    assert found["reason"] == "GPUsIdle"
    assert machine.show("busy")["state"] == "running"
    doctor = json.loads(machine("doctor", "-o", "json").out)
    assert [one["level"] for one in doctor if one["check"] == "idle"] == ["ok"]

"""A container on a GPU that breaks is told so, on one machine as on a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]


def steps(service: Home, name: str) -> list[dict[str, Any]]:
    entries = service.ok("trace", name, "--no-output", "-o", "json").data["entries"]
    return [entry["step"] for entry in entries if entry["step"] is not None]


def reasons(service: Home, name: str) -> list[str]:
    return [step["reason"] for step in steps(service, name)]


def test_a_container_on_a_broken_gpu_is_warned_until_the_gpu_is_back(service: Home) -> None:
    service.start("works", "-g", "1")
    service.start("beside", "-g", "1")
    (held,) = service.show("works")["gpu_ids"]
    index = next(
        row["gpu"]["index"] for row in service.ok("gpus", "-o", "json").data["gpus"] if row["gpu"]["uuid"] == held
    )
    service.ok("simulate", "fault", "xid", "79", "-g", str(index))
    service.until(lambda: "GPUUnhealthy" in reasons(service, "works"), what="the container is warned")
    warning = next(step for step in steps(service, "works") if step["reason"] == "GPUUnhealthy")
    assert held in warning["message"]
    assert warning["is_warning"]
    assert service.show("works")["state"] == "running"
    service.ok("simulate", "fault", "recover", "-g", str(index))
    service.until(lambda: "GPURecovered" in reasons(service, "works"), what="the container is told")
    assert not {"GPUUnhealthy", "GPURecovered"} & set(reasons(service, "beside"))
    for name in ("works", "beside"):
        service.rm(name)

"""CDI specs of the service in other hands: harmed, they are there again; doubled, the GPUs are withdrawn and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman
SPEC = Path("/var/run/cdi/fairlead.dev-gpu.json")


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def _empty(path: Path) -> None:
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "devices": document["devices"][:1]}))


@pytest.mark.parametrize("harm", [_remove, _cut, _empty])
def test_a_container_gets_its_gpus_after_somebody_harmed_the_spec(service: Home, harm: Callable[[Path], None]) -> None:
    before = SPEC.read_bytes()
    harm(SPEC)
    service.until(lambda: SPEC.exists() and SPEC.read_bytes() == before, what="the spec is as it was")
    done = service.run("--rm", "-g", "2", "--", "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
    assert (done.code, done.out.strip()) == (0, "2"), done.err
    assert "written again" in service.log()


def test_a_vendors_spec_beside_ours_stops_no_container(service: Home) -> None:
    vendors = SPEC.with_name("nvidia.yaml")
    twin = json.loads(SPEC.read_bytes())
    vendors.write_text(json.dumps({**twin, "kind": "nvidia.com/gpu"}))
    try:
        done = service.run("--rm", "-g", "1", "--", "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
        assert (done.code, done.out.strip()) == (0, "1"), done.err
    finally:
        vendors.unlink()


def test_a_spec_that_defines_our_gpus_too_withdraws_them_until_it_goes_and_the_doctor_says_how(service: Home) -> None:
    other = SPEC.with_name("other.json")
    other.write_bytes(SPEC.read_bytes())
    try:
        service.until(lambda: service.allocatable() == 0, what="no GPU is offered")
        found = service("doctor", "-o", "json")
        failures = [item for item in found.data if item["level"] == "fail" and item["check"] == "cdi"]
        assert found.code == 1
        assert str(SPEC) in failures[0]["what"]
        assert str(other) in failures[0]["what"]
        assert f"mv {other} {other}.before" in failures[0]["fix"]
    finally:
        other.unlink()
    service.until(lambda: service.allocatable() == 8, what="every GPU is offered again")
    done = service.run("--rm", "-g", "8", "--", "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
    assert (done.code, done.out.strip()) == (0, "8"), done.err

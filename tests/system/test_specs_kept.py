"""CDI specs of the service in other hands: harmed, they are there again; doubled, the GPUs are withdrawn and said."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman
SPEC = Path("/var/run/cdi/fairlead.dev-gpu.json")


@contextlib.contextmanager
def held(service: Home, count: int) -> Iterator[bytes]:
    """Have a container hold GPUs, and give the spec that shows them: it shows what is held, and no more."""
    service.start("holder", "-g", str(count))
    try:
        yield SPEC.read_bytes()
    finally:
        service.ok("rm", "-f", "holder")


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def _empty(path: Path) -> None:
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "devices": document["devices"][:1]}))


@pytest.mark.parametrize("harm", [_remove, _cut, _empty])
def test_a_container_gets_its_gpus_after_somebody_harmed_the_spec(service: Home, harm: Callable[[Path], None]) -> None:
    with held(service, 2) as before:
        harm(SPEC)
        service.until(lambda: SPEC.exists() and SPEC.read_bytes() == before, what="the spec is as it was")
        done = service.run("--rm", "-g", "2", "--", "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
        assert (done.code, done.out.strip()) == (0, "2"), done.err
    assert "written again" in service.log()


def test_a_vendors_spec_beside_ours_stops_no_container(service: Home) -> None:
    vendors = SPEC.with_name("nvidia.yaml")
    with held(service, 8) as shown:
        twin = json.loads(shown)
    vendors.write_text(json.dumps({**twin, "kind": "nvidia.com/gpu"}))
    try:
        done = service.run("--rm", "-g", "1", "--", "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
        assert (done.code, done.out.strip()) == (0, "1"), done.err
    finally:
        vendors.unlink()


def test_a_spec_that_defines_our_gpus_too_withdraws_them_until_it_goes_and_the_doctor_says_how(service: Home) -> None:
    other = SPEC.with_name("other.json")
    with held(service, 8) as shown:
        other.write_bytes(shown)
    try:
        service.until(lambda: service.allocatable() == 0, what="no GPU is offered")
        found = service("doctor", "-o", "json")
        failures = [item for item in found.data if item["level"] == "fail" and item["check"] == "gpus"]
        assert found.code == 1
        assert str(SPEC) in failures[0]["what"]
        assert str(other) in failures[0]["what"]
        assert f"mv {other} {other}.before" in failures[0]["what"]
        assert "the commands named there" in failures[0]["fix"]
    finally:
        other.unlink()
    service.until(lambda: service.allocatable() == 8, what="every GPU is offered again")
    done = service.run("--rm", "-g", "8", "--", "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'")
    assert (done.code, done.out.strip()) == (0, "8"), done.err

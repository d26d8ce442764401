"""`run --device vendor/class=name` on real podman: the device is there, a GPU behind another name is not."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import Home


@pytest.fixture
def hook() -> Iterator[Path]:
    """A program that a container's start would run as root; whose it is, a test says."""
    folder = Path(tempfile.mkdtemp(prefix="fl-hook-", dir="/root"))
    program = folder / "hook"
    program.write_text(f"#!/bin/sh\ncat > {folder}/ran\n")
    program.chmod(0o755)
    yield program
    shutil.rmtree(folder)


@pytest.fixture
def kind(hook: Path) -> Iterator[str]:
    """A kind with a harmless device, and one whose node has the number of an NVIDIA GPU; removed afterwards."""
    name = f"lab{os.getpid()}.example/thing"

    def device(called: str, **node: object) -> dict[str, object]:
        return {"name": called, "containerEdits": {"deviceNodes": [{"path": f"/dev/{called}", "type": "c", **node}]}}

    hooked = {"name": "hooked", "containerEdits": {"hooks": [{"hookName": "createRuntime", "path": str(hook)}]}}
    devices = [device("full", hostPath="/dev/full", permissions="rw"), device("sly", major=195, minor=0), hooked]
    Path("/etc/cdi").mkdir(exist_ok=True)
    file = Path(f"/etc/cdi/fairlead-test-{os.getpid()}.json")
    file.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": name, "devices": devices}))
    yield name
    file.unlink()


def test_a_device_is_there_by_its_name_beside_a_gpu(service: Home, kind: str) -> None:
    foretold = service.run("--dry-run", "--device", f"{kind}=full", "--", "true")
    assert f"asking for {kind}=full" in foretold.out, foretold
    found = service.run("--rm", "--device", f"{kind}=full", "-g", "1", "--", "ls", "-l", "/dev/full")
    assert (found.code, "1,   7" in found.out) == (0, True), found


def test_the_audit_knows_it_for_its_own(service: Home, kind: str) -> None:
    service.start("looked", "--device", f"{kind}=full")
    audited = service("isolate", "audit", "looked")
    assert (audited.code, "too wide" in audited.out) == (0, False), audited
    told = [one for one in service("doctor").out.splitlines() if "isolation" in one]
    assert not any("looked" in one for one in told), told
    service.kill()
    try:
        audited = service("isolate", "audit", "looked")
        assert (audited.code, "too wide" in audited.out, "checkpoint" in audited.out) == (0, False, True), audited
    finally:
        service.up()
    service.rm("looked")


def test_one_that_is_not_there_is_refused_with_those_that_are(service: Home, kind: str) -> None:
    found = service.run("--rm", "--device", f"{kind}=none", "--", "true")
    assert found.code != 0
    assert "full, hooked, sly" in found.err


def test_a_gpu_under_another_name_stays_away(service: Home, kind: str) -> None:
    found = service.run("--rm", "--device", f"{kind}=sly", "--", "true")
    assert found.code != 0
    assert "DeviceIsGPU" in found.err
    assert service.run("--rm", "--device", "nvidia.com/gpu=0", "--", "true").code == 2


def test_a_hook_that_others_may_change_is_not_run(service: Home, kind: str, hook: Path) -> None:
    asked = ("--rm", "--device", f"{kind}=hooked", "--", "true")
    hook.chmod(0o777)
    found = service.run(*asked)
    assert (found.code != 0, "DeviceHookUnsafe" in found.err, (hook.parent / "ran").exists()) == (True, True, False)
    hook.chmod(0o755)
    hook.parent.chmod(0o777)
    assert "DeviceHookUnsafe" in service.run(*asked).err
    hook.parent.chmod(0o700)
    found = service.run(*asked)
    assert (found.code, (hook.parent / "ran").exists()) == (0, True), found

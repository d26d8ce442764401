"""Lint: every rule fires on its danger, and a spec of ours is clean."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead_cdi import lint, parse
from fairlead_cdi.host import node as host

CLEAN: dict[str, Any] = {
    "env": ["A=b"],
    "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 195, "minor": 1, "permissions": "rw"}],
    "mounts": [{"hostPath": "/opt/lib.so", "containerPath": "/lib.so", "options": ["ro", "nosuid", "nodev", "bind"]}],
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/h", "env": ["A=b"], "timeout": 5}],
}


def spec_of(edits: dict[str, Any], **fields: Any) -> bytes:
    document = {"cdiVersion": "0.5.0", "kind": "vendor.com/gpu", **fields}
    document["devices"] = [{"name": "gpu0", "containerEdits": edits}, *fields.get("devices", [])]
    return json.dumps(document).encode()


def codes(data: bytes, **look: Any) -> set[str]:
    return {finding.code for finding in lint.lint(parse.parse_spec(data), **look)}


def test_a_careful_spec_has_no_findings() -> None:
    assert codes(spec_of(CLEAN)) == set()


def mount(**fields: Any) -> dict[str, Any]:
    return {"mounts": [CLEAN["mounts"][0] | fields]}


def hook(**fields: Any) -> dict[str, Any]:
    return {"hooks": [{k: v for k, v in (CLEAN["hooks"][0] | fields).items() if v is not None}]}


def node(**fields: Any) -> dict[str, Any]:
    return {"deviceNodes": [{k: v for k, v in (CLEAN["deviceNodes"][0] | fields).items() if v is not None}]}


DANGERS: dict[str, list[dict[str, Any]]] = {
    "env-loader": [{"env": ["LD_PRELOAD=/x"]}, {"env": ["LD_LIBRARY_PATH=/x"]}, {"env": ["PYTHONPATH=/x"]}],
    "env-path": [{"env": ["PATH=/x"]}],
    "node-no-access": [node(permissions="none")],
    "node-mknod": [node(permissions="rwm"), node(permissions=None)],
    "node-raw": [node(path="/dev/mem"), node(hostPath="/dev/mem"), node(type="b")],
    "mount-not-bind": [mount(options=["ro", "nosuid", "nodev"])],
    "mount-options": [mount(options=["ro", "bind"])],
    "mount-writable": [mount(options=["nosuid", "nodev", "bind"])],
    "mount-host-root": [mount(hostPath="/"), mount(hostPath="/etc"), mount(hostPath="/proc")],
    "mount-over": [mount(containerPath="/etc"), mount(containerPath="/usr/lib"), mount(containerPath="/")],
    "mount-engine": [mount(hostPath="/run/containerd/containerd.sock"), mount(hostPath="/var/run/docker.sock")],
    "node-number": [node(major=-1, minor=0), node(major=195, minor=-3)],
    "mount-path": [mount(hostPath="opt/x"), mount(containerPath="/a/../b")],
    "hook-relative": [hook(path="bin/h")],
    "hook-no-env": [hook(env=None), hook(env=[])],
    "hook-loader": [hook(env=["LD_PRELOAD=/x"])],
    "hook-no-timeout": [hook(timeout=None)],
    "hook-timeout": [hook(timeout=0), hook(timeout=-1)],
}


@pytest.mark.parametrize(("code", "edits"), [(code, edits) for code, found in DANGERS.items() for edits in found])
def test_each_danger_is_found_and_nothing_else(code: str, edits: dict[str, Any]) -> None:
    assert codes(spec_of(edits)) == {code}


def test_edits_for_all_devices_are_judged_too() -> None:
    assert codes(spec_of(CLEAN, containerEdits={"env": ["LD_PRELOAD=/x"]})) == {"env-loader"}


def test_kinds_that_crash_engines_are_errors() -> None:
    (finding,) = lint.lint(parse.parse_spec(spec_of(CLEAN, kind="vendor.com/g")))
    assert (finding.severity, finding.code) == (lint.Severity.ERROR, "kind-crashes-engines")


def test_names_outside_the_specification_are_warnings() -> None:
    data = spec_of(CLEAN, kind="Vendor/gpu", devices=[{"name": "x" * 64, "containerEdits": CLEAN}])
    assert codes(data) == {"kind-not-standard", "device-name-not-standard"}


def test_a_version_that_old_engines_drop_is_told_with_what_would_do() -> None:
    (finding,) = lint.lint(parse.parse_spec(spec_of(CLEAN, cdiVersion="v1.0.0")))
    assert finding.code == "version-high"
    assert "0.3.0 would suffice" in finding.message


def test_bad_annotations_are_told() -> None:
    data = spec_of(
        CLEAN,
        cdiVersion="0.6.0",
        annotations={"-": ""},
        devices=[{"name": "b", "annotations": {"-": ""}, "containerEdits": CLEAN}],
    )
    assert codes(data) == {"annotation-invalid", "version-high"}


def test_numbers_that_the_host_does_not_have_are_told() -> None:
    def stat(path: str) -> host.HostNode:
        return host.HostNode("c", 195, 2, 0o666)

    found = lint.lint(parse.parse_spec(spec_of(CLEAN)), stat_node=stat)
    assert [finding.code for finding in found] == ["node-stale"]
    assert "195:1" in found[0].message
    assert "195:2" in found[0].message


@pytest.fixture
def program(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only what belongs to root is safe")
    path = tmp_path / "hook"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def hook_codes(path: Path) -> set[str]:
    return codes(spec_of(hook(path=str(path))), stat_file=host.stat_file)


def test_a_safe_hook_is_quiet_and_a_missing_one_is_not(program: Path) -> None:
    assert hook_codes(program) == set()
    assert hook_codes(program.with_name("nope")) == {"hook-missing"}
    program.chmod(0o644)
    assert hook_codes(program) == {"hook-missing"}


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_hook_others_can_write_is_told(program: Path, mode: int) -> None:
    program.chmod(mode)
    assert hook_codes(program) == {"hook-writable"}


def test_a_hook_in_a_folder_others_can_write_is_told(program: Path) -> None:
    program.parent.chmod(0o777)
    assert hook_codes(program) == {"hook-writable"}
    program.parent.chmod(0o1777)
    assert hook_codes(program) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only what belongs to root is safe")
def test_a_spec_file_others_can_replace_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(spec_of(CLEAN))
    assert lint.lint_file(str(path), stat_file=host.stat_file) == ()
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    assert [f.code for f in lint.lint_file(str(path), stat_file=host.stat_file)] == ["spec-writable"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_spec_file_of_another_user_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(spec_of(CLEAN))
    os.chown(path, 12345, 12345)
    assert [f.code for f in lint.lint_file(str(path), stat_file=host.stat_file)] == ["spec-owner"]


def test_what_a_spec_names_and_the_host_has_no_more_is_found(tmp_path: Path) -> None:
    here, gone = tmp_path / "lib.so", tmp_path / "lib.so.560"
    here.write_text("")
    edits = {
        "mounts": [
            CLEAN["mounts"][0] | {"hostPath": str(gone)},
            CLEAN["mounts"][0] | {"hostPath": str(here)},
            {"hostPath": "tmpfs", "containerPath": "/t", "type": "tmpfs"},
        ],
        **node(path=str(gone)),
        **hook(path=str(gone)),
    }
    found = lint.lint(parse.parse_spec(spec_of(edits)), stat_file=host.stat_file)
    codes_of_gone = {one.code for one in found if str(gone) in one.message}
    assert codes_of_gone == {"mount-missing", "node-missing", "hook-missing"}
    assert not [one for one in found if f"{here} is not" in one.message]
    said = list(lint.missing(parse.parse_spec(spec_of(edits)).devices[0].edits, stat_file=host.stat_file))
    assert [line.split()[0] for line in said] == ["mounts", "names", "calls"]
    assert codes(spec_of(edits)) & {"mount-missing", "node-missing"} == set()

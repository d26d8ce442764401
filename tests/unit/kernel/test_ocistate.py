"""Which containers runtimes run, by the state they keep: a pid that another process has by now is none of theirs."""

from __future__ import annotations

import json
from pathlib import Path

from fairlead.kernel import ocistate


def state(root: Path, path: str, body: object) -> None:
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text(json.dumps(body))


def process(root: Path, pid: int, *, started: int) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    fields = " ".join(["S", *("0" for _ in range(18)), str(started), "0"])
    (folder / "stat").write_text(f"{pid} (sleep) {fields}\n")
    (folder / "cgroup").write_text("0::/\n")


def runc(pid: int, started: int, bundle: str) -> object:
    return {"init_process_pid": pid, "init_process_start": started, "config": {"labels": ["x=y", f"bundle={bundle}"]}}


def test_containers_of_every_runtime_are_found_while_they_live(tmp_path: Path) -> None:
    for pid in (11, 12, 13):
        process(tmp_path, pid, started=100 + pid)
    state(tmp_path, "run/runc/aa/state.json", runc(11, 111, "/b/aa"))
    state(tmp_path, "run/containerd/runc/k8s.io/bb/state.json", runc(12, 112, "/b/bb"))
    state(tmp_path, "run/crun/cc/status", {"pid": 13, "process-start-time": 113, "bundle": "/b/cc"})
    state(tmp_path, "run/crun/dead/status", {"pid": 14, "process-start-time": 114, "bundle": "/b/dead"})
    state(tmp_path, "run/runc/broken/state.json", "what")

    found = ocistate.list_running(tmp_path)

    assert [(item.id, item.pid, str(item.bundle)) for item in found] == [
        ("aa", 11, "/b/aa"),
        ("bb", 12, "/b/bb"),
        ("cc", 13, "/b/cc"),
    ]


def test_a_state_left_by_a_killed_runtime_is_no_container_once_another_process_has_its_pid(tmp_path: Path) -> None:
    """As after `kill -9` of podman and all it had: the audit read the rules of whoever had the pid, and blamed it."""
    process(tmp_path, 11, started=500)
    state(tmp_path, "run/runc/aa/state.json", runc(11, 111, "/b/aa"))
    state(tmp_path, "run/crun/cc/status", {"pid": 11, "process-start-time": 111, "bundle": "/b/cc"})
    assert ocistate.list_running(tmp_path) == ()


def test_a_runtime_that_tells_no_start_time_is_believed_its_pid(tmp_path: Path) -> None:
    process(tmp_path, 11, started=500)
    state(tmp_path, "run/crun/cc/status", {"pid": 11, "bundle": "/b/cc"})
    assert [item.id for item in ocistate.list_running(tmp_path)] == ["cc"]


def test_a_bundle_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert ocistate.read_config(tmp_path) is None
    (tmp_path / "config.json").write_text("[]")
    assert ocistate.read_config(tmp_path) is None
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert ocistate.read_config(tmp_path) == {"a": 1}

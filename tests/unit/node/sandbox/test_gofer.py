"""The gofer beside a sandbox of gVisor, found in a /proc of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.sandbox import gofer
from fairlead.node.sandbox.gofer import Gofer

BUNDLE = "/var/lib/containers/storage/overlay-containers/abc/userdata"


def process(proc: Path, pid: int, parent: int, *words: str, name: str = "exe") -> Path:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194560\n")
    (folder / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, 10, 1, "conmon")
    process(tmp_path, 11, 10, "runsc-gofer", "--root=/x", "gofer", "--bundle", BUNDLE, "--spec-fd=3", name="a) S 9 (b")
    process(tmp_path, 12, 10, "runsc-sandbox", "--root=/x", "boot", f"--bundle={BUNDLE}", "--apply-caps=true")
    process(tmp_path, 21, 20, "runsc-gofer", "gofer", "--bundle", BUNDLE.replace("abc", "other"))
    process(tmp_path, 22, 20, "runsc-sandbox", "boot", f"--bundle={BUNDLE.replace('abc', 'other')}")
    (tmp_path / "self").mkdir()
    return tmp_path


def test_the_gofer_is_the_one_of_the_same_bundle(proc: Path) -> None:
    assert gofer.find(12, proc) == Gofer(11)
    assert gofer.find(22, proc) == Gofer(21)


@pytest.mark.parametrize("pid", [10, 11, 99])
def test_a_process_that_is_no_sandbox_is_said_to_be_none(proc: Path, pid: int) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        gofer.find(pid, proc)
    assert caught.value.reason == "GoferUnread"


def test_a_process_that_has_the_kernel_show_a_terabyte_as_its_words_costs_nothing(proc: Path) -> None:
    os.truncate(process(proc, 9, 10, "runsc-gofer") / "cmdline", 1 << 40)
    assert gofer.find(12, proc) == Gofer(11)


def test_one_that_only_calls_itself_a_gofer_is_not_taken_from_elsewhere(proc: Path) -> None:
    process(proc, 31, 30, "runsc-sandbox", "boot", f"--bundle={BUNDLE}x")
    process(proc, 32, 33, "runsc-gofer", "gofer", "--bundle", f"{BUNDLE}x")  # of another parent
    with pytest.raises(errors.Unavailable):
        gofer.find(31, proc)


def test_what_the_gofer_has_is_what_is_read(proc: Path) -> None:
    (proc / "11/root/dev/shm").mkdir(parents=True)
    found = gofer.read(Gofer(11), proc)
    assert found.nodes == ()
    assert found.in_force is None
    assert "gVisor sets none" in found.unread[0]
    with pytest.raises(errors.Unavailable):
        gofer.read(Gofer(21), proc)


def test_a_held_container_has_the_gofer_that_descends_from_its_watcher(tmp_path: Path) -> None:
    bundle = tmp_path / "storage/abc/userdata"
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text('{"root": {"path": "/merged/abc/"}}')
    proc = tmp_path / "proc"
    process(proc, 40, 39, "conmon")
    process(proc, 41, 40, "/bin/sh", "fairlead-gvisor", "fairlead-watch", "abc")
    process(proc, 42, 41, "runsc", "start", "abc")
    process(proc, 43, 42, "runsc-gofer", "gofer", "--bundle", str(bundle))
    process(proc, 44, 1, "runsc-gofer", "gofer", "--bundle", str(bundle))  # of another parent
    found = gofer.find_joined(41, "abc", proc)
    assert found == Gofer(43, "/merged/abc")
    assert found.folder("/dev", proc) == proc / "43/root/merged/abc/dev"
    for pid, container in ((41, "ab"), (45, "abc")):
        with pytest.raises(errors.Unavailable, match="has no gofer"):
            gofer.find_joined(pid, container, proc)
    (bundle / "config.json").unlink()
    with pytest.raises(errors.Unavailable, match="cannot be read"):
        gofer.find_joined(41, "abc", proc)
    process(proc, 51, 50, "/bin/sh", "fairlead-gvisor", "fairlead-watch", "def")
    process(proc, 52, 50, "runsc-gofer", "gofer", "--bundle", "/storage/def/userdata")
    assert gofer.find_joined(51, "def", proc) == Gofer(52)  # it was let go
    process(proc, 60, 59, "runsc-sandbox", "boot", "--bundle=/storage/ghi/userdata")
    process(proc, 61, 59, "runsc-gofer", "gofer", "--bundle", "/storage/ghi/userdata")
    with pytest.raises(errors.Unavailable, match="has no gofer"):  # it began a sandbox of its own
        gofer.find_joined(60, "ghi", proc)

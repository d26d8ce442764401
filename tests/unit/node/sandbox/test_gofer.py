"""The gofer beside a sandbox of gVisor, found in a /proc of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.sandbox import gofer

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
    assert gofer.find(12, proc) == 11
    assert gofer.find(22, proc) == 21


@pytest.mark.parametrize("pid", [10, 11, 99])
def test_a_process_that_is_no_sandbox_is_said_to_be_none(proc: Path, pid: int) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        gofer.find(pid, proc)
    assert caught.value.reason == "GoferUnread"


def test_one_that_only_calls_itself_a_gofer_is_not_taken_from_elsewhere(proc: Path) -> None:
    process(proc, 31, 30, "runsc-sandbox", "boot", f"--bundle={BUNDLE}x")
    process(proc, 32, 33, "runsc-gofer", "gofer", "--bundle", f"{BUNDLE}x")  # of another parent
    with pytest.raises(errors.Unavailable):
        gofer.find(31, proc)


def test_what_the_gofer_has_is_what_is_read(proc: Path) -> None:
    (proc / "11/root/dev/shm").mkdir(parents=True)
    found = gofer.read(11, proc)
    assert found.nodes == ()
    assert found.in_force is None
    assert "gVisor sets none" in found.unread[0]
    with pytest.raises(errors.Unavailable):
        gofer.read(21, proc)

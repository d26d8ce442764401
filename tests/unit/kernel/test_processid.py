"""A pid that is another process's by now is nobody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel import processid

_ID = "4f" * 32


def put(proc: Path, *, started: int, container: str = _ID, name: str = "a) b (c") -> None:
    folder = proc / "7"
    folder.mkdir(exist_ok=True, parents=True)
    fields = " ".join(["S", *("0" for _ in range(18)), str(started), "0"])
    (folder / "stat").write_text(f"7 ({name}) {fields}\n")
    (folder / "cgroup").write_text(f"5:devices:/libpod_parent/libpod-{container}\n")


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b"python3\n", "python3"),
        (b"\x1b]0;root\x07\n", "?]0;root?"),
        (b"a\nb\n", "a?b"),
        (b"\xff\xfe\n", "??"),
        ("müll\n".encode(), "m?ll"),
        (b" \n", " "),
        (b"x" * 4096, "x" * 15),
    ],
)
def test_a_programs_name_for_itself_is_shown_without_what_a_terminal_obeys(
    tmp_path: Path, comm: bytes, shown: str
) -> None:
    (tmp_path / "comm").write_bytes(comm)
    assert processid.read_name(tmp_path) == shown
    assert processid.read_name(tmp_path / "gone") == ""


def test_a_process_of_any_name_is_dated(tmp_path: Path) -> None:
    put(tmp_path / "proc", started=100)
    plain = processid.made_at(7, tmp_path)
    stat = tmp_path / "proc/7/stat"
    stat.write_bytes(stat.read_bytes().replace(b"a) b (c", b"\xff\xfe) S 1"))
    assert plain is not None
    assert processid.made_at(7, tmp_path) == pytest.approx(plain, abs=1)


def test_the_same_process_stays_the_same(tmp_path: Path) -> None:
    put(tmp_path, started=100)
    found = processid.find(7, container=_ID, proc=tmp_path)
    assert found == processid.ProcessID(7, "100")
    processid.assert_same(found, proc=tmp_path)


def test_a_pid_used_again_is_another_process(tmp_path: Path) -> None:
    put(tmp_path, started=100)
    found = processid.find(7, proc=tmp_path)
    put(tmp_path, started=200)
    with pytest.raises(errors.NotFound):
        processid.assert_same(found, proc=tmp_path)


def test_a_process_of_another_container_is_not_the_one_meant(tmp_path: Path) -> None:
    put(tmp_path, started=100, container="other")
    with pytest.raises(errors.NotFound):
        processid.find(7, container=_ID, proc=tmp_path)


def test_a_process_that_is_gone_is_not_found_by_its_pid(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound):
        processid.find(7, proc=tmp_path)


def test_the_real_kernel_says_so_too() -> None:
    processid.assert_same(processid.find(os.getpid()))

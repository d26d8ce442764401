"""Remarks on a change: they find what they look for, in what was added alone, and say where."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.house import taste


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("the kubelet's books", 1),
        ("Whoever asks wakes nobody.", 2),
        ("test_kubeletbooks.py", 0),
        ('found["wish"]', 0),
        ("that is no socket", 1),
        ("there is no socket", 0),
        ("a trace", 0),
    ],
)
def test_a_habit_of_the_house_is_found_and_a_files_name_is_not(line: str, count: int) -> None:
    assert len(taste.in_line(line)) == count


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ("silicon: scan once without an event loop, for cdi generate", True),
        ("trace, scheduler: keep steps as they were reported", True),
        ("plan/mig: pack MIG layouts", True),
        ("doctor: name each check that was not made, and the missing right, and hint", False),
        ("Add a thing", False),
        ("wip", False),
        ("docs: status of what a container is asked for", False),
        ("house: the lock is held", False),
        ("cli: fix.", False),
    ],
)
def test_what_a_subject_may_be(subject: str, is_right: bool) -> None:
    assert (taste.in_subject(subject) == []) is is_right


def _commit(root: Path, subject: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)
    subprocess.run(["git", "-C", root, *name, "commit", "-qm", subject], check=True)


def test_only_what_a_change_adds_is_looked_at(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    module = tmp_path / "src" / "one.py"
    module.parent.mkdir()
    module.write_text('"""Old module."""\n# nobody\nx = 1\n')
    _commit(tmp_path, "Old subject")
    module.write_text('"""Old module."""\n# nobody\nx = 1\n# somebody\n')
    (tmp_path / "src" / "two.py").write_text('"""A module."""\n' + "x = 1\n" * 401)
    _commit(tmp_path, "New subject")
    module.write_text(module.read_text() + "# a journey\n")
    assert taste.remarks(tmp_path) == [
        "src/one.py:4: somebody: name the process or the person",
        "src/one.py:5: journey: trace",
        "src/two.py:1: a module begins with what it does: Reads …, Decides …",
        "src/two.py: 401 code lines: has it two subjects?",
        'commit "New subject": not of the form `area: verb …`',
    ]


def test_without_a_history_nothing_is_said(tmp_path: Path) -> None:
    assert taste.remarks(tmp_path) == []

"""Lint, format, types and import law: the tools' own verdicts, one case each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import coverage

_BIN = Path(sys.executable).parent


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("lint-imports",)],
    ids=["ruff check", "ruff format", "mypy", "import law"],
)
def test_the_tree_is_clean(root: Path, command: tuple[str, ...]) -> None:
    done = subprocess.run([_BIN / command[0], *command[1:]], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_counts_for_its_own_room_and_rooms_without_branches_are_left_out() -> None:
    files = {
        "src/fairlead/__init__.py": {"summary": {"covered_branches": 0, "num_branches": 0}},
        "src/fairlead/errors.py": {"summary": {"covered_branches": 3, "num_branches": 4}},
        "src/fairlead/plan/pod/life/podsync.py": {"summary": {"covered_branches": 1, "num_branches": 2}},
        "src/fairlead/plan/trace.py": {"summary": {"covered_branches": 2, "num_branches": 2}},
        "src/fairlead_cdi/spec.py": {"summary": {"covered_branches": 5, "num_branches": 5}},
    }
    assert coverage.shares(files) == {"errors": (3, 4), "plan": (3, 4), "fairlead_cdi": (5, 5)}

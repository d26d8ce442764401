"""Lint, format, types and import law: the tools' own verdicts, one case each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

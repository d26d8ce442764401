"""What a launcher becomes when the engine it was written for already stood on a runtime of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.inject import launcher, policy

PYTHON = os.path.realpath(sys.executable)
PACKAGES = str(Path(errors.__file__).parent.parent)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A launcher over a runtime that says which one it is; no policy file."""
    (tmp_path / "crun").write_text('#!/bin/sh\necho "inherited $*"\n')
    (tmp_path / "crun").chmod(0o755)
    path = tmp_path / launcher.RUNTIME
    text = launcher.emit_runtime(
        interpreter=PYTHON,
        packages=PACKAGES,
        hook="",
        config=str(tmp_path / "policy.json"),
        runtimes=(str(tmp_path / "gone"), str(tmp_path / "crun")),
    )
    path.write_bytes(text)
    path.chmod(0o755)
    return path


def started(program: Path) -> str:
    done = subprocess.run((program, "--version"), env={}, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_launcher_becomes_the_runtime_it_was_written_for_without_any_path(program: Path) -> None:
    assert started(program) == "inherited --version\n"


def test_policy_json_overrides_the_inherited_runtime(program: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("#!/bin/sh\necho chosen\n")
    (tmp_path / "other").chmod(0o755)
    (tmp_path / "policy.json").write_text(json.dumps({"runtimes": [str(tmp_path / "other")]}))
    assert started(program) == "chosen\n"


def test_a_broken_file_leaves_the_inherited_runtime_for_stopping(program: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{")
    assert started(program) == "inherited --version\n"


def test_without_one_the_default_stays(tmp_path: Path) -> None:
    assert policy.load(str(tmp_path / "none")).runtimes == ("runc", "crun")

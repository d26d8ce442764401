"""Bare roots of Debian 12 and 13, in which tests run what a stranger types; `debianroot.sh` enters them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SUITES = ("bookworm", "trixie")
_CACHE = Path.home() / ".cache/fairlead/debian"
_ENTER = str(Path(__file__).parent / "debianroot.sh")


def bare(suite: str) -> Path:
    """Return the bare root of a suite; skips the test where there is none."""
    root = _CACHE / f"root-{suite}"
    if not root.is_dir():
        pytest.skip(f"no root of {suite} here: tests/system/setup.sh makes it")
    return root


def build(root: Path, script: str, folder: Path) -> Path:
    """Run a script in a root and keep what the root is afterwards in a folder, itself a root to enter."""
    kept = f"exec 3>&1 1>&2\n{script}\ntar -C / --one-file-system -cf - . >&3"
    argv = (_ENTER, str(root), str(CHECKOUT), "bash", "-ec", kept)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as made:
        subprocess.run(("tar", "-C", str(folder), "-xf", "-"), stdin=made.stdout, check=True)
    assert made.returncode == 0
    return folder


def enter(root: Path, script: str) -> str:
    """Run a script in a root, which stays as it is, and return what it printed."""
    argv = (_ENTER, str(root), str(CHECKOUT), "bash", "-ec", script)
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-12000:]
    return done.stdout

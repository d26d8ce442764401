"""The tutorials that need a service run as printed, each on a machine of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


def follow(home: Home, page: str, **more: str) -> str:
    """Run a page's commands in a folder of its own and return what was printed."""
    programs, work = Path(sys.executable).parent, home.folder / "reader"
    work.mkdir()
    env = {**home.env, "HOME": str(work), "PATH": f"{programs}:{home.env['PATH']}", **more}
    argv = (sys.executable, ROOT / "tests/system/pages.py", "--timeout", "100", ROOT / "docs" / page)
    done = subprocess.run(argv, env=env, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_containers_from_python(home: Home) -> None:
    assert "ended with 0" in follow(home, "tutorial/client.md")


def test_gpus_as_a_service(home: Home) -> None:
    try:
        assert "a notebook" in follow(home, "tutorial/service.md")
    finally:
        home.podman("rmi", "--force", "--ignore", "localhost/notebook")

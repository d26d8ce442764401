"""What `nvidia-cuda-mps-control` does: the stand-in of simulated machines, and the real program where one is named.

`FAIRLEAD_TEST_MPS` is the path of a real one; its machine needs a GPU that nobody uses.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.kernel.programs import mpscontrol

REAL = os.environ.get("FAIRLEAD_TEST_MPS", "")  # noqa: TID251 - chooses what the suite runs on, no setting of ours
STAND_IN = (sys.executable, "-I", "-S", str(mpscontrol.__file__))


class Program:
    """One program with folders of its own."""

    def __init__(self, argv: tuple[str, ...], folder: Path) -> None:
        self.argv, self.pipe = argv, folder / "pipe"
        self.env = {
            "PATH": "/usr/bin:/bin",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*self.argv, *arguments),
            env=self.env,
            input=text,
            capture_output=not arguments,
            text=True,
            timeout=20,
            check=False,
        )

    def ask(self, line: str) -> str:
        done = self.run(text=f"{line}\n")
        assert done.returncode == 0, (line, done)
        return done.stdout.strip()

    def answers(self) -> bool:
        done = self.run(text="get_default_active_thread_percentage\n")
        return done.returncode == 0 and done.stdout.strip().replace(".", "").isdigit()

    def until(self, *, answers: bool) -> None:
        deadline = time.monotonic() + 20
        while self.answers() is not answers:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(params=["stand-in", "real"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """The program with a daemon that runs in the background."""
    if request.param == "real" and not REAL:
        pytest.skip("FAIRLEAD_TEST_MPS names no real program")
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        (Path(name) / "log").mkdir()
        (Path(name) / "pipe").mkdir()
        found = Program((REAL,) if request.param == "real" else STAND_IN, Path(name))
        assert found.run("-d").returncode == 0
        found.until(answers=True)
        yield found
        found.run(text="quit\n")
        with contextlib.suppress(AssertionError):
            found.until(answers=False)


def test_the_daemon_writes_its_pid_beside_its_pipes(program: Program) -> None:
    pid = int((program.pipe / "nvidia-cuda-mps-control.pid").read_text())
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"CUDA_MPS_PIPE_DIRECTORY={program.pipe}".encode() in environment
    assert (program.pipe / "control").exists()


def test_limits_are_told_as_they_were_set(program: Program) -> None:
    assert float(program.ask("get_default_active_thread_percentage")) == 100
    program.ask("set_default_active_thread_percentage 25")
    assert float(program.ask("get_default_active_thread_percentage")) == 25
    program.ask("set_default_device_pinned_mem_limit 0 2048M")
    assert program.ask("get_default_device_pinned_mem_limit 0") in {"2048M", "2G"}


def test_a_server_begins_with_the_defaults_and_takes_limits_of_its_own(program: Program) -> None:
    program.ask("set_default_active_thread_percentage 50")
    program.ask("start_server -uid 0")
    [server] = program.ask("get_server_list").split()
    assert float(program.ask(f"get_active_thread_percentage {server}")) == 50
    program.ask(f"set_active_thread_percentage {server} 10")
    assert float(program.ask(f"get_active_thread_percentage {server}")) == 10
    assert program.ask(f"get_client_list {server}") == ""


def test_a_second_daemon_does_not_take_the_folder(program: Program) -> None:
    pid = (program.pipe / "nvidia-cuda-mps-control.pid").read_text()
    program.run("-d")
    assert program.answers()
    assert (program.pipe / "nvidia-cuda-mps-control.pid").read_text() == pid


def test_quit_ends_the_daemon_and_the_client_says_so(program: Program) -> None:
    program.run(text="quit\n")
    program.until(answers=False)
    done = program.run(text="get_server_list\n")
    assert "Cannot find MPS control daemon process" in done.stdout + done.stderr

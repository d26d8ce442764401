"""The shim reads a command line as the installed runtimes do: they are asked which command and bundle they took."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.inject import commandline

_GLOBAL = (
    "",
    "--root {root}",
    "-root {root}",
    "--root={root}",
    "-root={root}",
    "--ro {root}",
    "--debug",
    "-debug",
    "--debug=true",
    "-debug=false",
    "--systemd-cgroup",
    "-systemd-cgroup",
    "--systemd",
    "--log {root}/log",
    "-log {root}/log",
    "--log-format json",
    "-log-format=text",
    "--log-level debug",
    "--log-level=debug",
    "-log-level warning",
    "--rootless auto",
    "-rootless false",
    "--criu create",
    "--cgroup-manager cgroupfs",
    "--cgroup-m cgroupfs",
    "--",
    "--root {root} --",
    "-root {root} -log {root}/log -log-format json",
    "-systemd-cgroup=false -root={root} --log-format=json",
)
_BUNDLE = ("--bundle X", "-bundle X", "-b X", "--bundle=X", "-bundle=X", "--b X", "-bX", "--bun X", "--bundle A -b X")
_UNREAD = (
    *("flag provided but not defined", "No help topic", "unrecognized option", "invalid option", "unknown command"),
    *("Cannot use two forms", "requires a maximum of"),
)
"""What a runtime says of a command line that it does not take."""


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest) -> str:
    found: str | None = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    return found


def _said(runtime: str, words: list[str], folder: Path) -> str:
    done = subprocess.run(
        [runtime, *words], capture_output=True, text=True, check=False, timeout=20, cwd=folder, stdin=subprocess.DEVNULL
    )
    assert done.returncode != 0, done.stdout
    logged = folder / "log"
    return f"{done.stdout}{done.stderr}{logged.read_text() if logged.exists() else ''}"


def _is_taken(said: str) -> bool:
    return not any(words in said for words in _UNREAD)


def test_a_command_is_found_wherever_a_runtime_finds_it(runtime: str, tmp_path: Path) -> None:
    taken, missed = [], []
    for line in _GLOBAL:
        options = line.format(root=tmp_path).split()
        (tmp_path / "log").unlink(missing_ok=True)
        if _is_taken(_said(runtime, [*options, "state", "nobody"], tmp_path)):
            taken.append(line)
            place = commandline.command_place([*options, "state", "nobody"])
            missed += [] if place == len(options) else [line]
    assert missed == []
    assert len(taken) >= 12


def test_a_bundle_is_read_as_a_runtime_reads_it(runtime: str, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen-bundle"
    taken = []
    for line in _BUNDLE:
        words = line.replace("X", str(chosen)).replace(" A ", f" {tmp_path}/other ").split()
        said = _said(runtime, ["--root", str(tmp_path), "create", *words, "nobody"], tmp_path)
        if _is_taken(said):
            taken.append(line)
            assert "chosen-bundle" in said, (line, said)
            assert commandline.bundle_folder([*words, "nobody"]) == str(chosen)
    assert len(taken) >= 5

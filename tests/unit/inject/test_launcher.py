"""The programs that are installed: their text, and that nothing around them changes what they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.inject import launcher

PYTHON = os.path.realpath(sys.executable)
PACKAGES = str(Path(errors.__file__).parent.parent)


def test_a_launcher_starts_isolated_python_on_the_packages_own_place() -> None:
    text = launcher.emit_runtime(
        interpreter="/usr/bin/python3", packages="/opt/it's", hook="/opt/hook", config="/etc/c"
    )
    assert text.decode().splitlines() == [
        "#!/usr/bin/python3 -IS",
        "import posix, sys",
        'sys.path.append("/opt/it\'s")',
        "from fairlead.inject import runtime",
        "posix._exit(runtime.main(config='/etc/c', hook='/opt/hook'))",
    ]


@pytest.mark.parametrize("interpreter", ["python3", "/opt/my python", "/" + "x" * 200])
def test_an_interpreter_the_kernel_cannot_start_is_refused(interpreter: str) -> None:
    with pytest.raises(errors.Invalid):
        launcher.emit_hook(interpreter=interpreter, packages="/opt")


def test_a_relative_folder_of_packages_is_refused() -> None:
    with pytest.raises(errors.Invalid):
        launcher.emit_hook(interpreter="/usr/bin/python3", packages="src")


@pytest.mark.skipif(os.geteuid() != 0, reason="the checkout belongs to someone else")
def test_install_writes_both_and_again_changes_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    launcher.install(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    launcher.install(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"fairlead-runtime", "fairlead-hook"}
    assert all(path.stat().st_mode & 0o7777 == 0o755 for path in tmp_path.iterdir())
    assert str(tmp_path / "fairlead-hook").encode() in before["fairlead-runtime"]


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(errors.Denied, match="can be written by others"):
        launcher.install(tmp_path)


@pytest.mark.parametrize("variable", ["PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"])
def test_no_variable_of_python_counts(tmp_path: Path, variable: str) -> None:
    program = tmp_path / "hook"
    program.write_bytes(launcher.emit_hook(interpreter=PYTHON, packages=PACKAGES))
    program.chmod(0o755)
    (tmp_path / "posix.py").write_text("raise SystemExit(99)")
    done = subprocess.run((program,), env={variable: str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"started with {variable} set" in done.stderr

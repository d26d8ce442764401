"""The programs that are installed: their text, and that nothing around them changes what they do."""

from __future__ import annotations

import ast
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
    lines = text.decode().splitlines()
    assert lines[0] == "#!/usr/bin/python3 -IS"
    assert lines[3] == 'sys.path.append("/opt/it\'s")'
    assert lines[-1] == "posix._exit(runtime.main(config='/etc/c', hook='/opt/hook'))"


def loaded(program: Path) -> list[str]:
    """Modules of ours that a launcher has when it calls its main, and whether they came from an image."""
    text = program.read_text()
    report = "print([(n, m.__spec__ is None) for n, m in sys.modules.items() if n.startswith('fairlead')])"
    probe = program.with_name("probe.py")
    probe.write_text(text[: text.rindex("posix._exit")] + report)
    done = subprocess.run((PYTHON, "-IS", probe), capture_output=True, text=True, check=True)
    found = ast.literal_eval(done.stdout)
    assert len({from_image for _, from_image in found}) == 1
    return [name for name, _ in found] + ["from image"] * found[0][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="the checkout belongs to someone else")
@pytest.mark.parametrize("name", [launcher.RUNTIME, launcher.HOOK])
def test_an_image_holds_what_is_imported_and_no_more(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o755)
    launcher.install(tmp_path)
    program, image = tmp_path / name, tmp_path / f"{name}.image"
    assert loaded(program) == [*launcher.MODULES[name], "from image"]
    good = image.read_bytes()
    for bad in (b"", good[:100], b"abcd" + good[4:], good[:4] + b"junk"):
        image.write_bytes(bad)
        assert sorted(loaded(program)) == sorted(launcher.MODULES[name])
    image.unlink()
    assert sorted(loaded(program)) == sorted(launcher.MODULES[name])


def test_an_image_of_changed_sources_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    for name in launcher.MODULES[launcher.RUNTIME]:
        source = Path(PACKAGES, *name.split("."))
        target = folder.joinpath(*name.split("."))
        if source.is_dir():
            target.mkdir(parents=True)
            source, target = source / "__init__.py", target / "__init__.py"
        else:
            source, target = source.with_suffix(".py"), target.with_suffix(".py")
        target.write_bytes(source.read_bytes())
    image, program = tmp_path / "image", tmp_path / "program"
    image.write_bytes(launcher.emit_image(launcher.MODULES[launcher.RUNTIME], folder))
    program.write_bytes(launcher.emit_runtime(interpreter=PYTHON, packages=str(folder), hook="", image=str(image)))
    assert "from image" in loaded(program)
    os.utime(folder / "fairlead/inject/bundle.py", (1, 1))
    assert "from image" not in loaded(program)


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
    assert set(before) == {"fairlead-runtime", "fairlead-hook", "fairlead-runtime.image", "fairlead-hook.image"}
    assert all(path.stat().st_mode & 0o7022 == 0 for path in tmp_path.iterdir())
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

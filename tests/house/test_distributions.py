"""The two distributions build and agree, and the CDI library works in an environment that has nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fairlead
import fairlead_cdi
from tests.house import measure

_USE = """
import json, sys
from fairlead_cdi import Registry, directory
directory.DEFAULT_DIRECTORIES = (sys.argv[1],)
config = Registry.default().inject({"ociVersion": "1.0.2"}, ["vv.com/gpu=0"])
problems = {path: [error.reason for error in found] for path, found in Registry.default().problems.items()}
print(json.dumps([config, problems, sorted(name for name in sys.modules if name.startswith("fairlead"))]))
"""


def _run(argv: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _project(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(path.read_text())["project"]
    return found


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build everything from a copy of the tracked files; nothing that lies about in the checkout can help."""
    folder = tmp_path_factory.mktemp("distributions")
    for path in measure.tracked(root):
        place = path.relative_to(root)
        if place.parts[0] == "src" or place.name in {"pyproject.toml", "README.md", "LICENSE", "build_protos.py"}:
            (folder / "source" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / "source" / place)
    for project in ("src/fairlead_cdi", "."):
        _run([sys.executable, "-m", "hatchling", "build", "-d", folder / "dist"], folder / "source" / project)
    return folder / "dist"


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name.partition("/")[0] for name in archive.namelist()}


@pytest.mark.timeout(240)
def test_each_wheel_has_its_own_package_and_no_other(built: Path) -> None:
    (library,), (main,) = built.glob("fairlead_cdi-*.whl"), built.glob("fairlead-*.whl")
    assert {name.partition("-")[0] for name in _names(library)} == {"fairlead_cdi"}
    assert {name.partition("-")[0] for name in _names(main)} == {"fairlead"}


@pytest.mark.timeout(240)
def test_a_wheel_of_the_librarys_source_archive_is_the_same(built: Path, tmp_path: Path) -> None:
    (wheel,), (source,) = built.glob("fairlead_cdi-*.whl"), built.glob("fairlead_cdi-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again"], folder)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.timeout(240)
def test_the_library_alone_injects_with_one_line(root: Path, built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("fairlead_cdi-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    install = ("pip", "install", "--quiet", "--offline", "--no-index", "--python", python, wheel)
    _run([root / ".cache/uv/bin/uv", *install], tmp_path)
    (tmp_path / "cdi").mkdir()
    devices = [{"name": "0", "containerEdits": {"env": ["A=b"]}}]
    document = {"cdiVersion": "0.5.0", "kind": "vv.com/gpu", "devices": devices}
    (tmp_path / "cdi/a.json").write_text(json.dumps(document))
    (tmp_path / "cdi/b.yaml").write_text("cdiVersion: 0.5.0\n")
    config, problems, modules = json.loads(_run([python, "-I", "-c", _USE, str(tmp_path / "cdi")], tmp_path))
    assert config == {"ociVersion": "1.0.2", "process": {"env": ["A=b"]}}
    assert problems == {str(tmp_path / "cdi/b.yaml"): ["SpecFormatUnread"]}
    assert {name.partition(".")[0] for name in modules} == {"fairlead_cdi"}


def test_versions_agree_wherever_they_are_stated(root: Path) -> None:
    main, library = _project(root / "pyproject.toml"), _project(root / "src/fairlead_cdi/pyproject.toml")
    assert main["version"] == fairlead.__version__
    assert library["version"] == fairlead_cdi.__version__
    (wanted,) = (one for one in main["dependencies"] if one.startswith("fairlead-cdi"))
    major, minor, _ = (int(part) for part in library["version"].split("."))
    assert wanted == f"fairlead-cdi>={major}.{minor},<{major}.{minor + 1}"


def test_the_library_needs_only_the_standard_library(root: Path) -> None:
    library = _project(root / "src/fairlead_cdi/pyproject.toml")
    assert library["dependencies"] == []
    assert library["optional-dependencies"].keys() == {"yaml", "watch"}


def test_both_distributions_have_the_same_licence(root: Path) -> None:
    assert (root / "LICENSE").read_bytes() == (root / "src/fairlead_cdi/LICENSE").read_bytes()

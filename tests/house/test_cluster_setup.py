"""`make cluster` builds what a cluster needs and nothing else, and says of each build that it runs (trial K13)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.cluster import build

_PYTHON = """#!/bin/sh
echo "$@" >> said
echo "building etcd v1" >&2
echo '{"folders": []}'
"""


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """The setup script in a tree of its own, whose programs note what they are told and do nothing."""
    _script(tmp_path / "tests/cluster/setup.sh", (root / "tests/cluster/setup.sh").read_text())
    _script(tmp_path / ".venv/bin/python", _PYTHON)
    for name in ("apt-get", "apt-cache", "dpkg", "ip"):
        _script(tmp_path / "bin" / name, "#!/bin/sh\n")
    return tmp_path


def _set_up(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{tree / 'bin'}:{os.defpath}", "HOME": str(tree)}
    line = ("bash", str(tree / "tests/cluster/setup.sh"), *words)
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=30)


def test_a_cluster_to_play_with_is_set_up_without_what_only_tests_need(root: Path, tree: Path) -> None:
    assert re.search(r"^cluster:.*\n\t@tests/cluster/setup\.sh --play ", (root / "Makefile").read_text(), re.MULTILINE)
    if os.geteuid() != 0 and not shutil.which("podman"):
        pytest.skip("its packages are not here, and only root may install them")
    done = _set_up(tree, "--play")
    assert done.returncode == 0, done.stderr
    assert (tree / "said").read_text().splitlines() == ["-m tools.cluster build"]
    names = {module.name for module in build.modules(build.DEFAULT_VERSION)}
    assert names == {f"kubernetes-{build.DEFAULT_VERSION}", "etcd", "containerd", "helm"}


def test_what_a_build_says_reaches_the_person_and_what_it_prints_does_not(tree: Path) -> None:
    done = _set_up(tree, "--play")
    assert "building etcd v1" in done.stderr
    assert "folders" not in done.stdout


def test_each_build_is_named_when_it_begins_while_it_runs_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(
        tmp_path / "bin/go",
        '#!/bin/sh\nfor word; do case "$word" in */partial/) mkdir -p "$word"; : > "$word/helm";; esac; done\n'
        "echo one.package >&2; echo another.package >&2\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
    monkeypatch.setattr(build, "_REPORT_S", 0.0)
    module = next(one for one in build.SHARED if one.name == "helm")
    said: list[str] = []
    folder = build.ensure(module, cache=tmp_path / "cache", say=said.append)
    version = build.version_of(module)
    assert said[0] == f"building helm {version}, once"
    assert said[1].startswith("building helm: 1 packages compiled, ")
    assert re.fullmatch(rf"built helm {re.escape(version)} in \d+ s: helm", said[-1])
    assert build.programs(folder) == ("helm",)
    said.clear()
    build.ensure(module, cache=tmp_path / "cache", say=said.append)
    assert said == []  # what is there is not built again

"""Where a verb goes: what was typed, what surrounds it, and a cluster that nobody named is only looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from fairlead.cli.core.target import Named, Target, choose
from tests.unit.cli.conftest import fairlead

SOCKET = Path("/run/fairlead/api.sock")
LOCAL = Target(url=f"http+unix://{SOCKET}")
FILE, OTHER = Path("/home/me/cluster"), Path("/etc/cluster")
KUBECONFIG = {"KUBECONFIG": "/home/me/config"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
URL = {"FAIRLEAD_URL": "http://other"}
IMPLIED = Target(is_cluster=True, is_implied=True)


def chosen(named: Named, env: dict[str, str], **settings: Any) -> Target:
    given = {"kubeconfig": None, "context": "", "is_served": False, **settings}
    return choose(named, env, socket=SOCKET, **given)


@pytest.mark.parametrize(
    ("named", "env", "settings", "wanted"),
    [
        (Named(), {}, {}, LOCAL),
        (Named(), {}, {"is_served": True}, LOCAL),
        (Named(), KUBECONFIG, {"is_served": True}, LOCAL),
        (Named(), KUBECONFIG, {}, IMPLIED),
        (Named(), POD, {}, IMPLIED),
        (Named(), URL | KUBECONFIG, {"kubeconfig": OTHER}, Target(url="http://other")),
        (Named(), KUBECONFIG, {"kubeconfig": OTHER, "is_served": True}, Target(is_cluster=True, kubeconfig=OTHER)),
        (Named(), {}, {"context": "lab"}, Target(is_cluster=True, context="lab")),
        (Named(url="http://typed"), URL | KUBECONFIG, {"kubeconfig": OTHER}, Target(url="http://typed")),
        (Named(kubeconfig=FILE), URL, {"is_served": True}, Target(is_cluster=True, kubeconfig=FILE)),
        (Named(context="lab"), URL, {"kubeconfig": OTHER}, Target(is_cluster=True, kubeconfig=OTHER, context="lab")),
        (Named(kubeconfig=FILE), {}, {"kubeconfig": OTHER}, Target(is_cluster=True, kubeconfig=FILE)),
    ],
)
def test_what_was_typed_wins_and_a_machine_wins_over_a_cluster_nobody_named(
    named: Named, env: dict[str, str], settings: dict[str, Any], wanted: Target
) -> None:
    assert chosen(named, env, **settings) == wanted


def test_an_address_and_a_cluster_are_one_too_many() -> None:
    with pytest.raises(click.UsageError, match="--url names a service"):
        chosen(Named(url="http://x", context="lab"), {})


def program(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command line in a process of its own: over a cluster it sets up the process's log for good."""
    command = [sys.executable, "-m", "fairlead.cli.main", *argv]
    return subprocess.run(command, env=env or {}, capture_output=True, text=True, check=False, timeout=30)


@pytest.fixture
def unusable(tmp_path: Path) -> Path:
    """A cluster whose certificates cannot be read: nothing is waited for."""
    path = tmp_path / "config"
    path.write_text(
        "clusters: [{name: c, cluster: {server: 'https://lab', certificate-authority: none.crt}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u, namespace: team}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "current-context: x\n"
    )
    return path


@pytest.fixture
def silent(unusable: Path) -> Path:
    """A cluster that is asked only for what is refused before it is asked."""
    unusable.write_text(unusable.read_text().replace("https://lab', certificate-authority: none.crt", "http://lab'"))
    return unusable


def test_both_places_of_the_option_name_the_cluster_and_what_is_wrong_with_it_is_told_once(unusable: Path) -> None:
    for argv in (["--kubeconfig", str(unusable), "ps"], ["ps", "--kubeconfig", str(unusable)]):
        result = program(*argv)
        assert result.returncode == 6
        assert "certificates for https://lab cannot be used" in result.stderr
        assert result.stderr.count("error:") == 1


def test_a_cluster_that_is_only_implied_is_never_changed(silent: Path, tmp_path: Path) -> None:
    env = {"KUBECONFIG": str(silent), "FAIRLEAD_API_SOCKET": str(tmp_path / "none.sock")}
    result = program("rm", "train", env=env)
    assert result.returncode == 2
    assert "was not named" in result.stderr
    assert "--kubeconfig FILE" in result.stderr


def test_a_file_that_is_missing_is_told_before_anything_is_started(tmp_path: Path) -> None:
    result = fairlead("gpus", "--kubeconfig", str(tmp_path / "none"))
    assert (result.exit_code, str(tmp_path / "none") in result.stderr) == (6, True)


def test_without_service_and_cluster_the_hint_names_both(tmp_path: Path) -> None:
    result = fairlead("gpus", env={"FAIRLEAD_API_SOCKET": str(tmp_path / "none.sock")})
    assert result.exit_code == 6
    assert "fairlead up" in result.stderr
    assert "--kubeconfig" in result.stderr

"""Where a verb goes: what was typed, what surrounds it, and a cluster that nobody named is only looked at."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click
import pytest

from fairlead.cli.target import Named, Target, choose
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


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "config"
    path.write_text(
        f"clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u, namespace: team}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        "current-context: x\n"
    )
    return path


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A cluster whose API server is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return kubeconfig(tmp_path, f"http://127.0.0.1:{port}")


def test_both_places_of_the_option_name_the_cluster_and_its_silence_is_told(closed: Path) -> None:
    for argv in (["--kubeconfig", str(closed), "ps"], ["ps", "--kubeconfig", str(closed)]):
        result = fairlead(*argv)
        assert result.exit_code == 6
        assert "API server at http://127.0.0.1" in result.stderr
        assert result.stderr.count("error") == 1


def test_a_cluster_that_is_only_implied_is_never_changed(closed: Path, tmp_path: Path) -> None:
    env = {"KUBECONFIG": str(closed), "FAIRLEAD_API_SOCKET": str(tmp_path / "none.sock")}
    result = fairlead("rm", "train", env=env)
    assert result.exit_code == 2
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

"""Verbs over a cluster: which one is meant, what is missing, who we are in elections, where the figures go."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import httpx
import pytest

from fairlead import errors, settings, telemetry
from fairlead.cli.core import cluster
from tests.unit.cli.conftest import fairlead

_CONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [
        {"name": name, "context": {"cluster": "c", "user": "u", "namespace": name}} for name in ("one", "two")
    ],
    "current-context": "one",
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(_CONFIG))
    return path


def _settings(**flags: object) -> settings.Settings:
    return settings.load(flags={f"cluster.{name}": value for name, value in flags.items()}, env={}, file=None)


@pytest.mark.parametrize("verb", ["scheduler", "controller"])
def test_without_any_cluster_the_next_step_is_named(verb: str, tmp_path: Path) -> None:
    answer = fairlead(verb, env={"HOME": str(tmp_path)})
    assert answer.exit_code == 6
    assert f"no kubeconfig at {tmp_path}/.kube/config, and this is not a pod" in answer.stderr
    assert "--cluster-kubeconfig" in answer.stderr


@pytest.mark.parametrize("verb", ["scheduler", "controller", "withdraw"])
def test_what_stands_before_the_verb_counts_for_processes_too(verb: str, kubeconfig: Path, tmp_path: Path) -> None:
    # The file's context is none that it has: so it was read, and that context was meant.
    named = ("--kubeconfig", str(kubeconfig), "--context", "three")
    answer = fairlead(*named, verb, env={"HOME": str(tmp_path)})
    assert answer.exit_code != 0
    assert "three" in answer.stderr
    assert "no kubeconfig at" not in answer.stderr


@pytest.mark.parametrize("name", ["kubeconfig", "context"])
def test_two_clusters_for_one_call_are_refused_by_name(name: str, kubeconfig: Path, tmp_path: Path) -> None:
    other = {"kubeconfig": str(tmp_path / "other"), "context": "two"}[name]
    one = {"kubeconfig": str(kubeconfig), "context": "one"}[name]
    answer = fairlead(f"--{name}", one, "scheduler", f"--cluster-{name}", other, env={"HOME": str(tmp_path)})
    assert answer.exit_code == 2
    assert f'--{name} "{one}" stands before the verb and --cluster-{name} "{other}" after it' in answer.stderr


def test_one_cluster_that_is_named_twice_is_taken(kubeconfig: Path, tmp_path: Path) -> None:
    named = ("--kubeconfig", str(kubeconfig), "--context", "three")
    twice = ("--cluster-kubeconfig", str(kubeconfig), "--cluster-context", "three")
    answer = fairlead(*named, "scheduler", *twice, env={"HOME": str(tmp_path)})
    assert "stands before the verb" not in answer.stderr
    assert "three" in answer.stderr


def test_a_kubeconfig_that_is_named_and_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable) as refused:
        cluster.access(_settings(kubeconfig=tmp_path / "none"))
    assert refused.value.reason == "CredentialsUnreadable"


def test_the_context_is_the_files_unless_one_is_named(kubeconfig: Path) -> None:
    assert cluster.access(_settings(kubeconfig=kubeconfig)).namespace == "one"
    assert cluster.access(_settings(kubeconfig=kubeconfig, context="two")).namespace == "two"


async def test_a_store_is_opened_without_asking_the_server(kubeconfig: Path) -> None:
    async with cluster.opened(_settings(kubeconfig=kubeconfig)) as store:
        assert store is not None


def test_two_processes_are_never_the_same_candidate() -> None:
    assert cluster.identity(_settings()) != cluster.identity(_settings())
    assert cluster.identity(_settings(identity="me")) == "me"


async def test_without_an_address_nothing_is_served_and_nothing_counted() -> None:
    async with cluster.monitored(_settings()) as monitor:
        assert monitor.meter is telemetry.UNMETERED


async def test_probes_and_figures_are_served_while_the_block_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    client = httpx.AsyncClient(base_url=f"http://{address}", trust_env=False)
    async with cluster.monitored(_settings(monitor=address)) as monitor, client:
        assert (await client.get("/readyz")).text == "starting\n"
        monitor.check = lambda: ""
        monitor.meter.add(telemetry.DECISIONS, "bound")
        assert (await client.get("/readyz")).status_code == 200
        assert 'decisions_total{result="bound"} 1.0' in (await client.get("/metrics")).text
    with pytest.raises(OSError, match="Connect"):
        await asyncio.open_connection(*address.split(":"))


def test_an_address_that_is_none_is_refused_before_anything_runs(kubeconfig: Path) -> None:
    answer = fairlead("scheduler", f"--cluster-kubeconfig={kubeconfig}", "--cluster-monitor=nowhere", env={})
    assert (answer.exit_code, '"nowhere" is not an address' in answer.stderr) == (2, True)

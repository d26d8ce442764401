"""A service that dies at each step of a tenancy's making, ending or trial leaves nothing over, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from home import Home

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables"),
]
MAKING = ("namespace-made", "network-made", "rules-written", "quota-applied")
ENDING = ("volumes-removed", "namespace-removed", "network-removed", "credentials-removed")


def _networks(home: Home) -> list[str]:
    every = home.podman("network", "ls", "--format", "{{.Name}}").split()
    return [one for one in every if one.startswith(f"fl-{home.mark()}-")]


def _rules(home: Home) -> list[str]:
    found = []
    for program in ("iptables-save", "ip6tables-save"):
        text = subprocess.run((program, "-t", "mangle"), capture_output=True, text=True, check=True).stdout
        found += [line for line in text.splitlines() if f"FL-{home.mark()}" in line]
    return found


def _dies(home: Home, point: str) -> None:
    def died() -> bool:
        assert home.process is not None
        return home.process.poll() is not None

    home.until(died, what=f"it dies at {point}", timeout_s=60)


def _tenancies(home: Home) -> list[str]:
    return home.ok("tenancy", "list", "-o", "name").out.split()


def _is_ready(home: Home, name: str) -> bool:
    return bool(json.loads(home.ok("tenancy", "show", name, "-o", "json").out)["phase"] == "Ready")


def _folders(home: Home) -> list[str]:
    return [path.name for path in (home.state / "volumes").glob("t-*")]


def _containers(home: Home) -> list[str]:
    return [item["name"] for item in home.ask("/v1/containers?all=true")["items"]]


def _left(home: Home) -> str:
    """Return what there is of tenancies; empty: nothing."""
    found = (_tenancies(home), _networks(home), _rules(home), home.containers(), _containers(home), _folders(home))
    return ", ".join(str(part) for part in found if part)


def _end(home: Home, name: str) -> None:
    home("tenancy", "delete", name)
    home.until(lambda: not _left(home), what="nothing is left", detail=lambda: _left(home), timeout_s=60)


@pytest.mark.parametrize("point", MAKING)
def test_a_tenancy_that_was_being_made_is_ready_once_and_isolated_after_a_restart(home: Home, point: str) -> None:
    home.up(FAIRLEAD_DEBUG_CRASH_AT=f"tenancy.{point}")
    home("tenancy", "create", "red", timeout_s=120)
    _dies(home, point)
    home.up()
    home.until(lambda: _is_ready(home, "red"), what="it is ready", timeout_s=60)
    assert len(_networks(home)) == 1
    done = home("tenancy", "test", "red", timeout_s=120)
    assert done.code == 0, done.out
    _end(home, "red")


@pytest.mark.parametrize("point", ENDING)
def test_a_tenancy_that_was_being_deleted_is_gone_whole_after_a_restart(home: Home, point: str) -> None:
    home.up()
    home.ok("tenancy", "create", "red", "--gpus", "2")
    home.start("box", "-T", "red", "-g", "1", "-v", "data:/data")
    home.down("--keep")
    home.up(FAIRLEAD_DEBUG_CRASH_AT=f"tenancy.{point}")
    home("tenancy", "delete", "red", timeout_s=120)
    _dies(home, point)
    home.up()
    home.until(lambda: not _left(home), what="nothing is left", detail=lambda: _left(home), timeout_s=60)
    home.until(lambda: home.free_gpus() == 8, what="its GPUs are free")
    home.ok("tenancy", "create", "red")
    home.start("box", "-T", "red", "-v", "data:/data", command=("sh", "-c", "ls -A /data; exec sleep 1000"))
    assert home.ok("logs", "-T", "red", "box").out == ""
    _end(home, "red")


def test_a_trial_that_was_cut_off_does_not_keep_its_tenancy_from_ending(home: Home) -> None:
    home.up(FAIRLEAD_DEBUG_CRASH_AT="tenancy.trial-begun")
    home.ok("tenancy", "create", "red")
    home("tenancy", "test", "red", timeout_s=120)
    _dies(home, "trial-begun")
    home.up()
    _end(home, "red")
    probes = home.podman("ps", "-a", "-q", "--filter", f"label=fairlead.dev/probe={home.mark()}").split()
    assert probes == []

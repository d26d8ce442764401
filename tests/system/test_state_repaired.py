"""The page `recover-state.md`, carried out as printed where the database was damaged under a running container."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.timeout(120)]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "recover-state.md"


def commands() -> list[str]:
    """Return the page's lines of commands: check, then repair and check."""
    return "".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)).splitlines()


def carry_out(home: Home, line: str) -> subprocess.CompletedProcess[str]:
    line = re.sub(r"^fairlead ", f"{sys.executable} -m fairlead.cli.main ", line)
    return subprocess.run(("sh", "-c", line), env=home.env, capture_output=True, text=True, check=False, timeout=60)


def lose_the_database(home: Home) -> str:
    """Start a container, kill the service and overwrite its database; return the folder's identity."""
    home.up()
    home.start("kept", "-g", "1")
    home.kill()
    for file in home.state.glob("state.db*"):  # the log as well: it alone can hold everything
        file.write_bytes(b"not a database" * 400)
    return (home.state / "kubelet" / "home-id").read_text().strip()


def running(home: Home, owner: str) -> set[str]:
    """Return the running containers of one identity of the state folder."""
    return set(home.podman("ps", "--quiet", "--filter", f"label=fairlead.dev/home={owner}").split())


@pytest.mark.slow
def test_after_the_page_the_service_starts_and_the_containers_run_on(home: Home) -> None:
    owner = lose_the_database(home)
    before = running(home, owner)
    check, repair, again = commands()
    assert carry_out(home, check).returncode == 8
    repaired = carry_out(home, repair)
    assert repaired.returncode == 0, repaired.stderr
    assert carry_out(home, again).returncode == 0
    listing = re.search(r"^list them: (podman .*)$", repaired.stdout, re.MULTILINE)
    assert listing
    assert all(id_ in carry_out(home, listing[1]).stdout for id_ in before)
    try:
        home.up()
        home.start("new", "-g", "1")  # by now the kubelet has seen every container and every pod
        assert running(home, owner) == before
        home.rm("new")
    finally:
        home.podman("rm", "--force", "--time", "0", *before)


@pytest.mark.slow
def test_containers_of_the_lost_database_go_when_asked_for(home: Home) -> None:
    owner = lose_the_database(home)
    assert running(home, owner)
    home.ok("state", "repair", "--remove-containers")
    home.up()
    home.until(lambda: not running(home, owner), what="they are removed", timeout_s=30)


def test_state_repair_is_refused_while_the_service_runs(home: Home) -> None:
    home.up()
    refused = home("state", "repair")
    assert (refused.code, "in use by another fairlead" in refused.err) == (4, True)
    assert home("state", "check").code == 0

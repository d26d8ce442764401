"""Programs that Fairlead did not start, on a machine as a person uses it: seen, waited for, ended, and named."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import Home

from tests import outsider

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(240)]

OPEN = "import os, sys, time; os.open(sys.argv[1], os.O_PATH); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OPEN}"


def node(home: Home, gpu: int) -> Path:
    (found,) = home.state.glob(f"**/dev/nvidia{gpu}")
    return found


@pytest.fixture
def machine(home: Home) -> Iterator[Home]:
    home.up()
    yield home
    home("rm", "-f", "--grace", "0", "one", "all", "two")
    home.down()


def neighbours(home: Home, gpu: int) -> list[dict[str, object]]:
    return next(one["neighbours"] for one in home.ask("/v1/gpus")["gpus"] if one["gpu"]["index"] == gpu)


def waits(home: Home, name: str) -> str:
    return str((home.show(name).get("waiting") or {}).get("message", ""))


def test_a_persons_python_keeps_its_gpu_is_named_and_is_ended_on_demand(machine: Home) -> None:
    with outsider.running(sys.executable, "-c", OPEN, str(node(machine, 3))) as one:
        machine.until(lambda: neighbours(machine, 3) != [], what="the program is seen", timeout_s=20)
        (shown,) = neighbours(machine, 3)
        assert (shown["pid"], shown["user"], shown["use"], shown["keeps"]) == (one.pid, "root", "open", True)
        assert "python" in str(shown["name"])
        machine.ok("run", "-d", "--name", "all", "-g", "8", machine.image, "--", "sleep", "600")
        machine.until(
            lambda: "GPU 3 is used by python" in waits(machine, "all"), what="the wait says who", timeout_s=20
        )
        assert f"(pid {one.pid}, user root" in waits(machine, "all")
        assert "not started by Fairlead" in waits(machine, "all")
        for verb in (("explain", "all"), ("ps", "-a", "-o", "json"), ("gpus",)):
            assert str(one.pid) in machine.ok(*verb).out, verb
        machine.ok("run", "-d", "--name", "two", "-g", "7", machine.image, "--", "sleep", "600")
        refused = machine("gpus", "--kill-foreign", "2", "--yes")
        assert "no program" in refused.err
        assert machine("gpus", "--kill-foreign", "3").code != 0  # nobody answers the question
        assert one.is_alive
        machine.rm("two")
        done = machine.ok("gpus", "--kill-foreign", "3", "--yes", "-o", "json").data
        begun = time.monotonic()
        assert [(item["pid"], item["done"], item["gpus"]) for item in done["items"]] == [(one.pid, "ended", [3])]
        machine.until(lambda: not one.is_alive, what="it has ended")
        machine.until_state("all", "running")
        assert time.monotonic() - begun < 4


def test_a_program_that_ignores_sigterm_is_killed(machine: Home) -> None:
    with outsider.running(sys.executable, "-c", STUBBORN, str(node(machine, 5))) as one:
        machine.until(lambda: neighbours(machine, 5) != [], what="the program is seen", timeout_s=20)
        done = machine.ok("gpus", "--kill-foreign", "--yes", "-o", "json").data
        assert [(item["pid"], item["done"]) for item in done["items"]] == [(one.pid, "killed")]


def test_what_the_driver_tells_is_shown_with_memory_and_graphics_keep_nothing(machine: Home) -> None:
    with outsider.running("sleep", "600") as one:
        machine.ok("simulate", "fault", "process", f"pid={one.pid},memory=20480,graphics", "--gpu", "1")
        machine.until(lambda: neighbours(machine, 1) != [], what="the program is seen", timeout_s=20)
        (shown,) = neighbours(machine, 1)
        assert (shown["use"], shown["keeps"], shown["memory_bytes"]) == ("graphics", False, 20480 << 20)
        assert "20 GiB" in machine.ok("gpus", "-o", "wide").out
        machine.start("all", "-g", "8")


def test_a_container_of_podman_by_hand_is_named(machine: Home) -> None:
    name = f"byhand-{machine.folder.name[-12:].lower().replace('_', '-')}"
    argv = (
        "podman",
        "--runtime",
        "runc",
        "run",
        "-d",
        "--ulimit",
        "host",
        "--name",
        name,
        "--device",
        f"{node(machine, 7)}:/dev/nvidia7",
    )
    done = subprocess.run(
        (*argv, machine.image, "sh", "-c", "sleep 600 < /dev/nvidia7"), capture_output=True, text=True, check=False
    )
    try:
        if done.returncode:
            pytest.skip(f"podman runs nothing by hand here: {done.stderr[-300:]}")
        machine.until(lambda: neighbours(machine, 7) != [], what="the container is seen", timeout_s=20)
        shown = neighbours(machine, 7)
        assert {one["container"] for one in shown} == {f"podman container {name}"}
    finally:
        subprocess.run(("podman", "rm", "-f", "-t", "0", name), capture_output=True, check=False)


def test_share_gives_the_gpu_away_beside_its_neighbour(home: Home) -> None:
    home.up(FAIRLEAD_LEASE_NEIGHBOURS="share")
    try:
        # A program that is there before the ledger has looked at the GPU is an opener where the first process of the
        # machine cannot be read, as in a sandbox.
        home.until(lambda: {one["lease"] for one in home.ask("/v1/gpus")["gpus"]} == {"Free"}, what="all are free")
        with outsider.running(sys.executable, "-c", OPEN, str(node(home, 0))):
            home.until(lambda: neighbours(home, 0) != [], what="the program is seen", timeout_s=20)
            assert not neighbours(home, 0)[0]["keeps"]
            home.start("all", "-g", "8")
    finally:
        home("rm", "-f", "--grace", "0", "all")
        home.down()

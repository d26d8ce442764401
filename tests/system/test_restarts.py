"""Parts that die and come back: nothing is lost, nothing is held twice, what runs goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from home import COMMAND, Home

pytestmark = pytest.mark.podman

POINTS = (
    "scheduler.before-bind",
    "scheduler.after-bind",
    "devicemanager.before-checkpoint",
    "devicemanager.after-checkpoint",
    "kubelet.after-admit",
    "kubelet.before-create",
    "kubelet.after-create",
    "kubelet.before-start",
    "kubelet.after-start",
    "kubelet.before-stop",
    "kubelet.after-stop",
    "devicemanager.before-free",
    "devicemanager.after-free",
    "kubelet.before-remove",
    "kubelet.after-remove",
    "kubelet.before-forget",
)
IN_THE_GATE = ("devicemanager.after-checkpoint", "kubelet.after-start")
"""One on each side of the engine's start."""


def test_the_kubelet_killed_under_a_running_container(home: Home) -> None:
    home.up()
    home.start("steady", "-g", "3")
    before = home.show("steady")
    first = home.kubelet_pid()
    os.kill(first, signal.SIGKILL)
    home.until(lambda: home.log().count('"kubelet ended') == 1, what="the kubelet's end is noticed")
    home.until(lambda: home.kubelet_pid() not in {0, first}, what="another kubelet runs")
    home.until(lambda: home.allocatable() == 8, what="the plugin registered again")
    after = home.show("steady")
    assert after["state"] == "running"
    assert after["gpu_ids"] == before["gpu_ids"]
    assert home.run("-g", "5", "--rm", "--", "true").code == 0
    home.ok("run", "-d", "-g", "6", "--name", "toomany", home.image, "--", "true")
    home.until(lambda: "too few GPUs free" in home.ok("explain", "toomany").out, what="the held GPUs are still counted")


def test_the_service_killed_under_a_running_container(home: Home) -> None:
    home.up()
    home.start("steady", "-g", "3", command=("sh", "-c", "echo alive; exec sleep 1000"))
    before, [old] = home.show("steady"), home.containers()
    home.kill()
    [meanwhile] = home.containers()
    assert meanwhile["State"] == "running"
    home.up()
    home.until(lambda: home.allocatable() == 8, what="the plugin registered")
    after, [new] = home.show("steady"), home.containers()
    assert (after["state"], after["gpu_ids"], after["restarts"]) == ("running", before["gpu_ids"], 0)
    assert new["Id"] == old["Id"]
    assert "alive" in home.ok("logs", "steady").out
    home.rm("steady")
    home.until(lambda: home.free_gpus() == 8, what="all GPUs are free")


def test_down_removes_all_and_leaves_nothing(home: Home) -> None:
    home.up()
    home.start("one", "-g", "1")
    home.down("--grace", "0")
    assert home.containers() == []
    # What libraries would write beside our own lines, such as gRPC's word that a connection ends.
    assert [line for line in home.log().splitlines() if re.match(r"[IWEF]\d{4} ", line)] == []


def test_a_second_service_on_one_state_folder_is_refused(home: Home) -> None:
    home.up()
    result = home("up", "--simulate", "h100x8")
    assert result.code == 4
    assert "in use by another fairlead" in result.err


def test_without_gpus_and_without_simulation_it_says_so(home: Home) -> None:
    result = home("up")
    if result.code == 0:
        pytest.skip("this machine has GPUs")
    assert result.code == 6
    assert "no GPU was found" in result.err
    assert "--simulate" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [pytest.param(one, marks=[pytest.mark.smoke] if one in IN_THE_GATE else []) for one in POINTS]
)
def test_killed_between_any_two_steps(home: Home, point: str) -> None:
    home.up()
    home.start("bystander", "-g", "2")
    before, [kept] = home.show("bystander"), home.containers()
    home.down("--keep")
    home.up(FAIRLEAD_DEBUG_CRASH_AT=point)
    run = (*COMMAND, "run", "-d", "-g", "2", "--name", "victim", home.image, "--", "sleep", "1000")
    with subprocess.Popen(run, env=home.env, stdout=subprocess.DEVNULL) as submitting:
        if is_ending(point):
            assert submitting.wait(50) == 0
            home.until_state("victim", "running")
            home("rm", "-f", "--grace", "0", "--no-wait", "victim")
        home.until(lambda: died(home), what=f"it dies at {point}")
        if home.process is not None and home.process.poll() is None:
            home.kill()

        home.up()
        submitting.wait(50)  # what the kill broke off is sent again
    home.until(lambda: home.allocatable() == 8, what="the plugin registered")
    if is_ending(point):
        home("rm", "-f", "--grace", "0", "victim")
        home.until(lambda: "victim" not in home.ok("ps", "-a", "-o", "name").out, what="the victim is gone")
    elif "victim" in home.ok("ps", "-a", "-o", "name").out:
        home.until_state("victim", "running")
    else:  # it died before the pod was stored
        home.ok("run", "-d", "-g", "2", "--name", "victim", home.image, "--", "sleep", "1000")
        home.until_state("victim", "running")
    after = home.show("bystander")
    assert (after["state"], after["gpu_ids"]) == ("running", before["gpu_ids"])
    assert kept["Id"] in {item["Id"] for item in home.containers()}
    # What the node offers may be of its life before: the plugin registers again beside all this.
    free = 6 if is_ending(point) else 4
    home.until(lambda: home.free_gpus() == free, what=f"{free} GPUs are free")
    assert len(home.containers()) == (1 if is_ending(point) else 2)
    assert home.run("-g", str(free), "--rm", "--", "true").code == 0


RESTART_POINTS = tuple(
    f"replacement.{step}" for step in ("after-store", "after-mark", "after-delete", "before-submit", "after-submit")
)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", RESTART_POINTS)
def test_a_service_that_dies_in_a_restart_leaves_it_to_the_next_one(home: Home, point: str) -> None:
    home.up(FAIRLEAD_DEBUG_CRASH_AT=point)
    home.start("victim", "-g", "2", "-e", "LEFT=1", command=("sh", "-c", "echo $LEFT; exec sleep 1000"))
    before = home.show("victim")
    home("restart", "--time", "0", "victim")
    home.until(lambda: died(home), what=f"it dies at {point}")
    home.up()

    def replaced() -> bool:
        listed = home.ask("/v1/containers?all=true")["items"]
        return [(one["name"], one["uid"] == before["uid"]) for one in listed] == [("victim", False)]

    home.until(replaced, what="another one took its place")
    home.until_state("victim", "running")
    home.until(lambda: home.ok("logs", "victim").out == "1\n", what="it began from its image with what it was given")
    assert home.free_gpus() == 6
    assert len(home.containers()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", ["engine.created", "kubelet.before-start"])
def test_a_delete_that_meets_a_container_that_never_started_frees_its_gpus(home: Home, point: str) -> None:
    home.up(FAIRLEAD_DEBUG_CRASH_AT=point)
    home("run", "-d", "-g", "8", "--name", "victim", home.image, "--", "sleep", "1000")
    home.until(lambda: died(home), what=f"it dies at {point}")
    home("rm", "-f", "--grace", "0", "--no-wait", "victim")
    home.kill()
    home.up()
    home.until(lambda: home.allocatable() == 8 and home.free_gpus() == 8, what="all GPUs are free")
    assert home.containers() == []


@pytest.mark.slow
def test_a_container_that_was_never_initialised_is_read_back_before_its_start(home: Home) -> None:
    home.up(FAIRLEAD_DEBUG_CRASH_AT="engine.created")
    home("run", "-d", "-g", "2", "--name", "victim", home.image, "--", "sleep", "1000")
    home.until(lambda: died(home), what="it dies between podman's database and the runtime's create")
    home.kill()
    [lost] = home.containers()
    home.up()
    home.until_state("victim", "running")
    [made] = home.containers()
    assert made["Id"] != lost["Id"]
    entries = home.ok("trace", "victim", "-o", "json").data["entries"]
    reasons = [entry["step"]["reason"] for entry in entries if entry["step"]]
    assert reasons.index("ContainerRemade") < reasons.index("IsolationRead") < reasons.index("ContainerStarted")


def is_ending(point: str) -> bool:
    """Whether the point lies on the way down."""
    return POINTS.index(point) >= POINTS.index("kubelet.before-stop")


def died(home: Home) -> bool:
    assert home.process is not None
    return home.process.poll() is not None or '"kubelet ended' in home.log()

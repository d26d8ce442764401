"""Tenancies with the real engine and the real kernel: packets are tried from inside containers, and refused.

Every test can be repeated on what its first try left: containers are removed after each test, tenancies stay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from home import Home, machine_of_tenancies

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables"),
]
_SHUT = ("red", "blue")
_LISTEN = ("sh", "-c", "nc -ll -p 7000 -e echo heard & exec sleep 1000")


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service with the tenancies `red` and `blue`; nothing of it is left afterwards."""
    # The rules are looked at again after an hour: who takes them away is noticed by nobody but the tests.
    with machine_of_tenancies(image, FAIRLEAD_CONTROL_TENANCY_RESYNC_S="3600") as home:
        home.up()
        for name in _SHUT:
            home.ok("tenancy", "create", name, "--gpus", "4")
        yield home


def _table(family: str = "iptables") -> str:
    return subprocess.run((f"{family}-save", "-t", "mangle"), capture_output=True, text=True, check=True).stdout


def _start(home: Home, tenancy: str, name: str, *options: str) -> dict[str, str]:
    """Start a container that listens on port 7000; return its addresses by family."""
    home.ok("run", "-d", "-T", tenancy, "--name", name, *options, home.image, "--", *_LISTEN)
    home.until_state(name, "running")
    home.until(lambda: bool(home.show(name)["addresses"]), what=f"{name} has an address")
    found = {"IPv6" if ":" in one else "IPv4": one for one in home.show(name)["addresses"]}
    home.until(lambda: _hears(home, name, "127.0.0.1"), what=f"{name} listens")
    return found


def _hears(home: Home, name: str, address: str, port: int = 7000) -> bool:
    """Return whether the listener at an address answers a program inside a container."""
    labels = {one["Id"]: one["Labels"]["io.kubernetes.pod.name"] for one in home.containers()}
    identity = next(key for key, pod in labels.items() if pod == name)
    argv = ("podman", "exec", identity, "nc", "-w", "1", address, str(port))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    return "heard" in done.stdout


@pytest.mark.timeout(180)
def test_packets_pass_inside_a_tenancy_and_nowhere_across_in_both_directions_and_families(machine: Home) -> None:
    red, near = _start(machine, "red", "red-one"), _start(machine, "red", "red-two")
    blue = _start(machine, "blue", "blue-one")
    for family in red:
        assert _hears(machine, "red-one", near[family]), f"not even inside, {family}"
        assert not _hears(machine, "red-one", blue[family]), family
        assert not _hears(machine, "blue-one", red[family]), family
    assert _hears(machine, "red-one", "red-two"), "its name is not resolved"
    assert not _hears(machine, "blue-one", "red-two"), "another tenancy's names are"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_test_of_a_tenancy_tries_every_border_and_says_that_it_is_isolated(machine: Home) -> None:
    done = machine("tenancy", "test", "red", "-o", "json")
    found: dict[str, Any] = done.data
    tried = {(one["source"], one["target"], one["family"]) for one in found["attempts"]}
    assert done.code == 0, done.out
    assert {("red", "blue", "IPv4"), ("blue", "red", "IPv4"), ("red", "the host, as gateway", "IPv4")} <= tried
    assert found["is_isolated"]
    assert "is isolated" in machine("tenancy", "test", "blue").out


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_a_tenancy_without_its_rules_is_called_not_isolated_and_starts_nothing_until_they_are_back(
    machine: Home,
) -> None:
    mark = machine.mark()
    for family in ("iptables", "ip6tables"):
        _delete = (family, "-t", "mangle", "-D", "FORWARD", "-j", f"FL-{mark}-FWD")
        subprocess.run(_delete, check=True, capture_output=True)
    try:
        done = machine("tenancy", "test", "red")
        assert done.code == 1, done.out
        assert "NOT ISOLATED" in done.out

        command = (machine.image, "--", "sleep", "1000")
        machine.ok("run", "-d", "-T", "red", "--name", "held", *command)

        def says() -> str:
            return str(machine.show("held"))

        machine.until(lambda: "NetworkNotIsolated" in says(), what="it is held back", detail=says)
        assert machine.show("held")["state"] != "running"
    finally:
        # Whatever changes a tenancy has the rules of all of them written anew.
        machine.ok("tenancy", "suspend", "blue")
        machine.ok("tenancy", "resume", "blue")
    machine.until_state("held", "running")
    assert machine("tenancy", "test", "red").code == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_rules_are_there_again_after_the_service_was_killed_and_they_were_flushed(machine: Home) -> None:
    machine.kill()
    for family in ("iptables", "ip6tables"):
        for chain in ("FORWARD", "INPUT"):
            target = f"FL-{machine.mark()}-{'FWD' if chain == 'FORWARD' else 'IN'}"
            subprocess.run((family, "-t", "mangle", "-D", chain, "-j", target), check=True, capture_output=True)
    machine.up()
    machine.until(lambda: f"-A FORWARD -j FL-{machine.mark()}-FWD" in _table("ip6tables"), what="the rules are back")
    done = machine("tenancy", "test", "red")
    assert done.code == 0, done.out
    _start(machine, "red", "after")


@contextlib.contextmanager
def _outsider() -> Iterator[tuple[str, str]]:
    """A network namespace that is another machine on a wire to this one; give its name and our address on the wire."""
    name, wire = f"fl-out-{os.getpid()}", f"flo{os.getpid()}"
    subprocess.run(("ip", "netns", "add", name), check=True, capture_output=True)
    try:
        inside = ("ip", "-n", name)
        for argv in (
            ("ip", "link", "add", wire, "type", "veth", "peer", "name", "wire", "netns", name),
            ("ip", "addr", "add", "198.18.77.1/30", "dev", wire),
            ("ip", "link", "set", wire, "up"),
            (*inside, "addr", "add", "198.18.77.2/30", "dev", "wire"),
            (*inside, "link", "set", "wire", "up"),
            (*inside, "route", "add", "default", "via", "198.18.77.1"),
        ):
            subprocess.run(argv, check=True, capture_output=True)
        yield name, "198.18.77.1"
    finally:
        subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


def _connects(namespace: str, address: str, port: int) -> bool:
    argv = ("ip", "netns", "exec", namespace, "busybox", "nc", "-w", "1", address, str(port))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    return "heard" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_published_port_leads_in_only_where_the_tenancy_allows_it(machine: Home) -> None:
    with contextlib.suppress(AssertionError):
        machine.ok("tenancy", "create", "closed", "--no-publish", "--no-dns")
    door = _start(machine, "closed", "door", "-p", "27000:7000")["IPv4"]
    _start(machine, "red", "open", "-p", "27001:7000")
    _start(machine, "blue", "asker")
    with _outsider() as (outside, host):
        assert _connects(outside, host, 27001), "a published port does not lead in"
        assert not _connects(outside, host, 27000), "a port leads in although the tenancy publishes none"
        assert not _connects(outside, door, 7000), "a container is reached past its published ports"
    gateway = machine.ask("/v1/tenancies/blue")["network"]["gateways"][0]
    assert not _hears(machine, "asker", gateway, 27001), "another tenancy reaches a published port"
    tried = machine("tenancy", "test", "closed", "-o", "json").data["attempts"]
    assert [one["reached"] for one in tried if "DNS" in one["target"]] == [False, False]


def test_a_tenancy_may_not_hold_more_than_its_quota(machine: Home) -> None:
    done = machine("run", "-d", "-T", "red", "-g", "5", machine.image, "--", "true")
    assert done.code == 3
    assert 'the quota "tenancy" allows: 5 GPUs asked' in done.err


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_limits_that_are_changed_hold_for_the_next_container_and_end_none(machine: Home) -> None:
    machine.start("two", "-T", "red", "-g", "2")
    lowered = machine.ok("tenancy", "set", "red", "--gpus", "1", "--quota", "pods=20")
    assert "gpu: 2 used of 1: what runs goes on, new containers are refused until it fits" in lowered.err
    assert machine.show("two")["state"] == "running"
    refused = machine("run", "-d", "-T", "red", "-g", "1", machine.image, "--", "true")
    assert refused.code != 0
    assert "more than the quota" in refused.err
    raised = machine.ok("tenancy", "set", "red", "--gpus", "4", "--no-limit", "pods", "-o", "json")
    assert list(raised.data[0]["quota"].values()) == ["4"]
    assert raised.err == ""
    machine.start("more", "-T", "red", "-g", "1")
    for wrong in ((), ("--gpus", "1", "--no-limit", "gpus")):
        assert machine("tenancy", "set", "red", *wrong).code == 2


def test_a_suspended_tenancy_stops_and_accepts_nothing(machine: Home) -> None:
    _start(machine, "red", "worker")
    machine.ok("tenancy", "suspend", "red")
    try:
        machine.until_state("worker", "stopped")
        done = machine("run", "-d", "-T", "red", machine.image, "--", "true")
        assert "suspended" in done.err
    finally:
        machine.ok("tenancy", "resume", "red")
    machine.until(lambda: machine.ask("/v1/tenancies/red")["phase"] == "Ready", what="red is ready again")


@pytest.mark.timeout(180)
def test_a_name_that_is_used_again_inherits_nothing(machine: Home) -> None:
    machine("tenancy", "delete", "again")
    machine.ok("tenancy", "create", "again", "--quota", "pods=1")
    machine.ok(
        "run", "-T", "again", "--name", "writer", "-v", "data:/data", machine.image, "--", "touch", "/data/secret"
    )
    first = machine.ask("/v1/tenancies/again")
    machine.ok("tenancy", "delete", "again")
    listed = machine.podman("network", "ls", "--format", "{{.Name}}")
    assert first["network"]["name"] not in listed
    assert first["network"]["interface"] not in _table().replace("\n", " ").split()
    assert not any((machine.state / "volumes").rglob("secret"))

    machine.ok("tenancy", "create", "again", "--quota", "pods=1")
    second = machine.ask("/v1/tenancies/again")
    assert second["namespace"] != first["namespace"]
    done = machine("run", "-T", "again", "--name", "reader", "-v", "data:/data", machine.image, "--", "ls", "/data")
    assert (done.code, done.out) == (0, ""), done
    machine.ok("tenancy", "delete", "again")
    assert machine("tenancy", "show", "again").code == 2

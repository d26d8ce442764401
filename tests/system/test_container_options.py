"""What docker users ask of a container beside its GPUs, carried out by podman and seen from inside."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman


def _mounts(service: Home, name: str) -> dict[str, int]:
    """Return the size in KiB of each mount that the container sees, by path."""
    lines = service.ok("exec", name, "--", "df", "-k").out.splitlines()[1:]
    rows = [line.split() for line in lines if len(line.split()) == 6]
    return {row[5]: int(row[1]) for row in rows}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_memory_has_the_size_that_is_asked_for_and_ends_with_the_container(service: Home) -> None:
    service.start("sized", "--shm-size", "96m", "--tmpfs", "/scratch:size=8m")
    sizes = _mounts(service, "sized")
    assert (sizes["/dev/shm"], sizes["/scratch"]) == (96 * 1024, 8 * 1024)
    full = service("exec", "sized", "--", "sh", "-c", "head -c 9000000 /dev/zero > /scratch/a")
    assert full.code != 0
    folder = service.folder / "state" / "pods"
    held = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    assert len(held) == 2
    service.rm("sized")
    service.until(
        lambda: str(folder) not in Path("/proc/mounts").read_text(), what="the memory is given back", timeout_s=10
    )


def test_shared_memory_is_generous_with_gpus(service: Home) -> None:
    service.start("shared", "-g", "1")
    assert _mounts(service, "shared")["/dev/shm"] > 1024 * 1024
    service.rm("shared")


def test_a_port_of_the_host_leads_into_the_container(service: Home) -> None:
    number = _free_port()
    serve = "mkdir -p /www; echo within > /www/index.html; exec httpd -f -p 80 -h /www"
    service.start("web", "-p", f"127.0.0.1:{number}:80", command=("sh", "-c", serve))
    shown = service.show("web")
    assert shown["ports"] == [f"127.0.0.1:{number}->80/tcp"]

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/", timeout=2) as answer:
                return bool(answer.read() == b"within\n")
        except OSError:
            return False

    service.until(answers, what="the port answers", timeout_s=15)
    service.ok("run", "-d", "--name", "late", "-p", f"127.0.0.1:{number}:80", service.image, "--", "true")
    service.until(
        lambda: "a port that it asks for is taken" in service.ok("explain", "late").out,
        what="the second says what it waits for",
    )
    service.rm("web")
    service.until_state("late", "succeeded")
    service.rm("late")


def test_a_container_ends_when_its_time_is_up(service: Home) -> None:
    started = time.monotonic()
    result = service.run("--name", "brief", "--timeout", "2", "--stop-timeout", "0", "--", "sleep", "1000")
    assert result.code != 0
    assert "DeadlineExceeded" in result.err
    assert time.monotonic() - started < 40
    service.rm("brief")


def test_names_and_variables_are_those_that_were_asked_for(service: Home, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("A=from file\n")
    words = ("--hostname", "trainer", "--env-file", str(file), "-e", "PATH")
    result = service.run("--rm", *words, "--", "sh", "-c", 'hostname; echo "$A"; echo "$PATH"')
    lines = result.out.splitlines()
    assert lines[:2] == ["trainer", "from file"]
    assert lines[2] == service.env["PATH"]


def test_a_relative_folder_of_ours_is_mounted(service: Home) -> None:
    # The command line runs where the tests do: the checkout.
    result = service.run("--rm", "-v", "./docs:/docs:ro", "--", "sh", "-c", "ls /docs; touch /docs/x")
    assert re.search(r"\bdesign\b", result.out)
    assert "Read-only" in result.out + result.err


def test_what_ended_goes_on_under_another_name_with_its_output_and_its_gpus_anew(service: Home) -> None:
    service.start("old", "-g", "1", command=("sh", "-c", "echo first; sleep 1000"))
    refused = service("rename", "old", "new")
    assert (refused.code, "fairlead stop old; fairlead rename old new" in refused.err) == (4, True), refused
    service.ok("stop", "-t", "0", "old")
    service.until_state("old", "stopped")
    before = service.show("old")["uid"]
    assert service.ok("rename", "old", "new").out == "new\n"
    assert service.show("new")["uid"] == before
    assert service.ok("logs", "new").out == "first\n"
    assert 'renamed from "old" to "new"' in service.ok("trace", "new").out
    service.start("old", command=("sleep", "1000"))  # its name is free
    service.kill()
    service.up()
    assert service.ok("logs", "new").out == "first\n"
    service.ok("start", "new")
    assert service.until_state("new", "running")["gpu_ids"]
    service.rm("old", "new")


def test_what_waits_is_placed_under_its_new_name(service: Home) -> None:
    service.start("holder", "-g", "8")
    service.ok("run", "-d", "--name", "waits", "-g", "1", service.image, "--", "sleep", "1000")
    service.until_state("waits", "pending")
    service.ok("rename", "waits", "placed")
    service.rm("holder")
    assert service.until_state("placed", "running")["gpu_ids"]
    service.rm("placed")

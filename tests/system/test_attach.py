"""A GPU given to a running container and taken from it, as a user does it; and isolation audited and mended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.timeout(240)]

LOOK = 'for i in 0 1 2 3 4 5 6 7; do [ -e /dev/nvidia$i ] && echo "$i $( (: < /dev/nvidia$i) 2>&1)"; done; true'


def seen(home: Home, name: str) -> dict[int, str]:
    """What a process inside finds: index of each GPU's node, and what opening it says."""
    lines = home.ok("exec", name, "--", "sh", "-c", LOOK).out.splitlines()
    words = {"No such device or address": "ENXIO", "Operation not permitted": "EPERM"}
    return {int(line.split()[0]): next((b for a, b in words.items() if a in line), line) for line in lines}


def indexes(home: Home, name: str) -> set[int]:
    """Which GPUs the service says it holds."""
    gpus = {item["gpu"]["uuid"]: item["gpu"]["index"] for item in home.ok("gpus", "-o", "json").data["gpus"]}
    return {gpus[one] for one in home.show(name)["gpu_ids"]}


def audit(home: Home, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = home("isolate", "audit", *arguments, "-o", "json").data
    return found


def engine_pid(home: Home, name: str) -> int:
    rows = [one for one in home.containers() if one["Labels"]["io.kubernetes.pod.name"] == name]
    return int(rows[0]["Pid"])


def steps(home: Home, name: str) -> list[dict[str, Any]]:
    entries = home.ok("trace", name, "-o", "json").data["entries"]
    return [entry["step"] for entry in entries if entry["step"] is not None]


def test_a_gpu_comes_and_goes_and_every_record_says_so(service: Home) -> None:
    service.start("a", "-g", "1")
    (first,) = indexes(service, "a")
    other = (first + 3) % 8

    given = service.ok("attach", "a", str(other))
    assert f"/dev/nvidia{other}: made, open() says ENXIO" in given.out
    assert seen(service, "a") == {first: "ENXIO", other: "ENXIO"}
    assert indexes(service, "a") == {first, other}
    assert service.free_gpus() == 6
    assert all(report["clean"] for report in audit(service, "a"))

    # Nobody else is given it: not by hand, and not by the scheduler.
    service.start("b", "-g", "6")
    assert indexes(service, "b") == set(range(8)) - {first, other}
    refused = service("attach", "b", str(other))
    assert (refused.code, "is held by another container" in refused.err) == (4, True), refused.err
    service.rm("b")

    taken = service.ok("detach", "a", str(first))
    assert f"/dev/nvidia{first}: removed" in taken.out
    assert seen(service, "a") == {other: "ENXIO"}
    assert indexes(service, "a") == {other}
    service.start("c", "-g", "7")
    assert seen(service, "c") == {i: "ENXIO" for i in range(8) if i != other}

    reasons = [step["reason"] for step in steps(service, "a")]
    assert [one for one in reasons if one in {"Attached", "Detached"}] == ["Attached", "Detached"]
    text = service.ok("trace", "a").out
    assert "given to box while it runs" in text
    assert re.search(rf"/dev/nvidia{first}\s+removed\s+open: ENOENT, not there", text), text
    service.rm("a", "c")
    assert service.free_gpus() == 8


def test_a_container_without_gpus_is_given_one(service: Home) -> None:
    service.start("plain")
    assert seen(service, "plain") == {}
    service.ok("attach", "plain", "4")
    assert seen(service, "plain") == {4: "ENXIO"}
    assert service.ok("exec", "plain", "--", "ls", "/dev").out.count("nvidiactl") == 1
    service.ok("detach", "plain", "4")
    assert "nvidia" not in service.ok("exec", "plain", "--", "ls", "/dev").out
    service.rm("plain")


def test_what_cannot_be_done_is_said(service: Home) -> None:
    service.start("a", "-g", "1")
    (own,) = indexes(service, "a")
    cases = [
        (("attach", "nobody", "0"), 2, 'container "nobody" not found'),
        (("attach", "a", "99"), 2, 'device "99" is none of the 8 devices'),
        (("detach", "a", str((own + 1) % 8)), 2, "is not held by a"),
    ]
    for words, code, text in cases:
        result = service(*words)
        assert (result.code, text in result.err) == (code, True), (words, result.err)
    assert seen(service, "a") == {own: "ENXIO"}
    service.rm("a")


def test_rules_that_somebody_else_changed_are_found_and_mended(service: Home) -> None:
    service.start("a", "-g", "2")
    own = indexes(service, "a")
    stranger = next(i for i in range(8) if i not in own)
    lost = min(own)
    folder = devices_cgroup(engine_pid(service, "a"))
    (folder / "devices.deny").write_text(f"c 195:{lost} rwm")
    (folder / "devices.allow").write_text(f"c 195:{stranger} rw")
    assert seen(service, "a")[lost] == "EPERM"

    found = service("isolate", "audit", "a")
    assert found.code == 4
    assert f"too wide: c 195:{stranger} rw" in found.out
    assert f"too narrow: c 195:{lost} rw" in found.out
    assert ", kubelet: " in found.out
    mended = audit(service, "a", "--repair")
    assert {f"denied c 195:{stranger} rw", f"allowed c 195:{lost} rw"} == set(mended[0]["repaired"])
    assert seen(service, "a") == dict.fromkeys(own, "ENXIO")
    assert all(report["clean"] for report in audit(service))  # of all containers of this machine
    service.rm("a")


def devices_cgroup(pid: int) -> Path:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(","):
            return Path("/sys/fs/cgroup/devices" + path)
    pytest.skip("cgroup v1 devices is not used here")

"""User namespaces of tenancies' containers, with the real engine: root inside is nobody outside.

Every test can be repeated on what its first try left.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from home import Home, machine_of_tenancies

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(shutil.which("iptables-restore") is None, reason="needs iptables"),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service with the tenancies `red` and `blue`; its folder may be passed by all, as /var/lib/fairlead may."""
    with machine_of_tenancies(image, FAIRLEAD_ENGINE_USER_NAMESPACES="always") as home:
        home.folder.chmod(0o755)
        home.up()
        for name in ("red", "blue"):
            home.ok("tenancy", "create", name, "--gpus", "4")
        yield home


def _inspected(home: Home, name: str) -> list[dict[str, Any]]:
    ids = [one["Id"] for one in home.containers() if one["Labels"]["io.kubernetes.pod.name"] == name]
    found: list[dict[str, Any]] = json.loads(home.podman("inspect", *ids))
    return found


def _first(home: Home, name: str) -> int:
    """Return the host's id of a container's root, as the kernel has it."""
    (one,) = {line for row in _inspected(home, name) for line in _map(row["State"]["Pid"])}
    inside, outside, count = (int(word) for word in one.split())
    assert (inside, count) == (0, 65536)
    return outside


def _map(pid: int) -> tuple[str, ...]:
    return tuple(Path(f"/proc/{pid}/uid_map").read_text().splitlines())


def test_root_of_a_tenancy_is_nobody_on_the_host_and_has_its_gpus_and_no_others(machine: Home) -> None:
    machine.start("red-one", "-T", "red", "-g", "2")
    machine.start("blue-one", "-T", "blue", "-g", "1")
    red, blue = _first(machine, "red-one"), _first(machine, "blue-one")
    assert red != blue
    assert min(red, blue) >= 1_879_048_192
    for name, tenancy, count in (("red-one", "red", 2), ("blue-one", "blue", 1)):
        gpus = [f"/dev/nvidia{number}" for number in range(8)]
        script = f"for gpu in {' '.join(gpus)}; do cat $gpu; done 2>&1; id -u"
        said = machine.ok("exec", "-T", tenancy, name, "--", "sh", "-c", script).out
        # ENXIO: the kernel let the open pass, and there is no driver behind it
        assert said.count("No such device or address") == count, said
        assert said.count("No such file or directory") == 8 - count, said
        assert said.splitlines()[-1] == "0"
    machine.clear()


def test_what_joins_a_tenants_container_has_its_users(machine: Home) -> None:
    """Its root is the tenant's: a pod of one container has no sandbox, so that the container itself is joined."""
    machine.start("joined", "-T", "red")
    machine.ok("debug", "-T", "red", "-c", "look", "--target", "joined", "joined", "--", "sleep", "777")
    machine.ok("exec", "-T", "red", "-c", "look", "joined", "--", "true")
    assert len(_inspected(machine, "joined")) == 2
    assert _first(machine, "joined") >= 1_879_048_192  # one for both
    machine.clear()


def test_files_of_a_tenancy_cannot_be_read_by_root_of_another_that_finds_them(machine: Home) -> None:
    write = "umask 077; echo secret > /data/file; sleep 1000"
    machine.start("keeper", "-T", "red", "-v", "data:/data", command=("sh", "-c", write))
    first = _first(machine, "keeper")
    (file,) = (machine.state / "volumes").rglob("file")
    assert file.stat().st_uid == first
    assert machine.ok("exec", "-T", "red", "keeper", "--", "cat", "/data/file").out == "secret\n"
    machine.start("thief", "-T", "blue")
    other = _first(machine, "thief")
    limits = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--network", "none")
    told = {}
    for name, ids in (("owner", first), ("other", other)):
        ranges = (f"--uidmap=0:{ids}:65536", f"--gidmap=0:{ids}:65536")
        argv = ("podman", "--runtime", "runc", "run", "--rm", *limits, *ranges, f"-v={file.parent}:/data")
        done = subprocess.run((*argv, machine.image, "cat", "/data/file"), capture_output=True, text=True, check=False)
        told[name] = done.stdout + done.stderr
    assert told["owner"] == "secret\n", told
    assert "Permission denied" in told["other"], told
    machine.clear()


def test_containers_of_one_pod_share_a_user_namespace_and_a_volume(machine: Home) -> None:
    namespace = json.loads(machine.ok("tenancy", "show", "red", "-o", "json").out)["namespace"]
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}], "image": machine.image}
    one, two = "echo heard > /shared/word; sleep 1000", "until cat /shared/word; do sleep 0.1; done; sleep 1000"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pair", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "shared", "emptyDir": {"medium": "Memory"}}],
            "containers": [
                {"name": "writer", "command": ["sh", "-c", one], **shared},
                {
                    "name": "reader",
                    "command": ["sh", "-c", two],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    **shared,
                },
            ],
        },
    }
    manifest = machine.folder / "pod.json"
    manifest.write_text(json.dumps(pod))
    machine.ok("run", "-d", "-T", "red", "-f", str(manifest))
    machine.until_state("pair", "running")
    assert len(_inspected(machine, "pair")) == 3
    assert _first(machine, "pair") >= 1_879_048_192
    machine.until(lambda: "heard" in machine("logs", "-T", "red", "pair", "-c", "reader").out, what="it was read")
    machine.clear()


def test_doctor_says_that_they_are_there(machine: Home) -> None:
    said = " ".join(machine("doctor").out.split())
    assert "containers of tenancies and users have user namespaces" in said

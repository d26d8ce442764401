"""Two tenants' containers on one machine: each may open its own GPU numbers and no others, whatever it tries.

The nodes carry NVIDIA's numbers. There is no driver for them here, so the kernel tells the cases apart by itself: ENXIO
where the device cgroup lets the open through to a driver that is not there, EPERM where it does not, ENOENT where no
node was injected. (Where a real driver is loaded the allowed ones open; the test says which it met.)

Through podman here; raw runc and crun, on both cgroup versions, in `test_isolation_runtimes.py`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import busyboximage
import pytest

from fairlead import command, settings
from fairlead.engine import port
from fairlead.engine.podman import engine as podman
from fairlead.kernel import readback
from tests import podmanhere

SPECS = Path("/var/run/cdi")
MAJOR = 195
ALL = range(8)
GRANTS = {"a": (0, 1), "b": (2, 3)}

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(
        os.geteuid() != 0 or command.find_program("podman") is None or not Path("/usr/bin/busybox").exists(),
        reason="needs root, podman and a static busybox",
    ),
    pytest.mark.skipif(
        f"{MAJOR} nvidia" in Path("/proc/devices").read_text(), reason="a real driver answers for these numbers"
    ),
]

# Opens a node the way a program would; busybox says why not on its standard error.
LOOK = r"""
try() { if (: < "$1") 2>/tmp/why; then echo "$2 OK"; else echo "$2 $(cat /tmp/why)"; fi; }
for i in 0 1 2 3 4 5 6 7; do try /dev/nvidia$i path:$i; done
mkdir -p /tmp/made
for i in 0 1 2 3 4 5 6 7; do
  mknod /tmp/made/$i c 195 $i 2>/tmp/why && try /tmp/made/$i number:$i || echo "number:$i mknod $(cat /tmp/why)"
done
"""
ERRNOS = {
    "No such device or address": "ENXIO",
    "Operation not permitted": "EPERM",
    "no such file": "ENOENT",  # ash's own wording
    "OK": "OK",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with busyboximage.imported(tmp_path_factory.mktemp("matrix"), ("sh", "sleep", "cat", "mknod", "mkdir")) as name:
        yield name


@dataclass
class Machine:
    """Eight GPU nodes in a fake root, and a CDI spec that offers them."""

    kind: str
    engine: podman.PodmanEngine
    image: str
    tag: str

    async def create(self, who: str) -> port.ContainerState:
        return await self.engine.create(
            port.ContainerSpec(
                name=f"ft-{self.tag}-{who}",
                image=self.image,
                command=("/bin/sh", "-c"),
                args=("sleep 120",),
                labels={"fairlead.test": self.tag},
                cdi_devices=tuple(f"{self.kind}={index}" for index in GRANTS[who]),
            )
        )

    async def look(self, name: str) -> dict[str, str]:
        """Return what a process inside sees, by `path:N` and `number:N`; it holds every capability, CAP_MKNOD too."""
        argv = ["podman", "exec", "--privileged", name, "/bin/sh", "-c", LOOK]
        result = await command.run(argv, env=command.base_env(), timeout_s=20)
        assert result.code == 0, result.last_line
        found = {}
        for line in result.stdout.decode().splitlines():
            key, _, text = line.partition(" ")
            if re.match(r"(path|number):\d$", key):
                found[key] = next((name for words, name in ERRNOS.items() if words in text), text)
        return found


@pytest.fixture
async def machine(image: str, tmp_path: Path) -> AsyncIterator[Machine]:
    tag = secrets.token_hex(4)
    nodes = tmp_path / "dev"
    nodes.mkdir()
    devices = []
    for index in ALL:
        os.mknod(nodes / f"nvidia{index}", 0o20666, os.makedev(MAJOR, index))
        node = {"path": f"/dev/nvidia{index}", "hostPath": str(nodes / f"nvidia{index}")}
        devices.append({"name": str(index), "containerEdits": {"deviceNodes": [node]}})
    kind = f"test{tag}.fairlead.dev/gpu"
    SPECS.mkdir(parents=True, exist_ok=True)
    spec = SPECS / f"fairlead-test-{tag}.json"
    spec.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}))
    engine = podmanhere.engine(settings.EngineSettings(network="none"))
    yield Machine(kind, engine, image, tag)
    for state in await engine.list_containers({"fairlead.test": tag}):
        await engine.remove(state.name)
    spec.unlink()


def expected(who: str) -> dict[str, str]:
    own = GRANTS[who]
    return {
        **{f"path:{index}": "ENXIO" if index in own else "ENOENT" for index in ALL},
        **{f"number:{index}": "ENXIO" if index in own else "EPERM" for index in ALL},
    }


async def read(state: port.ContainerState) -> readback.Isolation:
    assert state.pid is not None
    return await readback.read_back(
        state.pid,
        paths=tuple(f"/dev/nvidia{index}" for index in ALL),
        numbers=tuple((MAJOR, index) for index in ALL),
    )


def as_seen(found: readback.Isolation) -> dict[str, str]:
    paths = {f"path:{index}": found.opens[f"/dev/nvidia{index}"] for index in ALL}
    return {**paths, **{f"number:{index}": found.opens[f"{MAJOR}:{index}"] for index in ALL}}


async def test_each_container_opens_its_own_gpus_and_no_others(machine: Machine) -> None:
    names = {}
    for who in GRANTS:
        state = await machine.create(who)
        await machine.engine.start(state.name)
        names[who] = state.name

    assert {who: await machine.look(name) for who, name in names.items()} == {who: expected(who) for who in GRANTS}


async def test_what_is_read_back_before_the_start_is_what_the_process_then_sees(machine: Machine) -> None:
    for who, granted in GRANTS.items():
        state = await machine.create(who)

        held = await read(state)

        await machine.engine.start(state.name)
        assert as_seen(held) == await machine.look(state.name) == expected(who)
        assert held.unread == ()
        gpus = [node for node in held.nodes if node.major == MAJOR]
        assert [(node.path, node.minor) for node in gpus] == [(f"/dev/nvidia{index}", index) for index in granted]


async def test_the_rules_in_force_name_the_granted_numbers_alone(machine: Machine) -> None:
    found = await read(await machine.create("b"))
    assert sorted(rule for rule in found.rules if f" {MAJOR}:" in rule) == [f"c {MAJOR}:2 rwm", f"c {MAJOR}:3 rwm"]


async def test_reading_back_changes_nothing_in_the_container(machine: Machine) -> None:
    state = await machine.create("a")
    process = Path(f"/proc/{state.pid}")

    def snapshot() -> tuple[str, list[str], str]:
        devices = next(line for line in (process / "cgroup").read_text().splitlines() if line)
        return (
            (process / "mountinfo").read_text(),
            sorted(path.name for path in (process / "root/dev").iterdir()),
            devices,
        )

    before = snapshot()
    first, second = await read(state), await read(state)

    assert snapshot() == before
    assert first == second


async def test_a_container_without_gpus_has_none(machine: Machine) -> None:
    state = await machine.engine.create(
        port.ContainerSpec(
            name=f"ft-{machine.tag}-none",
            image=machine.image,
            args=("sleep", "60"),
            labels={"fairlead.test": machine.tag},
            env={"NVIDIA_VISIBLE_DEVICES": "all"},
        )
    )
    found = as_seen(await read(state))
    assert found == {f"path:{i}": "ENOENT" for i in ALL} | {f"number:{i}": "EPERM" for i in ALL}

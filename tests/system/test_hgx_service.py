"""A Service VM that a node runs itself, on an HGX node: the board's switches by VFIO, QEMU with KVM, vsock.

What stands in: the Fabric Manager and its library (`tests/fabricstub`), in the machine. VFIO, groups, vsock, the
kubelet's protocol, `fairlead fabric machine` and the agent are real in the node.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hgx import emulator, fabricworld, image, layout, serviceimage, tenant
from hgx.shown import hgx_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
LIMIT_S = 500
MOUNTED = tenant.MOUNTED / "service"


class World(fabricworld.World):
    """A node whose Service VM a test ends."""

    def begin(self) -> None:
        self.node.do("preload", (*fabricworld.PRELOADED, "fairlead.cli.layer.fabric.machine"))
        switches = [address for name, address in self.node.address.items() if "switch" in name or "memory" in name]
        done = self.node.fairlead("vfio", "bind", *(self.node.address[name] for name in self.names.values()), *switches)
        assert done.code == 0, done
        self.node.output("umask 077; head -c 32 /dev/urandom | base64 > /state/fabric.secret")
        self.node.output(f"echo {(serviceimage.MEMORY_MIB + 2 * tenant.MEMORY_MIB) // 2} >/proc/sys/vm/nr_hugepages")
        digest = self.node.fairlead("vfio", "image-digest", str(MOUNTED))
        assert digest.code == 0, digest
        self.env = {
            "FAIRLEAD_FABRIC_SECRET": "/state/fabric.secret",
            "FAIRLEAD_FABRIC_VM_IMAGE": digest.out.strip(),
            "FAIRLEAD_FABRIC_VM_MEMORY_MIB": str(serviceimage.MEMORY_MIB),
            "FAIRLEAD_FABRIC_VM_PROCESSORS": "1",
            "FAIRLEAD_FABRIC_VM_START_S": str(LIMIT_S),
            "FAIRLEAD_FABRIC_GUEST_DRIVER": "580.95.05",
            "FAIRLEAD_FABRIC_TIMEOUT_S": "30",
            "FAIRLEAD_LEASE_VERIFIER_EMULATOR": f"{MOUNTED}/qemu",
            "FAIRLEAD_STATE_FOLDER": "/state/fairlead",
        }
        self.node.spawn_fairlead("machine", "fabric", "machine", env=self.env)
        self.node.call("kubelet", "start")  # and the agent, beside the machine's boot
        words = ("--node-vfio", "bound", "--node-engine", "containerd://2.2.1")
        self.agent = self.node.spawn_fairlead("agent", "agent", *words, env=self.env | {"FAIRLEAD_NODE_FABRIC": "on"})
        self.wait_log("service vm lives")

    def wait_log(self, words: str, count: int = 1, *, name: str = "machine") -> list[dict[str, Any]]:
        """Wait until a program has logged an event so often; returns its records."""
        until = time.monotonic() + LIMIT_S
        while True:
            lines = self.node.log(f"{name}.err").splitlines()
            told = [json.loads(line) for line in lines if line.startswith("{") and words in line]
            if len(told) >= count:
                return told
            assert time.monotonic() < until, "\n".join(lines[-40:])
            time.sleep(0.5)

    def emulators(self) -> list[int]:
        """Return the processes that are the Service VM."""
        shown = self.node.output("ps -o pid,args | grep '[g]uest=fairlead-fabric' || true").splitlines()
        return [int(line.split()[0]) for line in shown if "setpriv" not in line]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    emulator.require()
    with tempfile.TemporaryDirectory(prefix="service-") as name:
        folder = Path(name)
        serviceimage.write(folder, switches=4)
        memory = f"memory-backend-memfd,id=memory,size={serviceimage.MEMORY_MIB}M,hugetlb=on,hugetlbsize=2M"
        words = ("-machine", "memory-backend=memory", "-object", memory)
        serviceimage.write_program(folder / "qemu", tenant.MOUNTED / "qemu", *words)
        shared = {f"service/{one}": folder / one for one in ("kernel", "initramfs", "qemu", "command-line")}
        with hgx_node(
            layout.HGX_H100,
            files={},
            modules=[HERE / "hgx/kubelet.py"],
            packages=image.AGENT,
            programs=("/usr/bin/setpriv",),
            tenants=1,
            memory_mib=1536 + serviceimage.MEMORY_MIB + 256,
            shared=shared,
        ) as node:
            made_world = World(node)
            made_world.begin()
            yield made_world


def test_the_host_reaches_the_manager_in_a_machine_that_has_the_boards_switches(world: World) -> None:
    done = world.node.fairlead("fabric", "list", env=world.env)
    assert done.code == 0, done
    assert len(done.out.splitlines()) == 17
    status = json.loads(world.node.fairlead("fabric", "status", "-o", "json", env=world.env).out)
    assert (status["manager"], status["version"]) == ("nvswitch:6667", "580.95.05")
    (pid,) = world.emulators()
    line = world.node.output(f"tr '\\0' '\\n' </proc/{pid}/cmdline; tr '\\0' '\\n' </proc/{pid}/environ")
    secret = world.node.output("cat /state/fabric.secret").strip()
    assert secret not in line
    assert secret.encode().hex() not in line
    given = [word for word in line.splitlines() if '"driver":"vfio-pci"' in word]
    assert len(given) == 5, "four switches, and the memory controller in their group"


def test_its_loss_is_told_and_slots_are_rebuilt_once_another_runs(world: World) -> None:
    world.until(x1=8, x2=4, x4=2, x8=1)
    first = world.admit("first", 4)
    world.wait_published(f"x4-{'.'.join(map(str, first))}")
    time.sleep(3)  # the kubelet lists it
    (pid,) = world.emulators()
    began = time.monotonic()
    world.node.output(f"kill -9 {pid}")
    world.until(x2=0, x8=0)
    unhealthy_s = time.monotonic() - began
    world.wait_log("service vm lives", 2)
    (lost,) = world.wait_log("fabric lost its machine", name="agent")
    assert "team/first" in lost["tenant"]
    assert lost["reason"] == "FabricLost"
    world.until(x4=1, x2=2, x8=0)
    assert world.emulators() != [pid]
    sys.stdout.write(f"unhealthy after {unhealthy_s:.1f} s, another machine after {time.monotonic() - began:.1f} s\n")
    world.node.call("kubelet", "end", "first")
    world.until(x1=8, x2=4, x4=2, x8=1)
    again = world.admit("second", 4)
    world.wait_published(f"x4-{'.'.join(map(str, again))}")

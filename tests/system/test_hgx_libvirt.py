"""A Service VM that libvirt runs, on an HGX node: what `fairlead fabric vm` prints, with the switches.

`virt-qemu-run` of libvirt 12 starts it with KVM, VFIO and vsock. Three things of the domain are others:
- its memory are huge pages: a window of the IOMMU for each 4 KiB takes minutes where all is emulated;
- it has one processor: with two in a machine that TCG's SVM runs, its agent had not answered after three minutes;
- it boots a kernel in place of UEFI and its disk: the node's own QEMU ends where UEFI writes CR8 in such a machine
  (`cpu_interrupt: assertion failed: (bql_locked())`). `test_libvirt_domain.py` boots UEFI and the disk.

What stands in: the Fabric Manager and its library (`tests/fabricstub`), in the machine.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import test_libvirt_domain
from hgx import domainimage, layout, serviceimage, tenant
from hgx.node import Node
from hgx.shown import hgx_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT_S = 500
CID = 42
MEMORY_MIB = 512
ROOT = "/libvirt"
"""Where the node has Debian's tree: QEMU's folder, and libvirt's over it."""
DISK = "/var/lib/fm.qcow2"
SECRET = "c2VjcmV0" * 8
_BACKED = "<memoryBacking><hugepages/></memoryBacking>"
_SWITCHES = 4


class World:
    """A node with libvirt in a folder of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.env = {"FAIRLEAD_FABRIC_SECRET": "/state/fabric.secret"}
        self.switches = [address for name, address in node.address.items() if "switch" in name or "memory" in name]
        self.printed = ""
        """The domain, word for word."""
        self.pid = 0

    def begin(self) -> None:
        """Bind the switches, print the domain and have libvirt start it."""
        done = self.node.fairlead("vfio", "bind", *self.switches)
        assert done.code == 0, done
        words = ("--disk", DISK, "--cid", str(CID), "--memory-mib", str(MEMORY_MIB))
        done = self.node.fairlead("fabric", "vm", "--libvirt", *words)
        assert (done.code, done.err) == (0, ""), done
        self.printed = done.out
        self._lay_out()
        self.pid = self.node.spawn("libvirt", f"exec chroot {ROOT} {domainimage.RUN}")
        self.node.wait_for_log("libvirt", "guest running", limit_s=LIMIT_S)
        self.node.spawn("console", f"exec cat {ROOT}{self._terminal()}")

    def _lay_out(self) -> None:
        pages = MEMORY_MIB // 2
        self.node.output(f"umask 077; echo {SECRET} >/state/fabric.secret; echo {pages} >/proc/sys/vm/nr_hugepages")
        lower = f"lowerdir={tenant.MOUNTED}/libvirt:{tenant.MOUNTED}/qemu"
        for line in (
            f"mkdir -p /run/over {ROOT} && mount -t tmpfs over /run/over && mkdir /run/over/upper /run/over/work",
            f"mount -t overlay -o {lower},upperdir=/run/over/upper,workdir=/run/over/work over {ROOT}",
            f"cd {ROOT} && mkdir -p {' '.join(domainimage.FOLDERS)}",
            *(f"ln -s usr/{one} {ROOT}/{one}" for one in domainimage.LINKS),
            "mkdir -p /dev/pts /dev/hugepages && mount -t devpts devpts /dev/pts",
            "mount -t hugetlbfs hugepages /dev/hugepages",
            f"for one in proc sys dev; do mount -o rbind /$one {ROOT}/$one; done",
        ):
            self.node.output(line)
        for name, text in {**domainimage.FILES, "domain.xml": self._changed()}.items():
            self.node.call("facts", "write_text", f"{ROOT}/{name}", text)

    def _changed(self) -> str:
        """Return the domain that libvirt gets: the printed one with memory of huge pages, and a kernel to boot."""
        root = ElementTree.fromstring(self.printed)  # noqa: S314 - our own
        system = root.find("os")
        assert system is not None
        del system.attrib["firmware"]
        for one in [*system.findall("firmware"), *system.findall("loader")]:
            system.remove(one)
        words = self.node.output(f"cat {ROOT}/boot/command-line").strip()
        booted = {"kernel": "/boot/kernel", "initrd": "/boot/initramfs", "cmdline": f"{words} console=ttyS0 panic=-1"}
        for name, text in booted.items():
            ElementTree.SubElement(system, name).text = text
        for one in root.findall("vcpu"):
            one.text = "1"
        root.insert(2, ElementTree.fromstring(_BACKED))  # noqa: S314 - likewise
        return ElementTree.tostring(root, encoding="unicode")

    def qemu_log(self) -> str:
        return self.node.output(f"cat {ROOT}/lv/log/qemu/*.log 2>/dev/null || true")

    def _terminal(self) -> str:
        (found,) = re.findall(r"redirected to (/dev/pts/\d+)", self.qemu_log())
        return str(found)

    def wait_served(self) -> None:
        """Wait until the agent in the machine answers."""
        until = time.monotonic() + LIMIT_S
        while (done := self.node.fairlead("fabric", "list", "--agent", f"{CID}:6667", env=self.env)).code:
            said = (done.err, self.node.log("libvirt")[-2000:], self.qemu_log()[-2000:])
            assert time.monotonic() < until, (*said, self.node.log("console")[-2000:])
            time.sleep(1)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    domainimage.require()
    with tempfile.TemporaryDirectory(prefix="domain-") as name:
        folder = Path(name)
        serviceimage.write(folder, switches=_SWITCHES, secret=f"{SECRET}\n")
        domainimage.write_empty(folder / "fm.qcow2")
        shared = {"libvirt": domainimage.LIBVIRT, f"libvirt{DISK}": folder / "fm.qcow2"}
        shared |= {f"libvirt/boot/{one}": folder / one for one in ("kernel", "initramfs", "command-line")}
        with hgx_node(layout.HGX_H100, tenants=1, memory_mib=1280 + MEMORY_MIB, shared=shared) as node:
            made = World(node)
            made.begin()
            yield made


def test_the_printed_domain_boots_with_the_boards_switches_and_its_manager_is_reached(world: World) -> None:
    assert test_libvirt_domain.check(world.printed) == (0, "- validates\n")
    world.wait_served()
    done = world.node.fairlead("fabric", "list", "--agent", f"{CID}:6667", env=world.env)
    assert (done.code, len(done.out.splitlines())) == (0, 17), done
    (pid,) = world.node.output("ps -o pid,args | grep '[g]uest=fairlead-fabric' | awk '{print $1}'").split()
    line = world.node.output(f"tr '\\0' '\\n' </proc/{pid}/cmdline")
    given = re.findall(r'"driver":"vfio-pci","host":"([^"]+)"', line)
    assert sorted(given) == sorted(world.switches), "four switches, and the memory controller in their group"
    assert "\nkvm\n" in line


def test_the_machine_is_found_by_its_switches_whoever_started_it(world: World) -> None:
    world.wait_served()
    done = world.node.fairlead("fabric", "status", "--agent", "nvswitch:6667", "-o", "json", env=world.env)
    assert done.code == 0, done
    status = json.loads(done.out)
    assert (status["manager"], status["version"]) == ("nvswitch:6667", "580.95.05")


def test_its_end_leaves_the_switches_bound(world: World) -> None:
    assert world.node.kill(world.pid, 15, limit_s=60) == 0
    rows = json.loads(world.node.fairlead("vfio", "list", "-o", "json").out)
    assert {one["driver"] for one in rows if one["address"] in world.switches} == {"vfio-pci"}, rows
    assert "guest=fairlead-fabric" not in world.node.output("ps -o args")

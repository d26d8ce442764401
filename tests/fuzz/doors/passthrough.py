"""What passthrough believes of no device and no kernel: sysfs, VPD, modules.alias, uevents, a verifier's report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import string
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fairlead import errors
from fairlead.kernel import uevent
from fairlead.node.vfio import busevents, modules
from fairlead.plan.vfio import binding, verdict
from fairlead.plan.vfio.step import Act
from fairlead.silicon.vfio import discovery
from fairlead.wire.fairlead import guestreport
from tests.fuzz.doors.text import plain
from tests.fuzz.harness import Door, Feed, Open
from tests.unit.silicon.vfio import pcitree

GPU, OTHER = "0000:0f:00.0", "0000:10:00.0"
_ATTRIBUTES = {
    "vendor": "0x10de",
    "device": "0x2330",
    "class": "0x030200",
    "subsystem_vendor": "0x10de",
    "subsystem_device": "0x16c1",
    "numa_node": "0",
    "driver_override": "(null)",
    "reset_method": "flr bus",
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "sriov_numvfs": "0",
    "boot_vga": "0",
    "resource": "0x0000100000000000 0x0000101fffffffff 0x000000000014220c",
}
_ALLOWED = frozenset(string.ascii_lowercase + string.digits + "-.")
_MESSAGE = b"change@/devices/pci0000:0e/0000:0e:01.0/0000:0f:00.0\0" + b"".join(
    f"{field}\0".encode()
    for field in (
        "ACTION=change",
        "SUBSYSTEM=pci",
        f"PCI_SLOT_NAME={GPU}",
        "ERROR_EVENT=BEGIN_RECOVERY",
        "DEVICE_ONLINE=0",
    )
)
_REPORT = {
    "version": guestreport.VERSION,
    "nonce": "n",
    "driver": "580.95.05",
    "gpus": [{"pci": "0000:01:00.0", "serial": "1654922003211", "module": 3, "ecc_mode": True, "link_width": 16}],
}
_MODULES = {"modules": {"pcie-48b02d000000000f": 3, "pcie-48b02d0000000010": None}, "cc_modes": {"pcie-1": "off"}}


def _beside(feed: Callable[[bytes, pcitree.Tree], None], *, driver: str = "vfio-pci") -> Open:
    """Return what opens a door to one of two GPUs. Args: driver: of that one."""

    @contextlib.asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Feed]:
        tree = pcitree.Tree(folder / "root")
        tree.register_driver("vfio-pci")
        pcitree.add_gpu(tree, GPU, driver=driver)
        pcitree.add_gpu(tree, OTHER, driver="vfio-pci")

        async def once(data: bytes) -> None:
            feed(data, tree)
            _judge(tree)

        yield once

    return opened


def _judge(tree: pcitree.Tree) -> None:
    """Scan, judge, plan and name what is there; the other GPU is found whatever this one says."""
    found = discovery.scan(tree.root)
    assert OTHER in {one.address for one in found.functions}
    for one in found.functions:
        assert 0 < len(one.identity.key) <= 63
        assert set(one.identity.key) <= _ALLOWED
        verdict.judge(found, one, verdict.NOBODY)
    for plan in binding.plan_bind(found, [one.address for one in found.functions]):
        for step in plan.steps:
            assert not set("\n\0/") & set(step.text), step
            assert step.act is Act.VERIFY or step.path.startswith("sys/bus/pci/"), step


def _attributes(data: bytes, tree: pcitree.Tree) -> None:
    written = json.loads(data)
    if not isinstance(written, dict):
        raise ValueError("no attributes")
    for name in _ATTRIBUTES:
        if isinstance(text := written.get(name, ""), str):
            (tree.folder(GPU) / name).write_bytes(text.encode(errors="surrogatepass"))


def _vital_data(data: bytes, tree: pcitree.Tree) -> None:
    (tree.folder(GPU) / "config").write_bytes(pcitree.config_space((0x10DE, 0x2330), 0x030200))
    (tree.folder(GPU) / "vpd").write_bytes(data)


def _space(data: bytes, tree: pcitree.Tree) -> None:
    (tree.folder(GPU) / "config").write_bytes(data)


def _aliases(data: bytes, tree: pcitree.Tree) -> None:
    tree.write(f"lib/modules/{pcitree.KERNEL}/modules.alias", data)


def _modules(data: bytes, folder: Path) -> None:
    (folder / modules.FILE).write_bytes(data)
    found = modules.ModuleMemory(folder)
    assert all(one is None or isinstance(one, int) for one in found.known().values())
    assert all(isinstance(one, str) for one in found.cc_modes().values())


@contextlib.asynccontextmanager
async def _bus(_: Path) -> AsyncIterator[Feed]:
    async def hear(data: bytes) -> None:
        found, is_heard = uevent.parse(data), asyncio.Event()
        if found is None:
            raise ValueError("not the kernel's")

        async def watch() -> AsyncIterator[uevent.UEvent]:
            yield found
            is_heard.set()
            await asyncio.Event().wait()

        events = busevents.BusEvents(lambda: None, watch=watch)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(events.run())
            await is_heard.wait()
            running.cancel()
        assert len(events.problem(GPU)) < 1000

    yield hear


def _reported(data: bytes, _: Path) -> None:
    for one in guestreport.parse(data).gpus:
        assert one.pci.isascii()


DOORS = (
    Door(
        name="attributes of a passed-through GPU",
        opened=_beside(_attributes),
        specimens=(("GPU", _ATTRIBUTES),),
        refusals=(errors.FairleadError, ValueError, RecursionError),  # the last two of the test's own decoding
        every=3,
    ),
    Door(
        name="vital data of a passed-through GPU",
        opened=_beside(_vital_data),
        binary=(("serial", pcitree.vpd("H100", PN="692-2G520", SN="1654922003211")),),
        documents=False,
        refusals=(errors.FairleadError,),
    ),
    Door(
        name="configuration space of a passed-through GPU",
        opened=_beside(_space),
        binary=(("GPU", pcitree.config_space((0x10DE, 0x2330), 0x030200, serial=0x48B02D000000000F, size=0x160)),),
        documents=False,
        refusals=(errors.FairleadError,),
    ),
    Door(
        name="the kernel's list of variant drivers",
        opened=_beside(_aliases, driver=""),
        binary=(("aliases", pcitree.ALIASES.encode()),),
        documents=False,
        refusals=(errors.FairleadError,),
    ),
    Door(
        name="the kernel's message of its bus",
        opened=_bus,
        binary=(("error", _MESSAGE),),
        documents=False,
        refusals=(errors.FairleadError, ValueError),
    ),
    Door(
        name="module numbers on disk",
        opened=plain(_modules),
        specimens=(("kept", _MODULES),),
        refusals=(errors.FairleadError,),
    ),
    Door(
        name="report of a verifier's machine",
        opened=plain(_reported),
        specimens=(("GPU", _REPORT),),
        refusals=(errors.FairleadError,),
    ),
)

"""Specs follow the machine: MIG, modules, boards, nodes; and what is of another boot is told at the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from fairlead import errors
from fairlead.model.gpu import Inventory
from fairlead.node.cdi import source as cdisource
from fairlead.node.cdi import specfiles, watch
from fairlead.plan.cdi import generate
from fairlead.plan.cdi import source as mode
from fairlead.silicon import running
from fairlead.silicon.nvidia.files import modefiles
from fairlead.silicon.sim import silicon
from fairlead.wire.cdi import stamp

GPU = "nvidia.com/gpu"


class Refusing(silicon.SimulatedSilicon):
    """A machine whose driver does not answer for as long as it is told so."""

    refuses = False
    reason = "DriverHangs"

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.tried = asyncio.Event()

    async def scan(self) -> Inventory:
        self.tried.set()
        if self.refuses:
            raise errors.Unavailable("no answer", reason=self.reason)
        return await super().scan()


def partitioned(folder: Path) -> Refusing:
    """Return a machine of eight GPUs, the first of which is two MIG devices."""
    made = Refusing(folder, "a100x8")
    if not made.machine.gpus[0].mig_enabled:
        made.inject("mig-mode", gpu=0, value="on")
        made.inject("mig-create", gpu=0, value="3g.20gb")
        made.inject("mig-create", gpu=0, value="3g.20gb")
    return made


class World:
    """A simulated machine, its specs, and a watcher that tells of each renewal."""

    def __init__(self, folder: Path, *modes: str) -> None:
        self.silicon = partitioned(folder / "machine")
        self.root = self.silicon.tree.path
        self.specs = specfiles.SpecFiles(folder / "cdi", kinds=mode.kinds(modes, generate.Recipe()), boot_id="b-now")
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        source = cdisource.Source(
            silicon=self.silicon,
            place=modefiles.Place(root=self.root),
            modes=modes,
            recipe=generate.Recipe(),
        )
        self.watcher = watch.Watcher(source, self.specs, interval_s=0.02, settle_s=0, on_change=self._on_change)

    def _on_change(self) -> None:
        self._loop.call_soon_threadsafe(self.changed.set)

    async def renewed(self) -> None:
        async with asyncio.timeout(60):
            await self.changed.wait()
        self.changed.clear()

    def devices(self, kind: str = GPU) -> list[str]:
        document: dict[str, Any] = json.loads(self.specs.path(kind).read_bytes())
        return [device["name"] for device in document["devices"]]


@contextlib.asynccontextmanager
async def watching(folder: Path, *modes: str) -> AsyncIterator[World]:
    world = World(folder, *modes)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(world.watcher.run())
            yield world
            task.cancel()
    finally:
        await world.silicon.close()


async def test_a_mig_change_is_a_new_spec(tmp_path: Path) -> None:
    async with watching(tmp_path, "nvml") as world:
        await world.renewed()
        before = world.devices()
        world.silicon.inject("mig-destroy", gpu=0, value=None)
        await world.renewed()
        after = world.devices()
    assert [name for name in before if name.startswith("0:")]
    assert not [name for name in after if name.startswith("0:")]


async def test_a_node_that_comes_or_goes_is_noticed_without_any_event(tmp_path: Path) -> None:
    async with watching(tmp_path, "gdrcopy", "nvml") as world:
        await world.renewed()
        assert not world.specs.path("nvidia.com/gdrcopy").exists()
        (world.root / "dev/gdrdrv").hardlink_to(world.root / "dev/nvidiactl")
        await world.renewed()
        assert world.devices("nvidia.com/gdrcopy") == ["all"]
        (world.root / "dev/gdrdrv").unlink()
        await world.renewed()
        assert not world.specs.path("nvidia.com/gdrcopy").exists()
        assert world.devices()


async def test_without_devices_nothing_is_written_and_that_is_said(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with watching(tmp_path, "imex") as world:
            (world.root / "dev/nvidia-caps-imex-channels").mkdir()
            (world.root / "dev/nvidia-caps-imex-channels/channel0").hardlink_to(world.root / "dev/nvidiactl")
            await world.renewed()
            (world.root / "dev/nvidia-caps-imex-channels/channel0").unlink()
            await world.renewed()
            assert list((tmp_path / "cdi").iterdir()) == []
    assert "no devices: no CDI spec is written" in [log.get("error") for log in logs]


async def test_a_spec_of_another_boot_or_driver_is_told_at_the_start_and_replaced(tmp_path: Path) -> None:
    specs = specfiles.SpecFiles(tmp_path / "cdi")
    path = specs.path(GPU)
    path.parent.mkdir()
    device = {"name": "0", "containerEdits": {"env": ["A=b"]}}
    data = json.dumps({"cdiVersion": "0.5.0", "kind": GPU, "devices": [device]}).encode()
    path.write_bytes(data)
    old = stamp.Stamp(boot_id="b-old", driver="nvidia", version="1.2")
    stamp.beside(path).write_bytes(stamp.emit_stamp(old, data))
    with structlog.testing.capture_logs() as logs:
        async with watching(tmp_path, "nvml") as world:
            await world.renewed()
    told = [log["error"] for log in logs if log["event"] == "cdi spec stale"]
    assert len(told) == 2
    assert "another boot" in told[0]
    assert "driver 1.2" in told[1]
    mark = stamp.read(path, {})
    assert mark is not None
    assert (mark.boot_id, mark.driver, mark.version) == ("b-now", "nvidia", world.silicon.profile.driver)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "proc/modules").write_text("nvidia 1 0 - Live 0x0\n"),
        lambda root: (root / "proc/driver/nvidia/version").write_text("NVRM version: 999.1\n"),
        lambda root: (root / "dev/nvidia1").unlink(),
        lambda root: (root / "dev/nvidia1").chmod(0o600),
        lambda root: (root / "usr/lib/x86_64-linux-gnu/libnew.so").touch(),
        lambda root: (root / "sys/bus/pci/drivers/nvidia/0000:99:00.0").mkdir(),
        lambda root: (root / "proc/driver/nvidia/gpus/0000:99:00.0").mkdir(),
        lambda root: next((root / "proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*/access")).unlink(),
    ],
)
def test_everything_a_spec_depends_on_is_in_the_fingerprint(change: Any, tmp_path: Path) -> None:
    made = partitioned(tmp_path)
    root = made.tree.path
    before = running.fingerprint(root, Path("/"))
    assert running.fingerprint(root, Path("/")) == before
    change(root)
    assert running.fingerprint(root, Path("/")) != before


async def test_a_look_that_fails_leaves_the_files_and_is_repeated(tmp_path: Path) -> None:
    async with watching(tmp_path, "nvml") as world:
        await world.renewed()
        kept = world.specs.path(GPU).read_bytes()
        world.silicon.refuses = True
        world.silicon.tried.clear()
        (world.root / "dev/nvidia7").unlink()
        for _ in range(2):
            async with asyncio.timeout(50):
                await world.silicon.tried.wait()
            world.silicon.tried.clear()
        assert world.specs.path(GPU).read_bytes() == kept
        world.silicon.refuses = False
        await world.renewed()
        assert "7" not in world.devices()


async def test_an_unloaded_driver_has_no_devices(tmp_path: Path) -> None:
    async with watching(tmp_path, "nvml") as world:
        await world.renewed()
        world.silicon.reason = "DriverNotLoaded"
        world.silicon.refuses = True
        (world.root / "proc/driver/nvidia/version").unlink()
        await world.renewed()
        assert not world.specs.path(GPU).exists()

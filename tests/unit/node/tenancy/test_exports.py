"""Exports of tenancies, over a kernel's list of mounts that a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel.mounting import nfs
from fairlead.node.tenancy import exports
from fairlead.plan.tenancy import baseline
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import meta

EXPORT = kind.NFSExport(server="nas", path="/red", options=("vers=4.2",))
RED = Tenancy(
    metadata=meta.ObjectMeta(name="red", uid="0123456789"),
    spec=kind.TenancySpec(storage=kind.TenancyStorage(nfs=EXPORT)),
)


class Machine:
    """A kernel's mounts and one server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder / "volumes", folder
        (folder / "proc/self").mkdir(parents=True)
        self.asked: list[tuple[str, str]] = []
        self.is_up = True
        self.list_mounts()
        self.exports = exports.Exports(self.folder, mount=self.mount, answers=self.answer, root=folder)

    @property
    def place(self) -> Path:
        return self.folder / baseline.namespace_name(RED)

    def list_mounts(self, *lines: str) -> None:
        (self.root / "proc/self/mountinfo").write_text("1 0 0:1 / / rw - ext4 /dev/vda rw\n" + "".join(lines))

    def show(self, source: str, kind: str = "nfs4") -> None:
        self.list_mounts(f"9 1 0:9 / {self.place} rw,nosuid shared:1 - {kind} {source} rw,addr=10.0.0.1\n")

    async def mount(self, source: str, folder: Path, options: str) -> None:
        self.asked.append((source, options))
        assert folder.is_dir()
        self.show(source)

    async def answer(self, server: str, port: int) -> None:
        if not self.is_up:
            raise ConnectionRefusedError(server, port)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_an_export_is_mounted_once(machine: Machine) -> None:
    await machine.exports.ensure(RED)
    await machine.exports.ensure(RED)
    assert machine.asked == [("nas:/red", "vers=4.2,nosuid,nodev")]
    assert await machine.exports.check(RED)


async def test_a_server_that_is_silent_is_not_asked_for_files(machine: Machine) -> None:
    machine.is_up = False
    for attempt in (machine.exports.ensure, machine.exports.check):
        with pytest.raises(errors.Unavailable) as caught:
            await attempt(RED)
        assert caught.value.reason == exports.SILENT
    assert not machine.folder.exists()


async def test_a_container_does_not_write_into_the_folder_below_an_export_that_is_away(machine: Machine) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        await machine.exports.check(RED)
    assert caught.value.reason == exports.NOT_MOUNTED


async def test_volumes_on_disk_are_not_hidden_by_an_export(machine: Machine) -> None:
    (machine.place / "claim").mkdir(parents=True)
    with pytest.raises(errors.Conflict) as caught:
        await machine.exports.ensure(RED)
    assert caught.value.reason == "VolumesOnDisk"


@pytest.mark.parametrize(("source", "type_"), [("nas:/blue", "nfs4"), ("tmpfs", "tmpfs")])
async def test_what_else_is_mounted_there_is_not_taken_for_the_export(
    machine: Machine, source: str, type_: str
) -> None:
    machine.show(source, type_)
    with pytest.raises(errors.Conflict) as caught:
        await machine.exports.ensure(RED)
    assert caught.value.reason == "ExportChanged"


async def test_a_tenancy_without_an_export_is_on_disk(machine: Machine) -> None:
    plain = Tenancy(metadata=RED.metadata)
    machine.is_up = False
    await machine.exports.ensure(plain)
    assert not await machine.exports.check(plain)


async def test_the_folder_of_an_ended_tenancy_goes_and_another_mount_stays(machine: Machine) -> None:
    await machine.exports.ensure(RED)
    machine.list_mounts()
    await machine.exports.release(machine.place.name)
    assert not machine.place.exists()
    await machine.exports.release(machine.place.name)


def test_a_folder_with_a_space_is_found_as_the_kernel_writes_it(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("9 1 0:9 / /a\\040b rw - nfs4 nas:/x\\040y rw\n")
    assert nfs.mounted(Path("/a b"), tmp_path) == ("nfs4", "nas:/x y")
    assert nfs.mounted(Path("/a"), tmp_path) == ("", "")

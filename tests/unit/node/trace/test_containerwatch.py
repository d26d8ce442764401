"""Containers seen as they begin, in a cgroup tree made of files: which are seen, as whose, and what is said of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.node.trace import containerwatch

UID = "0d3b5f4e-1111-2222-3333-444455556666"
PATIENCE_S = 50.0
ID = "ab" * 32
OTHER = "cd" * 32


@dataclass
class Wanted:
    paths: tuple[str, ...] = ("/dev/nvidia0",)
    numbers: tuple[tuple[int, int], ...] = ()


@dataclass
class Machine:
    """A node of files: `/proc`, and one hierarchy of cgroups."""

    root: Path
    cgroups: Path = field(init=False)
    seen: asyncio.Queue[tuple[str, containerwatch.FoundContainer[Wanted]]] = field(default_factory=asyncio.Queue)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a container was seen to begin."""

    def __post_init__(self) -> None:
        self.cgroups = self.root / "sys/fs/cgroup"
        self.cgroups.mkdir(parents=True)
        own = self.root / "proc/self"
        (own / "root").mkdir(parents=True)
        (own / "mountinfo").write_text(f"30 20 0:27 / {self.cgroups} rw - cgroup2 cgroup2 rw\n")

    def process(self, pid: int, *, cgroup: str = "0::/", is_inside: bool = True) -> None:
        """Make a process; one that is not inside still has the host's root."""
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"{cgroup}\n")
        (folder / "stat").write_text(f"{pid} (a (b) c) S {' '.join(str(number) for number in range(4, 53))}\n")
        if is_inside:
            (folder / "root/dev").mkdir(parents=True)
        else:
            (folder / "root").symlink_to(self.root / "proc/self/root")

    def enter(self, pid: int) -> None:
        """Give a process the container's root."""
        own = self.root / "proc" / str(pid) / "root"
        own.unlink()
        (own / "dev").mkdir(parents=True)

    def container(self, pod: str, name: str, *pids: int) -> Path:
        folder = self.cgroups / pod / name
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return folder

    @contextlib.asynccontextmanager
    async def watcher(self, wanted: Wanted | None = None) -> AsyncIterator[containerwatch.ContainerWatch[Wanted]]:
        async def prepare(_: str) -> Wanted | None:
            self.asked.set()
            return wanted

        one = containerwatch.ContainerWatch[Wanted](
            prepare=prepare, seen=lambda uid, seen: self.seen.put_nowait((uid, seen)), root=self.root
        )
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(one.run())
            yield one
            task.cancel()

    async def next(self) -> containerwatch.FoundContainer[Wanted]:
        async with asyncio.timeout(PATIENCE_S):
            uid, seen = await self.seen.get()
        assert uid == UID
        return seen


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


CGROUPFS = f"kubepods/burstable/pod{UID}"
SYSTEMD = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("pod", "name"),
    [(CGROUPFS, ID), (SYSTEMD, f"cri-containerd-{ID}.scope"), (SYSTEMD, f"crio-{ID}.scope")],
)
async def test_a_container_is_seen_under_the_runtimes_id_with_either_cgroup_driver(
    machine: Machine, pod: str, name: str
) -> None:
    machine.process(77)
    async with machine.watcher(Wanted()) as watcher:
        watcher.follow(UID)
        machine.container(pod, name, 77)
        seen = await machine.next()
    assert (seen.id, seen.pid) == (ID, 77)
    assert not watcher.is_looking(ID)


async def followed(machine: Machine, watcher: containerwatch.ContainerWatch[Wanted]) -> None:
    """Follow the pod; returns once its folder is watched: its sandbox, which is there already, was seen."""
    machine.process(66)
    machine.container(CGROUPFS, OTHER, 66)
    watcher.follow(UID)
    assert (await machine.next()).id == OTHER


async def test_a_container_that_begins_is_seen_once_it_has_its_own_root(machine: Machine) -> None:
    machine.process(77, is_inside=False)
    async with machine.watcher(Wanted()) as watcher:
        await followed(machine, watcher)
        folder = machine.container(CGROUPFS, ID)
        async with asyncio.timeout(PATIENCE_S):
            await machine.asked.wait()
        assert watcher.is_looking(ID)
        (folder / "cgroup.procs").write_text("77\n")
        assert machine.seen.empty()
        machine.enter(77)
        seen = await machine.next()
    assert (seen.id, seen.pid, seen.is_late) == (ID, 77, False)
    assert seen.prepared == Wanted()


async def test_a_container_from_before_is_late_and_dated_by_its_process(machine: Machine) -> None:
    machine.process(77)
    machine.container(CGROUPFS, ID, 77)
    async with machine.watcher(Wanted()) as watcher:
        watcher.follow(UID)
        seen = await machine.next()
    assert (seen.id, seen.is_late, seen.found, seen.unread) == (ID, True, None, "")
    assert seen.began_at < seen.read_at or seen.read_at == 0.0


async def test_a_container_without_the_pods_devices_is_not_read(machine: Machine) -> None:
    machine.process(77)
    async with machine.watcher(Wanted()) as watcher:
        await followed(machine, watcher)
        machine.container(CGROUPFS, ID, 77)
        seen = await machine.next()
    assert (seen.id, seen.found, seen.unread) == (ID, None, "")


async def test_pods_nobody_follows_and_folders_of_monitors_are_passed_over(machine: Machine) -> None:
    machine.process(77)
    async with machine.watcher(Wanted()) as watcher:
        watcher.follow(UID)
        machine.container("kubepods/pod-of-somebody", OTHER, 77)
        machine.container(SYSTEMD, f"crio-conmon-{OTHER}.scope", 77)
        machine.container(SYSTEMD, f"crio-{ID}.scope", 77)
        assert (await machine.next()).id == ID
    assert machine.seen.empty()


async def test_a_folder_that_goes_before_a_process_came_is_no_container(machine: Machine) -> None:
    machine.process(77)
    async with machine.watcher(Wanted()) as watcher:
        await followed(machine, watcher)
        gone = machine.container(CGROUPFS, "ef" * 32)
        async with asyncio.timeout(PATIENCE_S):
            await machine.asked.wait()
        (gone / "cgroup.procs").unlink()
        gone.rmdir()
        machine.container(CGROUPFS, ID, 77)
        assert (await machine.next()).id == ID
    assert machine.seen.empty()


def test_a_process_is_found_by_the_id_in_its_cgroup(machine: Machine) -> None:
    machine.process(5, cgroup="0::/system.slice")
    machine.process(6, cgroup=f"0::/kubepods.slice/x.slice/crio-conmon-{ID}.scope")
    machine.process(7, cgroup=f"3:devices:/kubepods/besteffort/pod{UID}/{ID}")
    assert containerwatch.find_process(ID, machine.root) == 7
    assert containerwatch.find_process(OTHER, machine.root) is None

"""Device nodes made and removed in another mount namespace, whatever stands in the way; and who has one open."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.kernel import cgroup, openfiles, processid
from fairlead.node.isolation import attach
from fairlead.plan.audit import GrantedNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and device nodes need root")


class Box:
    """A process in a mount namespace with a root and a /dev of its own."""

    def __init__(self, root: Path, process: asyncio.subprocess.Process) -> None:
        self.root, self.process = root, process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def inside(self) -> Path:
        return Path(f"/proc/{self.pid}/root")


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    root = tmp_path / "root"
    for name in ("dev", "bin", "proc", "etc"):
        (root / name).mkdir(parents=True)
    (root / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (root / "bin/busybox").chmod(0o755)
    inside = "echo up; exec /bin/busybox sleep 600"
    script = f"mount -t tmpfs dev {root}/dev && exec chroot {root} /bin/busybox sh -c '{inside}'"
    process = await asyncio.create_subprocess_exec(
        *("unshare", "-m", "--propagation", "private", "sh", "-c", script), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    one = Box(root, process)
    yield one
    if process.returncode is None:
        process.kill()
    await process.communicate()


def gpu(minor: int, path: str = "", **more: Any) -> GrantedNode:
    return GrantedNode(
        path=path or f"/dev/nvidia{minor}",
        kind="c",
        major=195,
        minor=minor,
        access="rw",
        source="test",
        **more,
    )


async def test_a_node_is_made_with_its_owner_and_mode_in_the_container_alone(box: Box) -> None:
    done = await attach.work(box.pid, make=[gpu(3, "/dev/gpu/3", mode=0o640, uid=7, gid=8)])
    assert done == (("/dev/gpu/3", "made"),)
    found = (box.inside / "dev/gpu/3").stat()
    assert (stat.S_ISCHR(found.st_mode), os.minor(found.st_rdev)) == (True, 3)
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 7, 8)
    assert not (box.root / "dev/gpu").exists()  # the host sees the folder below the mount
    assert sorted(path.name for path in (box.inside / "dev/gpu").iterdir()) == ["3"]


async def test_making_and_removing_twice_is_making_and_removing_once(box: Box) -> None:
    assert await attach.work(box.pid, make=[gpu(1)]) == (("/dev/nvidia1", "made"),)
    assert await attach.work(box.pid, make=[gpu(1)]) == (("/dev/nvidia1", "kept"),)
    assert await attach.work(box.pid, remove=[gpu(1)]) == (("/dev/nvidia1", "removed"),)
    assert await attach.work(box.pid, remove=[gpu(1)]) == (("/dev/nvidia1", "absent"),)
    assert await attach.work(box.pid, remove=[gpu(1, "/dev/no/such")]) == (("/dev/no/such", "absent"),)


async def test_a_node_of_another_number_is_replaced_and_never_removed(box: Box) -> None:
    await attach.work(box.pid, make=[gpu(1, "/dev/it")])
    assert await attach.work(box.pid, make=[gpu(2, "/dev/it")]) == (("/dev/it", "replaced"),)
    assert os.minor((box.inside / "dev/it").stat().st_rdev) == 2
    with pytest.raises(errors.Conflict, match="something else stands there"):
        await attach.work(box.pid, remove=[gpu(1, "/dev/it")])


@pytest.mark.parametrize("trap", ["link", "file", "folder", "parent", "root", "magic"])
async def test_whatever_stands_in_the_way_is_refused_and_nothing_outside_is_touched(
    box: Box, trap: str, tmp_path: Path
) -> None:
    outside, dev = tmp_path / "outside", box.inside / "dev"
    outside.mkdir()
    path = "/dev/sub/nvidia0" if trap in {"parent", "root", "magic"} else "/dev/nvidia0"
    match trap:
        case "link":
            (dev / "nvidia0").symlink_to(outside / "made")
        case "file":
            (dev / "nvidia0").write_text("mine")
        case "folder":
            (dev / "nvidia0").mkdir()
        case "parent":
            (dev / "sub").symlink_to("/etc")
        case "root":
            (dev / "sub").symlink_to(outside)
        case "magic":
            (dev / "sub").symlink_to("/proc/1/root" + str(outside))
    with pytest.raises(errors.Conflict) as caught:
        await attach.work(box.pid, make=[gpu(0, path)])
    assert caught.value.reason == "NodeRefused"
    assert list(outside.iterdir()) == []
    assert list((box.root / "etc").iterdir()) == []


@pytest.mark.parametrize("path", ["/dev/../etc/x", "/", "/dev/./x"])
async def test_a_path_that_is_not_plain_is_refused(box: Box, path: str) -> None:
    with pytest.raises(errors.Conflict, match="not a plain path"):
        await attach.work(box.pid, make=[gpu(0, path)])


async def test_a_process_that_is_gone_is_not_found(box: Box) -> None:
    box.process.kill()
    await box.process.communicate()
    with pytest.raises(errors.NotFound):
        await attach.work(box.pid, make=[gpu(0)])


@pytest.fixture
async def users() -> AsyncIterator[int]:
    """A process in a mount and a user namespace of its own, with a file system of the namespace's at /srv."""
    program = (
        "import ctypes, os, subprocess, sys, time\n"
        "if ctypes.CDLL(None).unshare(0x10000000 | 0x00020000): sys.exit('no user namespace')\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "os.setresgid(0, 0, 0); os.setresuid(0, 0, 0)\n"
        "subprocess.run(('mount', '-t', 'tmpfs', 'dev', '/srv'), check=True)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if await process.stdout.readline() != b"up\n":
            pytest.skip("user namespaces are not allowed here")
        for kind in ("uid", "gid"):
            Path(f"/proc/{process.pid}/{kind}_map").write_text("0 1900000000 65536")
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_container_with_users_of_its_own_is_shown_the_hosts_node_and_loses_it_again(
    users: int,
) -> None:
    path = "/srv/deep/zero"
    zero = GrantedNode(path=path, kind="c", major=1, minor=5, access="rw", source="x", host_path="/dev/zero")
    inside = Path(f"/proc/{users}/root{path}")
    assert await attach.work(users, make=[zero]) == ((path, "made"),)
    assert await attach.work(users, make=[zero]) == ((path, "kept"),)
    with inside.open("rb") as zeros:  # noqa: ASYNC230  # a device that is always ready
        assert zeros.read(4) == bytes(4)
    assert inside.parent.stat().st_uid == 1_900_000_000
    assert not Path("/srv/deep").exists()
    assert await attach.work(users, remove=[zero]) == ((path, "removed"),)
    assert not inside.exists()
    assert await attach.work(users, remove=[zero]) == ((path, "absent"),)


async def test_what_stands_in_the_way_there_and_another_node_are_refused(users: int) -> None:
    inside = ("nsenter", "-t", str(users), "-m", "-U", "-S", "0", "-G", "0", "ln", "-s", "/etc/x", "/srv/link")
    made = await asyncio.create_subprocess_exec(*inside)
    assert await made.wait() == 0
    for path, minor, words in (("link", 5, "something else stands"), ("other", 3, "is another device by now")):
        node = GrantedNode(
            path=f"/srv/{path}", kind="c", major=1, minor=minor, access="rw", source="x", host_path="/dev/zero"
        )
        with pytest.raises(errors.Conflict, match=words):
            await attach.work(users, make=[node])


async def test_open_and_mapped_devices_have_holders_and_they_can_be_ended(box: Box) -> None:
    await attach.work(
        box.pid, make=[GrantedNode(path="/dev/zero", kind="c", major=1, minor=5, access="rw", source="x")]
    )
    # Maps /dev/zero, closes it and stays: only the mapping holds it.
    program = (
        "import mmap,os,sys\nf=os.open('/dev/zero',os.O_RDWR)\n"
        "m=mmap.mmap(f,4096,flags=mmap.MAP_PRIVATE)\nos.close(f)\nos.chdir('/')\nprint('up',flush=True)\nsys.stdin.read()"
    )
    own = await asyncio.create_subprocess_exec(
        *("nsenter", "-t", str(box.pid), "--mount", "python3", "-c", program),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert own.stdout is not None
    try:
        assert await own.stdout.readline() == b"up\n"
        (found,) = openfiles.find_holders(box.pid, [("c", 1, 5)])
        assert (found.pid, found.is_first, found.devices) == (own.pid, False, (("c", 1, 5),))
        assert openfiles.find_holders(box.pid, [("c", 195, 0)]) == ()
        left = await asyncio.to_thread(openfiles.end, [found])
        assert left == ()
    finally:
        await own.communicate()
    assert openfiles.find_holders(box.pid, [("c", 1, 5)]) == ()


def test_a_process_that_is_gone_already_needs_no_end() -> None:
    gone = openfiles.Holder(pid=2**22 + 1, name="x", is_first=False, devices=())
    assert openfiles.end([gone]) == ()


def test_members_of_a_root_cgroup_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n")
    assert cgroup.members([cgroup.Cgroup(tmp_path, 1, is_root=True)]) == frozenset()
    (tmp_path / "child").mkdir()
    (tmp_path / "child/cgroup.procs").write_text("7\n0\n")
    assert cgroup.members([cgroup.Cgroup(tmp_path, 1)]) == frozenset({1, 7})


async def test_a_process_with_this_hosts_own_mounts_is_refused_and_gets_no_node(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        with pytest.raises(errors.Unavailable, match="mounts are this host's own"):
            await attach.work(process.pid, make=[gpu(3, f"{tmp_path}/nvidia3")])
        assert not (tmp_path / "nvidia3").exists()
    finally:
        process.kill()
        await process.communicate()


async def test_a_process_that_began_at_another_time_than_the_one_meant_is_refused(box: Box) -> None:
    meant = processid.ProcessID(box.pid, "1")
    with pytest.raises(errors.Unavailable, match="another one by now"):
        await attach.work(box.pid, make=[gpu(1)], process=meant)
    assert not (box.inside / "dev/nvidia1").exists()


async def test_a_pid_of_another_container_than_the_one_meant_is_given_nothing(box: Box) -> None:
    with pytest.raises(errors.NotFound):
        await attach.attach(box.pid, [gpu(1)], container="f" * 64)
    with pytest.raises(errors.NotFound):
        await attach.detach(box.pid, [gpu(1)], is_forced=False, container="f" * 64)

"""An open device is found wherever a process keeps it: each way is a process that does it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.kernel import openfiles
from tests import hiding

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and device nodes need root")

ZERO: openfiles.Number = ("c", 1, 5)
ABSENT: openfiles.Number = ("c", 195, 0)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "gpu0"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    return path


def look(pid: int) -> list[openfiles.Opener]:
    return [one for one in openfiles.find_openers([ZERO]) if one.pid == pid]


@pytest.mark.parametrize("way", [one.__name__ for one in hiding.HIDDEN])
def test_a_device_is_found_wherever_it_is_kept_open(way: str, node: Path) -> None:
    with hiding.hidden(way, node) as pid:
        (opener,) = look(pid)
        (holder,) = [one for one in openfiles.find_holders(pid, [ZERO]) if one.pid == pid]
    is_doubt = way in hiding.DOUBTS
    for found in (opener, holder):
        assert found.devices == (() if is_doubt else (ZERO,))
        assert bool(found.doubt) is is_doubt


@pytest.mark.parametrize("apart", [("--user", "--map-root-user"), ("--pid", "--fork"), ("--net", "--ipc")])
def test_a_device_is_found_in_other_namespaces(apart: tuple[str, ...], node: Path) -> None:
    node.chmod(0o666)
    for way in ("plain", "leader_ended", "in_flight"):
        with hiding.hidden(way, node, *apart) as pid:
            (found,) = look(pid)
            assert found.devices or found.doubt, way


@pytest.mark.parametrize("way", [one.__name__ for one in hiding.CLOSED])
def test_what_is_open_no_more_is_not_found(way: str, node: Path) -> None:
    with hiding.hidden(way, node) as pid:
        assert look(pid) == []


def test_a_process_that_was_killed_and_not_waited_for_has_nothing_open(node: Path) -> None:
    with hiding.hidden("plain", node) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert look(pid) == []


def test_a_process_that_ends_with_its_doubt_does_not_count(node: Path) -> None:
    with hiding.hidden("ring", node) as pid:
        (before,) = openfiles.find_holders(pid, [ABSENT])
        assert before.doubt == "has files registered in an io_uring (1)"
        assert openfiles.end([before]) == ()
        assert openfiles.find_holders(pid, [ABSENT]) == ()


def test_threads_with_one_table_are_read_once(node: Path) -> None:
    same = openfiles._comparison(Path("/proc"))
    for way, count in (("in_flight_among_threads", 1), ("thread_of_its_own", 2), ("thread_in_other_mounts", 2)):
        with hiding.hidden(way, node) as pid:
            assert len(openfiles._threads(Path(f"/proc/{pid}"), same)) == count, way
            assert len(openfiles._threads(Path(f"/proc/{pid}"), lambda *_: False)) > 1, way
    with hiding.hidden("leader_ended", node) as pid:
        (thread,) = openfiles._threads(Path(f"/proc/{pid}"), same)
        assert thread.folder.name != str(pid)


def test_a_node_within_the_reach_of_one_thread_is_found(node: Path) -> None:
    with hiding.hidden("thread_in_other_mounts", node) as pid:
        (found,) = look(pid)
        assert (found.devices, found.reachable, found.granted) == ((), (ZERO,), ())  # granted: where it has it open


def test_a_process_that_was_sent_a_device_is_told_apart_from_one_that_may_open_it(node: Path) -> None:
    """Its cgroup says so, whichever nodes it makes in its /dev."""
    group = Path("/sys/fs/cgroup/devices") / f"fairlead-test-{os.getpid()}"
    if not group.parent.is_dir():
        pytest.skip("no device cgroup of version 1 here")
    group.mkdir()
    try:
        with hiding.hidden("thread_and_a_node", node) as pid:
            (found,) = look(pid)
            assert (found.devices, found.reachable, found.granted) == ((ZERO,), (ZERO,), (ZERO,))
            (group / "devices.deny").write_text("a")
            (group / "devices.allow").write_text("c 1:5 m")
            (group / "cgroup.procs").write_text(str(pid))
            (found,) = look(pid)
            assert (found.devices, found.reachable, found.granted) == ((ZERO,), (ZERO,), ())
    finally:
        group.rmdir()


def test_the_kernel_says_what_is_in_flight() -> None:
    assert openfiles.shows_in_flight()


def made(root: Path, pid: str, mounts: str, status: str = "S", flags: int = 0) -> Path:
    folder = root / "proc" / pid
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/mnt").symlink_to(f"mnt:[{mounts}]")
    for name in ("fd", "fdinfo", "map_files"):
        (folder / name).mkdir()
    (folder / "comm").write_text("train\n")
    (folder / "cgroup").write_text("0::/a\n")
    (folder / "stat").write_text(f"{pid} (a) b) {status} 1 1 1 0 -1 {flags} 0 0 0 0\n")
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    made(tmp_path, "1", "1")
    made(tmp_path, "self", "1")
    return tmp_path


@pytest.mark.parametrize("name", ["fd", "map_files"])
def test_what_cannot_be_read_counts(proc: Path, name: str) -> None:
    folder = made(proc, "7", "7")
    (folder / name).rmdir()
    (folder / name).symlink_to(name)  # leads to itself: no error of a process that has gone
    (found,) = openfiles.find_openers([ZERO], root=proc)
    assert "cannot be read: Too many levels of symbolic links" in found.doubt


def test_an_agent_that_may_read_nothing_takes_no_refusal_for_a_doubt(node: Path) -> None:
    """Else one without privileges, as beside simulated GPUs in a cluster, would give no GPU on beside a living pod."""
    with hiding.hidden("plain", node) as pid:
        there, mine = os.pipe()
        child = os.fork()
        if not child:
            os.setgid(65534)
            os.setuid(65534)
            doubts = [one.doubt for one in look(pid)]
            os.write(mine, repr(doubts).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(there, 4096) == b"[]"
        os.close(there)
        os.close(mine)


def test_what_cannot_be_read_of_a_process_that_has_ended_does_not_count(proc: Path) -> None:
    for pid, state in (("7", "Z"), ("8", "X")):
        folder = made(proc, pid, pid, state)
        (folder / "fd").rmdir()
        (folder / "fd").symlink_to("fd")
    (made(proc, "9", "9") / "fd").rmdir()
    assert openfiles.find_openers([ZERO], root=proc) == ()


def test_a_process_that_is_closing_its_files_counts(proc: Path) -> None:
    """The driver may take seconds to close, and no table shows the file meanwhile."""
    made(proc, "7", "7", "D", flags=0x404004)
    (found,) = openfiles.find_openers([ZERO], root=proc)
    assert found.doubt == "is ending and may not have closed its files"


@pytest.mark.parametrize(
    ("link", "text", "doubt"),
    [
        ("anon_inode:[io_uring]", "UserFiles:\t2\n", "has files registered in an io_uring (2)"),
        ("anon_inode:[io_uring]", "UserFiles:\t0\n", ""),
        ("anon_inode:[io_uring]", "pos:\t0\n", "has files registered in an io_uring (not shown)"),
        ("socket:[7]", "pos:\t0\n", ""),  # no unix socket, or a kernel before 5.6
        ("socket:[7]", "scm_fds: 3\n", "has descriptors in flight in a socket (3)"),
        ("/dmabuf:", "size: 4096\n", "has a DMA-BUF, which may be of a GPU's memory"),
    ],
)
def test_what_kernels_say_of_files_without_a_name(proc: Path, link: str, text: str, doubt: str) -> None:
    folder = made(proc, "7", "7")
    (folder / "fd/3").symlink_to(link)
    (folder / "fdinfo/3").write_text(text)
    assert [one.doubt for one in openfiles.find_openers([ZERO], root=proc)] == ([doubt] if doubt else [])


def test_a_program_of_the_host_is_left_out(node: Path) -> None:
    """The driver's daemons have GPUs open for ever, and no container shares the host's mounts."""
    argv = (sys.executable, hiding.__file__, "plain", str(node))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert look(process.pid) == []
        process.communicate()

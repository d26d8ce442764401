"""Reading isolation back: on our own process, on real cgroups of both versions, and where it cannot be done."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import platform
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from pathlib import Path

import msgspec
import pytest

from fairlead import command, errors
from fairlead.kernel import cgroup as devicecgroup
from fairlead.kernel import probeprocess, readback
from fairlead.kernel.programs import openprobe
from fairlead.node.kubelet.devices.checkpoint import Checkpoint

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="joining namespaces needs root")
UNIFIED = next(
    (path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (path / "cgroup.procs").exists()),
    None,
)
DEVICES_V1 = Path("/sys/fs/cgroup/devices")


async def test_a_process_that_is_gone_is_not_found() -> None:
    child = await asyncio.create_subprocess_exec("true")
    await child.wait()
    with pytest.raises(errors.NotFound) as caught:
        await readback.read_back(child.pid, paths=(), numbers=())
    assert caught.value.reason == "ProcessGone"


@contextlib.asynccontextmanager
async def roomer() -> AsyncIterator[int]:
    """Run a process with mounts of its own: none of others' comes in, and what is mounted beside it would show."""
    script = "mount --make-rshared / && echo ready && exec sleep 60"
    argv = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script)
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        await process.wait()


@needs_root
async def test_opens_are_named_by_errno_and_nothing_stays() -> None:
    async with roomer() as pid:
        before = Path(f"/proc/{pid}/mounts").read_text().splitlines()

        found = await readback.read_back(
            pid, paths=("/dev/null", "/dev/fairlead-nothing", "/"), numbers=((1, 3), (195, 7))
        )

        assert found.opens == {
            "/dev/null": "OK",
            "/dev/fairlead-nothing": "ENOENT",
            "/": "EISDIR",
            "1:3": "OK",
            "195:7": "ENXIO",
        }
        # What somebody else on the machine unmounts and deletes goes from here as well: nothing more may be there.
        assert set(Path(f"/proc/{pid}/mounts").read_text().splitlines()) <= set(before)


async def test_device_nodes_are_listed_with_their_numbers() -> None:
    found = await readback.read_back(os.getpid(), paths=(), numbers=())
    assert readback.DeviceNode(path="/dev/null", major=1, minor=3) in found.nodes
    assert list(found.nodes) == sorted(found.nodes, key=lambda node: node.path)
    assert found.opens == {}


def fake_process(root: Path, *, cgroup: str, mounts: str, has_dev: bool = True) -> int:
    """Make a root whose only process is made of files."""
    process = root / "proc/4321"
    (process / "root").mkdir(parents=True)
    if has_dev:
        (process / "root/dev").mkdir()
    (process / "cgroup").write_text(cgroup)
    (root / "proc/self").mkdir()
    (root / "proc/self/mountinfo").write_text(mounts)
    return 4321


def mount(kind: str, point: Path, options: str, *, inside: str = "/") -> str:
    escaped = str(point).replace(" ", r"\040")
    return f"30 20 0:27 {inside} {escaped} rw,relatime shared:1 - {kind} cgroup {options}\n"


async def test_rules_of_cgroup_v1_are_in_the_kernels_words(tmp_path: Path) -> None:
    point = tmp_path / "cg roup"
    (point / "pod/a").mkdir(parents=True)
    (point / "pod/a/devices.list").write_text("c 1:3 rwm\nc 195:0 rwm\n")
    pid = fake_process(
        tmp_path, cgroup="5:devices,misc:/pod/a\n0::/x\n", mounts=mount("cgroup", point, "rw,misc,devices")
    )

    found = await readback.read_back(pid, paths=(), numbers=(), root=tmp_path)

    assert found.rules == ("c 1:3 rwm", "c 195:0 rwm")
    assert found.unread == ()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\x0cb:c", b"a\xe2\x80\xa8b"])
async def test_a_cgroup_may_have_any_name(tmp_path: Path, name: bytes) -> None:
    """A container that has its own cgroups makes them as it likes; `str.splitlines` would see two lines."""
    point = tmp_path / "devices"
    (point / os.fsdecode(name)).mkdir(parents=True)
    (point / os.fsdecode(name) / "devices.list").write_text("c 1:3 rwm\n")
    pid = fake_process(tmp_path, cgroup="", mounts=mount("cgroup", point, "rw,devices"))
    (tmp_path / "proc/4321/cgroup").write_bytes(b"5:devices:/" + name + b"\n0::/x\n")
    found = await readback.read_back(pid, paths=(), numbers=(), root=tmp_path)
    assert found.rules == ("c 1:3 rwm",)


async def test_a_hierarchy_mounted_from_below_its_root_is_followed(tmp_path: Path) -> None:
    point = tmp_path / "devices"
    (point / "a").mkdir(parents=True)
    (point / "a/devices.list").write_text("a *:* rwm\n")
    mounts = mount("cgroup", point, "rw,devices", inside="/pod")
    pid = fake_process(tmp_path, cgroup="5:devices:/pod/a\n", mounts=mounts)

    assert (await readback.read_back(pid, paths=(), numbers=(), root=tmp_path)).rules == ("a *:* rwm",)


async def test_what_cannot_be_read_is_named_and_not_claimed(tmp_path: Path) -> None:
    pid = fake_process(
        tmp_path, cgroup="5:devices:/gone\n", mounts=mount("cgroup", tmp_path / "cg", "rw,devices"), has_dev=False
    )

    found = await readback.read_back(pid, paths=("/dev/null",), numbers=(), root=tmp_path)

    assert (found.rules, found.nodes, found.opens) == ((), (), {})
    assert [line.partition(":")[0] for line in found.unread] == ["device rules", "device nodes", "what open() says"]


async def test_a_machine_without_a_device_cgroup_says_so(tmp_path: Path) -> None:
    pid = fake_process(tmp_path, cgroup="1:cpu:/\n", mounts=mount("tmpfs", tmp_path, "rw"))
    found = await readback.read_back(pid, paths=(), numbers=(), root=tmp_path)
    assert found.rules == ()
    assert "no device cgroup" in found.unread[0]


@contextlib.contextmanager
def hanging(root: Path) -> Iterator[int]:
    """Make a process whose device rules do not answer: whoever reads them waits, until the block ends."""
    point = root / "cg"
    point.mkdir()
    os.mkfifo(point / "devices.list")
    try:
        yield fake_process(root, cgroup="5:devices:/\n", mounts=mount("cgroup", point, "rw,devices"))
    finally:
        with contextlib.suppress(OSError):  # nobody reads it
            os.close(os.open(point / "devices.list", os.O_WRONLY | os.O_NONBLOCK))


async def test_rules_that_do_not_answer_in_time_are_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "READ_S", 0.2)
    with hanging(tmp_path) as pid:
        found = await readback.read_back(pid, paths=(), numbers=(), root=tmp_path)
    assert (found.rules, found.in_force) == ((), None)
    assert found.unread == ("device rules: the kernel does not answer reads within 0.2 s",)


async def test_nodes_that_are_not_listed_in_time_are_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "READ_S", 0.2)
    answer = threading.Event()
    monkeypatch.setattr(readback, "list_nodes", lambda _: answer.wait(20) or ())
    pid = fake_process(tmp_path, cgroup="1:cpu:/\n", mounts=mount("tmpfs", tmp_path, "rw"))
    try:
        found = await readback.read_back(pid, paths=(), numbers=(), root=tmp_path)
    finally:
        answer.set()
    assert found.nodes == ()
    assert "device nodes: the kernel does not answer reads within 0.2 s" in found.unread


async def test_a_process_that_cannot_be_held_in_time_is_unread_and_let_go_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readback, "READ_S", 0.2)
    answer, is_closed = threading.Event(), threading.Event()

    class Late(readback.Held):
        def close(self) -> None:
            is_closed.set()

    def held(*_: object) -> readback.Held:
        answer.wait(20)
        return Late(tmp_path, (), None, None)

    monkeypatch.setattr(readback, "hold", held)
    try:
        found = await readback.read_back(1, paths=("/dev/null",), numbers=(), root=tmp_path)
    finally:
        answer.set()
    assert (found.in_force, found.nodes, found.opens) == (None, (), {})
    assert [line.partition(":")[0] for line in found.unread] == ["device rules", "device nodes", "what open() says"]
    assert await asyncio.to_thread(is_closed.wait, 20)


async def test_reads_that_hang_keep_nobody_elses_thread(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(futures.ThreadPoolExecutor(2))
    with hanging(tmp_path) as pid:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(readback.read_back(pid, paths=(), numbers=(), root=tmp_path)) for _ in range(5)]
            await asyncio.sleep(0.1)
            checkpoint = Checkpoint(tmp_path)
            async with asyncio.timeout(2):
                await asyncio.to_thread(checkpoint.save, {})
            for read in reads:
                read.cancel()
    assert checkpoint.load() == ()


async def test_nothing_is_read_where_too_many_reads_hang_already() -> None:
    taken = [readback._FREE.acquire(blocking=False) for _ in range(readback._MOST)]
    try:
        found = await readback.read_back(os.getpid(), paths=(), numbers=())
    finally:
        readback._FREE.release(sum(taken))
    assert (found.in_force, found.nodes) == (None, ())
    assert [line.partition(":")[0] for line in found.unread] == ["device rules", "device nodes", "what open() says"]


async def test_a_probe_that_the_kernel_cannot_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probeprocess, "END_S", 0.1)
    probe = await probeprocess.ProbeProcess.start(["sleep", "60"])
    ends = command.end

    async def stuck(process: asyncio.subprocess.Process, *, at_once: bool = False) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            await ends(process, at_once=at_once)

    monkeypatch.setattr(command, "end", stuck)
    async with asyncio.timeout(10):
        await probe.close()
    assert not probe.is_waiting


def probe_of(cgroup_file: object) -> list[str]:
    argv = [sys.executable, "-I", "-S", str(openprobe.__file__)]
    return [*argv, str(cgroup_file), "--", "/proc/self/ns/mnt", "/dev/null", "--"]


def test_a_probe_that_cannot_go_in_says_why() -> None:
    result = subprocess.run(probe_of("/no/such/tasks"), capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (3, "")
    assert "/no/such/tasks: ENOENT" in result.stderr


@needs_root
def test_a_probe_moves_itself_where_no_child_can_be_born(tmp_path: Path) -> None:
    file = tmp_path / "cgroup.procs"  # of no cgroup: the kernel refuses the birth, as one before 5.7 does
    file.touch()
    result = subprocess.run(probe_of(file), capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, file.read_text()) == (0, '["OK"]\n', "0")


def said_to(*messages: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    """Run a probe that waits, with messages on its standard input."""
    texts = ["\0".join(str(word) for word in words) for words in messages]
    given = "".join(f"{len(text.encode())}\n{text}" for text in texts)
    argv = [sys.executable, "-I", "-S", str(openprobe.__file__), "-"]
    return subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=60)


def test_a_probe_without_orders_ends_silently() -> None:
    result = said_to()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@needs_root
@pytest.mark.parametrize("name", ["tasks", "cgroup.procs"])
def test_a_probe_goes_in_ahead_of_its_orders_and_only_once(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.touch()
    orders = (file, "--", "/proc/self/ns/mnt", "/dev/null", "--")
    result = said_to((file,), orders)
    assert (result.returncode, result.stdout, file.read_text()) == (0, '["OK"]\n', "0")


@needs_root
def test_a_probe_that_could_not_go_in_ahead_says_why_at_its_orders() -> None:
    result = said_to(("/no/such/tasks",), ("/no/such/tasks", "--", "/proc/self/ns/mnt", "--"))
    assert (result.returncode, result.stdout) == (3, "")
    assert "/no/such/tasks: ENOENT" in result.stderr


async def waiting_in(folder: Path, version: int) -> list[str]:
    """Return what a probe said that went into a cgroup ahead of its orders, and which was in there when it had them."""
    cgroup = devicecgroup.Cgroup(version=version, folder=folder, is_root=False)
    async with readback.started_ahead(is_wanted=True) as probe:
        assert probe is not None
        await probe.enter(readback.cgroup_files((cgroup,)))
        async with asyncio.timeout(20):
            while not (folder / "cgroup.procs").read_text():  # noqa: ASYNC110  the kernel tells nobody
                await asyncio.sleep(0.001)
        namespace = "/proc/self/ns/mnt"
        code, said = await probe.ask(
            [*readback.cgroup_files((cgroup,)), "--", namespace, "/dev/null", "/dev/zero", "--"]
        )
        assert code == 0
    async with asyncio.timeout(20):
        while (folder / "cgroup.procs").read_text():  # noqa: ASYNC110  as above
            await asyncio.sleep(0.01)
    return list(msgspec.json.decode(said))


@needs_root
@pytest.mark.skipif(not (DEVICES_V1 / "devices.list").exists(), reason="cgroup v1 devices is not mounted")
@pytest.mark.parametrize("folder", [DEVICES_V1], indirect=True)
async def test_a_probe_waits_for_its_orders_in_a_cgroup_of_version_1(folder: Path) -> None:
    (folder / "devices.deny").write_text("c 1:5 rwm")
    assert await waiting_in(folder, 1) == ["OK", "EPERM"]


@contextlib.asynccontextmanager
async def sleeper(procs: Path) -> AsyncIterator[int]:
    """Run a process of ours in a cgroup."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        procs.write_text(str(process.pid))
        yield process.pid
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    made = Path(request.param) / f"fairlead-test-{secrets.token_hex(4)}"
    made.mkdir()
    yield made
    made.rmdir()


@needs_root
@pytest.mark.skipif(not (DEVICES_V1 / "devices.list").exists(), reason="cgroup v1 devices is not mounted")
@pytest.mark.parametrize("folder", [DEVICES_V1], indirect=True)
async def test_a_denied_number_is_eperm_and_an_allowed_one_asks_the_driver(folder: Path) -> None:
    (folder / "devices.deny").write_text("a")
    for rule in ("c *:* m", "c 1:3 rwm", "c 195:1 rw"):
        (folder / "devices.allow").write_text(rule)
    async with sleeper(folder / "cgroup.procs") as pid:
        found = await readback.read_back(pid, paths=("/dev/null", "/dev/zero"), numbers=((195, 1), (195, 2)))
        left = (folder / "cgroup.procs").read_text().split()

    assert set(found.rules) == {"c *:* m", "c 1:3 rwm", "c 195:1 rw"}
    assert found.opens == {"/dev/null": "OK", "/dev/zero": "EPERM", "195:1": "ENXIO", "195:2": "EPERM"}
    assert left == [str(pid)]


VFIO_ROOM = "mount -t tmpfs x /dev && mkdir /dev/vfio && mknod /dev/vfio/41 c 195 1 && mknod /dev/x c 195 1"


@needs_root
@pytest.mark.skipif(not (DEVICES_V1 / "devices.list").exists(), reason="cgroup v1 devices is not mounted")
@pytest.mark.parametrize("folder", [DEVICES_V1], indirect=True)
async def test_a_vfio_node_is_not_opened_and_the_device_rules_are_heard_all_the_same(folder: Path) -> None:
    """A group has one opener: what reads the rules must never be it."""
    words = ("unshare", "-m", "sh", "-c", f"{VFIO_ROOM} && echo made && exec sleep 100")
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"made\n"
    try:
        (folder / "cgroup.procs").write_text(str(process.pid))
        found = await readback.read_back(process.pid, paths=("/dev/vfio/41", "/dev/x"), numbers=())
        assert found.opens == {"/dev/vfio/41": "OK", "/dev/x": "ENXIO"}  # it is opened, and no driver is there
        (folder / "devices.deny").write_text("a")
        found = await readback.read_back(process.pid, paths=("/dev/vfio/41", "/dev/vfio/none"), numbers=())
        assert found.opens == {"/dev/vfio/41": "EPERM", "/dev/vfio/none": "ENOENT"}
    finally:
        process.kill()
        await process.wait()


@needs_root
@pytest.mark.skipif(not (DEVICES_V1 / "devices.list").exists(), reason="cgroup v1 devices is not mounted")
@pytest.mark.parametrize("folder", [DEVICES_V1], indirect=True)
async def test_a_node_that_may_not_even_be_made_is_told_apart(folder: Path) -> None:
    (folder / "devices.deny").write_text("a")
    async with sleeper(folder / "cgroup.procs") as pid:
        found = await readback.read_back(pid, paths=(), numbers=((195, 2),))
    assert found.opens == {"195:2": "mknod:EPERM"}


def bpf(command: int, attributes: bytes) -> int:
    number = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
    if number is None:
        pytest.skip(f"no number of bpf(2) for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, len(attributes))
    if result < 0:
        pytest.skip(f"bpf({command}) is refused here: {os.strerror(ctypes.get_errno())}")
    return result


def deny_all_but_null(folder: Path) -> None:
    """Attach a device program to a cgroup v2 folder that allows minor 3 alone; it goes with the folder."""
    # r6 = ctx->minor (struct bpf_cgroup_dev_ctx, offset 8); r0 = 1; if r6 == 3 goto +1; r0 = 0; exit
    code = b"".join(
        struct.pack("<BBhi", opcode, registers, offset, immediate)
        for opcode, registers, offset, immediate in [
            (0x61, 0x16, 8, 0),
            (0xB7, 0x00, 0, 1),
            (0x15, 0x06, 1, 3),
            (0xB7, 0x00, 0, 0),
            (0x95, 0x00, 0, 0),
        ]
    )
    instructions, license_text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    load = struct.pack(  # BPF_PROG_LOAD, BPF_PROG_TYPE_CGROUP_DEVICE
        "<IIQQIIQII", 15, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(license_text), 0, 0, 0, 0, 0
    )
    program = bpf(5, load)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bpf(8, struct.pack("<IIII", handle, program, 6, 0))  # BPF_PROG_ATTACH, BPF_CGROUP_DEVICE
    finally:
        os.close(handle)
        os.close(program)


@needs_root
@pytest.mark.skipif(UNIFIED is None, reason="cgroup v2 is not mounted")
@pytest.mark.parametrize("folder", [UNIFIED], indirect=True)
async def test_programs_of_cgroup_v2_are_decoded_and_obeyed(folder: Path, tmp_path: Path) -> None:
    deny_all_but_null(folder)
    async with sleeper(folder / "cgroup.procs") as pid:
        root = tmp_path  # where cgroup v2 is all there is
        (root / "proc/self").mkdir(parents=True)
        (root / "proc" / str(pid)).symlink_to(f"/proc/{pid}")
        (root / "proc/self/mountinfo").write_text(mount("cgroup2", folder.parent, "rw"))
        found = await readback.read_back(pid, paths=("/dev/null", "/dev/zero"), numbers=(), root=root)

    assert found.opens == {"/dev/null": "OK", "/dev/zero": "EPERM"}
    # The program looks at the minor alone, for every access and both kinds.
    assert found.rules == ("b *:3 rwm", "c *:3 rwm")
    assert found.unread == ()


@needs_root
@pytest.mark.skipif(UNIFIED is None, reason="cgroup v2 is not mounted")
@pytest.mark.parametrize("folder", [UNIFIED], indirect=True)
async def test_a_probe_waits_for_its_orders_in_a_cgroup_of_version_2(folder: Path) -> None:
    deny_all_but_null(folder)
    assert await waiting_in(folder, 2) == ["OK", "EPERM"]


@needs_root
@pytest.mark.skipif(UNIFIED is None, reason="cgroup v2 is not mounted")
@pytest.mark.parametrize("folder", [UNIFIED], indirect=True)
def test_a_probe_ends_as_its_child_in_the_cgroup_ends(folder: Path) -> None:
    if not (folder / "cgroup.kill").exists():
        pytest.skip("cgroup.kill is not there before Linux 5.14")
    (folder / "cgroup.freeze").write_text("1")  # the child stands still before its first instruction
    process = subprocess.Popen(probe_of(folder / "cgroup.procs"))
    try:
        while not (born := (folder / "cgroup.procs").read_text().split()):
            assert process.poll() is None
            time.sleep(0.01)
        assert born != [str(process.pid)]
        (folder / "cgroup.kill").write_text("1")
        assert process.wait() == -signal.SIGKILL
    finally:
        (folder / "cgroup.kill").write_text("1")
        process.kill()
        process.wait()


@needs_root
async def test_a_container_that_is_held_is_read_after_its_process_has_ended(tmp_path: Path) -> None:
    script = f"mount -t tmpfs t {tmp_path} && mknod {tmp_path}/own c 1 3 && echo up && exec sleep 100"
    child = await asyncio.create_subprocess_exec("unshare", "--mount", "sh", "-c", script, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"up\n"
    held = readback.hold(child.pid)
    try:
        child.kill()
        await child.communicate()
        found = await readback.read_held(held, paths=(f"{tmp_path}/own",), numbers=())
    finally:
        held.close()
    assert found.opens == {f"{tmp_path}/own": "OK"}
    assert not (tmp_path / "own").exists()


def test_a_container_with_the_hosts_pids_reads_the_hosts_cgroup_mounts(tmp_path: Path) -> None:
    for name, space, point in (("1", "mnt:[1]", "/sys/fs/cgroup"), ("self", "mnt:[2]", "/own")):
        process = tmp_path / "proc" / name
        (process / "ns").mkdir(parents=True)
        (process / "ns/mnt").symlink_to(space)
        (process / "mountinfo").write_text(mount("cgroup2", Path(point), "rw", inside="/../.."))
    assert devicecgroup.mounts(tmp_path) == {"cgroup2": ("/../..", tmp_path / "proc/1/root/sys/fs/cgroup")}


@needs_root
async def test_numbers_are_not_tried_by_an_agent_that_may_not_make_nodes() -> None:
    code = (
        "import asyncio, json, os\n"
        "from fairlead.kernel import readback\n"
        "found = asyncio.run(readback.read_back(os.getpid(), paths=('/dev/null',), numbers=((1, 3),)))\n"
        "print(json.dumps([found.opens, [text for text in found.unread if 'MKNOD' in text]]))\n"
    )
    argv = ("setpriv", "--bounding-set", "-mknod", "--inh-caps", "-mknod", "--", sys.executable, "-c", code)
    child = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    said, _ = await child.communicate()
    opens, unread = json.loads(said)
    assert opens == {"/dev/null": "OK"}
    assert unread == ["what open() says of numbers without a node: making one needs CAP_MKNOD"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize(("mode", "outcome"), [(0o444, "OK"), (0o666, "OK"), (0o644, "EACCES"), (0o000, "EACCES")])
def test_a_node_that_nobody_may_write_is_opened_as_its_driver_opens_it(mode: int, outcome: str) -> None:
    # The agent's container has no CAP_DAC_OVERRIDE: for it, as for this user, modes count.
    text = Path(openprobe.__file__).read_text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvidia-cap3"
        path.touch()
        path.chmod(mode)
        Path(folder).chmod(0o755)
        become = "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
        program = f"{text.partition('if __name__')[0]}\n{become}\nprint(open_outcome(sys.argv[1]))"
        argv = [sys.executable, "-I", "-S", "-c", program, str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{outcome}\n"

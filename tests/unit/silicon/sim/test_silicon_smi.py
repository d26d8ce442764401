"""The stand-in nvidia-smi, run by busybox and dash in a root that holds nothing else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from fairlead.silicon.sim import fault, machine, profile, smi

BUSYBOX = Path("/usr/bin/busybox")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or not BUSYBOX.exists()
    or b"/ld-linux" in BUSYBOX.read_bytes(),  # the loader that a program with shared libraries names
    reason="needs root and a static busybox",
)


class Jail:
    """A container's view: a shell, the script, and some device nodes."""

    def __init__(self, folder: Path, host: machine.Machine) -> None:
        self.folder, self.host = folder, host
        for name in ("bin", "dev/nvidia-caps"):
            (folder / name).mkdir(parents=True)
        shutil.copy(BUSYBOX, folder / "bin/sh")
        self.write()
        self.add("nvidiactl", 195, 255)

    def write(self) -> None:
        with self.host.lock:
            (self.folder / "bin/nvidia-smi").write_text(smi.script(self.host))
        (self.folder / "bin/nvidia-smi").chmod(0o755)

    def add(self, name: str, major: int, minor: int) -> None:
        os.mknod(self.folder / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def add_gpus(self, *minors: int) -> None:
        for minor in minors:
            self.add(f"nvidia{minor}", 195, minor)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = ["chroot", str(self.folder), "/bin/nvidia-smi", *options]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/bin"}
        )


@pytest.fixture
def jail(tmp_path: Path) -> Jail:
    return Jail(tmp_path / "jail", machine.Machine(profile.load("mixed")))


def test_only_openable_gpus_are_listed_numbered_from_0(jail: Jail) -> None:
    jail.add_gpus(6, 3)
    boards = {board.minor: board for board in jail.host.profile.boards}
    answer = jail.run("-L")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == [
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {boards[3].uuid})",
        f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {boards[6].uuid})",
    ]


def test_the_table_says_simulated_and_shows_each_gpu(jail: Jail) -> None:
    jail.add_gpus(0, 1)
    answer = jail.run()
    assert answer.returncode == 0
    assert "SIMULATED" in answer.stdout
    assert answer.stdout.count("Tesla T4") == 2
    assert len({len(line) for line in answer.stdout.splitlines()}) == 1


def test_a_query_prints_csv_as_asked(jail: Jail) -> None:
    jail.add_gpus(2)
    uuid = jail.host.profile.boards[0].uuid
    fields = "--query-gpu=index,uuid,name,memory.total"
    with_header = jail.run(fields, "--format=csv").stdout.splitlines()
    assert with_header == ["index, uuid, name, memory.total [MiB]", f"0, {uuid}, NVIDIA H100 80GB HBM3, 81559 MiB"]
    assert jail.run(fields, "--format=csv,noheader").stdout == f"0, {uuid}, NVIDIA H100 80GB HBM3, 81559 MiB\n"
    assert jail.run(fields, "--format=csv,noheader,nounits").stdout == f"0, {uuid}, NVIDIA H100 80GB HBM3, 81559\n"


def test_one_gpu_can_be_chosen(jail: Jail) -> None:
    jail.add_gpus(2, 3, 4)
    query = ("--query-gpu=index", "--format=csv,noheader")
    assert jail.run("-i", "1", *query).stdout == "1\n"
    assert jail.run(f"--id={jail.host.profile.boards[2].uuid}", *query).stdout == "2\n"
    assert jail.run("-i", "7", *query).returncode == 6


@pytest.mark.parametrize(
    "options",
    [
        ["--nonsense"],
        ["--query-gpu=index"],
        ["--query-gpu=cost", "--format=csv"],
        ["--format=csv"],
        ["-i"],
        ["--query-gpu=index", "--format=xml"],
    ],
)
def test_what_is_not_offered_is_refused_with_2(jail: Jail, options: list[str]) -> None:
    jail.add_gpus(2)
    answer = jail.run(*options)
    assert answer.returncode == 2
    assert "nvidia-smi -h" in answer.stdout + answer.stderr


def test_no_gpu_is_6_and_no_driver_9(jail: Jail) -> None:
    assert (jail.run().returncode, "No devices were found" in jail.run("-L").stdout) == (6, True)
    (jail.folder / "dev/nvidiactl").unlink()
    assert jail.run().returncode == 9


def test_help_and_version_need_no_gpu(jail: Jail) -> None:
    assert "SIMULATED" in jail.run("-h").stdout
    assert "550.163.01" in jail.run("--version").stdout


def test_a_node_the_kernel_refuses_is_not_listed(jail: Jail) -> None:
    jail.add_gpus(3)
    (jail.folder / "denied").mkdir()
    (jail.folder / "dev/nvidia2").symlink_to("/denied/nvidia2")
    denied = "mount -t tmpfs -o nodev none denied && mknod denied/nvidia2 c 195 2"
    script = f"cd '{jail.folder}' && {denied} && exec chroot . /bin/nvidia-smi -L"
    answer = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {jail.host.profile.boards[1].uuid})\n"


def test_mig_devices_are_listed_below_their_gpu_where_their_caps_open(jail: Jail) -> None:
    jail.add_gpus(2, 3)
    for name, value in (("mig-mode", "on"), ("mig-create", "1g.10gb@0"), ("mig-create", "3g.40gb@4")):
        fault.inject(jail.host, name, gpu=0, value=value)
    jail.write()
    board, item = jail.host.profile.boards[0], jail.host.gpus[0].partition.instances
    (small,) = [number for number, instance in item.items() if instance.row.name == "1g.10gb"]
    for minor in (smi.cap_minor(board.minor, small), smi.cap_minor(board.minor, small, 0)):
        jail.add(f"nvidia-caps/nvidia-cap{minor}", 510, minor)
    lines = jail.run("-L").stdout.splitlines()
    assert len(lines) == 3
    assert lines[1] == f"  MIG 1g.10gb         Device  0: (UUID: {profile.mig_uuid(board.uuid, small, 0)})"


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_every_posix_shell_reads_it(jail: Jail, shell: list[str], tmp_path: Path) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"no {shell[0]} here")
    answer = subprocess.run([*shell, str(jail.folder / "bin/nvidia-smi"), "-h"], capture_output=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, b"")

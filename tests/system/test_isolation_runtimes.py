"""Raw runc and crun on cgroup v1 and on v2: what a container may open, what is read back, and devices changed live.

This machine has the v1 devices controller and, in a mount namespace of its own, the v2 hierarchy alone: a runtime that
finds only that attaches BPF device programs, which the same kernel enforces. So each cell of runtime x version is the
real program on the real kernel; one that cannot be had here is skipped with the kernel's own reason.

Granted: ENXIO (allowed, no driver behind the number). Not granted, but made with mknod: EPERM. Not injected: ENOENT.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import oci_bundle
import pytest
from oci_bundle import Lab

from fairlead.kernel import bpf, readback
from fairlead.kernel import cgroup as devicecgroup
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi
from tests.unit.cli import liveservice
from tests.unit.wire.oci.test_device_program import systemd

KIND = oci_bundle.KIND
CELLS = [(runtime, version) for runtime in ("runc", "crun") for version in (1, 2)]
ONLY_V2 = "umount -R -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && "
KMSG = (1, 11)
"""A device that opens without a driver of ours and that no runtime allows by itself: the kernel's log."""
LOOK = r"""
try() { if (: < "$1") 2>/tmp/why; then echo "$2 OK"; else echo "$2 $(cat /tmp/why)"; fi; }
for i in 0 1 2 3; do try /dev/nvidia$i path:$i; done
for i in 0 1 2 3; do
  rm -f /tmp/made; mknod /tmp/made c 195 $i 2>/tmp/why && try /tmp/made number:$i || echo "number:$i mknod"
done
"""
WORDS = {
    "No such device or address": "ENXIO",
    "Operation not permitted": "EPERM",
    "no such file": "ENOENT",
    "OK": "OK",
}
# crun before 1.21 insists on raising RLIMIT_MEMLOCK for its program, which this kernel does not need.
CAN_RAISE = """
int setrlimit(int resource, const void *limits) { return 0; }
int setrlimit64(int resource, const void *limits) { return 0; }
"""


class Bench:
    """One runtime on one cgroup version."""

    def __init__(self, lab: Lab, version: int) -> None:
        self.lab, self.version, self.runtime = lab, version, lab.runtime

    def start(self, name: str, *devices: str, command: Sequence[str] = ("sleep", "300"), **more: Any) -> int:
        """Create and start a container of devices; returns the pid of its first process."""
        bundle = self.lab.bundle(*command, name=name)
        for applet in ("sleep", "rm"):
            (bundle / "rootfs/bin" / applet).symlink_to("busybox")
        config = bundle / "config.json"
        if devices:
            done = self.fairlead("cdi", "inject", str(config), *(f"{KIND}={one}" for one in devices), *self.specs)
            assert done.returncode == 0, done.stderr
            config.write_text(done.stdout)
        document = json.loads(config.read_text())
        document["linux"]["cgroupsPath"] = f"/fairlead-test-{os.getpid()}-{name}"
        config.write_text(json.dumps({**document, **more}))
        self.lab.started.append(name)
        self.checked("create", "--bundle", str(bundle), name, output=self.lab.folder / f"{name}.out")
        self.checked("start", name)
        return self.pid(name)

    def pid(self, name: str) -> int:
        done = self.call("state", name)
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["pid"])

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = (*self.lab.prefix, self.runtime, *arguments)
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)

    def checked(self, *arguments: str, output: Path | None = None) -> None:
        # A container inherits what `create` was given: a pipe would stay open for as long as it lives.
        target = output or self.lab.folder / "out"
        with target.open("wb") as file:
            line = (*self.lab.prefix, self.runtime, *arguments)
            code = subprocess.run(
                line, stdout=file, stderr=file, stdin=subprocess.DEVNULL, check=False, timeout=30
            ).returncode
        assert code == 0, target.read_text()

    def look(self, name: str) -> dict[str, str]:
        """What a process inside sees, by `path:N` and `number:N`; it has CAP_MKNOD."""
        done = self.call("exec", name, "/bin/sh", "-c", LOOK)
        assert done.returncode == 0, done.stderr
        pairs = (line.partition(" ")[::2] for line in done.stdout.splitlines())
        return {key: next((token for words, token in WORDS.items() if words in text), text) for key, text in pairs}

    @property
    def specs(self) -> tuple[str, str]:
        return ("--spec-dir", str(self.lab.folder / "cdi"))

    def fairlead(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a verb in this process: starting one for each costs more than what it does."""
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "FAIRLEAD_STATE_FOLDER": str(self.lab.folder / "state"),
            "FAIRLEAD_STATE_RUN": str(self.lab.folder / "run"),
        }
        done = liveservice.fairlead(*arguments, env=env)
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def audit(self, pid: int, *more: str) -> tuple[int, dict[str, Any]]:
        """Exit code and report of `fairlead isolate audit --pid`."""
        done = self.fairlead("isolate", "audit", "--pid", str(pid), *self.specs, *more, "-o", "json")
        assert done.stdout, done.stderr
        (report,) = json.loads(done.stdout)
        return done.returncode, report


def expected(*granted: int) -> dict[str, str]:
    return {
        **{f"path:{index}": "ENXIO" if index in granted else "ENOENT" for index in range(4)},
        **{f"number:{index}": "ENXIO" if index in granted else "EPERM" for index in range(4)},
    }


def prefix(runtime: str, version: int, folder: Path) -> tuple[str, ...]:
    """What a runtime is started with here, so that it finds the one version."""
    if (runtime, version) == ("runc", 1):
        return ()
    if version == 1:
        return oci_bundle.IN_CRUN
    run = 'exec "$@"'
    if runtime == "crun":
        oci_bundle.require("gcc")
        library = oci_bundle.compile_c(CAN_RAISE, folder / "can_raise.so", "-shared", "-fPIC", "-fno-builtin", "-w")
        run = f'LD_PRELOAD={library} exec "$@"'
    return ("unshare", "-m", "--propagation", "private", "sh", "-c", ONLY_V2 + run, "sh")


def cgroup_v2() -> Path:
    """Where the v2 hierarchy is mounted; skips where no device program can be asked for."""
    for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (path / "cgroup.procs").exists():
            try:
                bpf.attached(path)
            except bpf.Refused as error:
                pytest.skip(f"device programs cannot be read here: {error}")
            return path
    pytest.skip("cgroup v2 is not mounted")


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    runtime, version = request.param
    oci_bundle.require(runtime, "busybox", "unshare")
    if "195 nvidia" in Path("/proc/devices").read_text():
        pytest.skip("a real driver answers for these numbers")
    if version == 1 and not Path("/sys/fs/cgroup/devices/devices.list").exists():
        pytest.skip("cgroup v1 devices is not mounted")
    if version == 2:
        cgroup_v2()
    tmp_path.chmod(0o755)
    lab = Lab(tmp_path, runtime=runtime, prefix=prefix(runtime, version, tmp_path))
    lab.spec()
    one = Bench(lab, version)
    yield one
    lab.close()


every_cell = pytest.mark.parametrize("bench", CELLS, indirect=True, ids=[f"{a}-v{b}" for a, b in CELLS])


@every_cell
def test_granted_is_enxio_made_by_hand_is_eperm_and_not_injected_is_enoent(bench: Bench) -> None:
    for name, granted in (("a", (0, 1)), ("b", (2,)), ("none", ())):
        bench.start(name, *map(str, granted))
        assert bench.look(name) == expected(*granted), name


@every_cell
async def test_what_is_read_from_outside_is_what_the_process_sees(bench: Bench) -> None:
    pid = bench.start("a", "1", "3")
    found = await readback.read_back(
        pid, paths=tuple(f"/dev/nvidia{i}" for i in range(4)), numbers=tuple((195, i) for i in range(4))
    )
    seen = {f"path:{i}": found.opens[f"/dev/nvidia{i}"] for i in range(4)}
    seen |= {f"number:{i}": found.opens[f"195:{i}"] for i in range(4)}
    assert seen == bench.look("a") == expected(1, 3)
    assert found.unread == ()
    assert found.in_force is not None
    open_numbers = {rule.minor for rule in found.in_force.rules if rule.major == 195 and "r" in rule.access}
    assert open_numbers == {1, 3, 255}
    assert "r" not in found.in_force.access("c", None, None)
    assert found.in_force.access("c", 1, 3) == "rwm"


@every_cell
def test_a_gpu_comes_and_goes_while_the_container_runs(bench: Bench) -> None:
    pid = bench.start("a", "0")

    given = bench.fairlead("attach", "--pid", str(pid), f"{KIND}=2", *bench.specs, "-o", "json")
    assert given.returncode == 0, given.stderr
    assert bench.look("a") == expected(0, 2)
    assert json.loads(given.stdout)["opens"]["/dev/nvidia2"] == "ENXIO"

    taken = bench.fairlead("detach", "--pid", str(pid), "0", *bench.specs, "-o", "json")
    assert taken.returncode == 0, taken.stderr
    assert bench.look("a") == expected(2)
    done = json.loads(taken.stdout)
    assert done["nodes"] == [{"path": "/dev/nvidia0", "done": "removed"}]  # nvidiactl is the other GPU's too
    assert done["opens"] == {"/dev/nvidia0": "ENOENT", "195:0": "EPERM"}


@every_cell
def test_a_gpu_that_another_container_may_open_is_refused(bench: Bench) -> None:
    one, _ = bench.start("a", "0"), bench.start("b", "1")
    done = bench.fairlead("attach", "--pid", str(one), "1", *bench.specs)
    assert done.returncode == 4
    assert "is held by container b" in done.stderr
    assert bench.look("a") == expected(0)


@every_cell
def test_rules_that_somebody_set_anew_are_found_and_mended(bench: Bench) -> None:
    """What `systemctl daemon-reload` does to rules that were set behind its back."""
    pid = bench.start("a", "0")
    assert bench.fairlead("attach", "--pid", str(pid), "3", *bench.specs).returncode == 0
    wanted = ("--device", f"{KIND}=0", "--device", f"{KIND}=3")
    assert bench.audit(pid, *wanted)[0] == 0

    wipe(bench, pid)

    code, report = bench.audit(pid, *wanted)
    assert code == 4
    assert {(one["verdict"], one["subject"]) for one in report["findings"]} == {("too narrow", "c 195:3 rw")}
    assert bench.look("a")["path:3"] == "EPERM"

    code, report = bench.audit(pid, *wanted, "--repair")
    assert (code, report["repaired"]) == (0, ["allowed c 195:3 rw"])
    seen = bench.look("a")
    assert [seen[f"path:{i}"] for i in range(4)] == ["ENXIO", "ENOENT", "ENOENT", "ENXIO"]
    assert not {seen["number:1"], seen["number:2"]} & {"OK", "ENXIO"}


def wipe(bench: Bench, pid: int) -> None:
    """Set the rules of the container's first devices alone, as a service manager does that knows of no others."""
    for cgroup in devicecgroup.read(devicecgroup.of_process(Path(f"/proc/{pid}"), Path("/"))).restricting:
        if cgroup.version == 1:
            (cgroup.folder / "devices.deny").write_text("c 195:3 rwm")
        else:
            standard = [(2, 7, 1, minor) for minor in (3, 5, 7, 8, 9)] + [(2, 7, 5, 0), (2, 7, 5, 2), (2, 7, 136, None)]
            bpf.replace(cgroup.folder, systemd(*standard, (2, 6, 195, 0), (2, 6, 195, 255)))


@every_cell
def test_a_container_that_may_open_too_much_is_narrowed(bench: Bench) -> None:
    pid = bench.start("a", "0", "1", "2")
    code, report = bench.audit(pid, "--device", f"{KIND}=1")
    assert code == 4
    wide = {one["subject"] for one in report["findings"] if one["verdict"] == "too wide"}
    assert wide == {"c 195:0 rw", "c 195:2 rw"}
    # By its runtime spec alone all three are its own.
    assert bench.audit(pid)[0] == 0

    assert bench.audit(pid, "--device", f"{KIND}=1", "--repair")[0] == 0
    seen = bench.look("a")
    assert [seen[f"path:{i}"] for i in range(4)] == ["EPERM", "ENXIO", "EPERM", "ENOENT"]


@every_cell
def test_a_rule_for_everything_is_taken_as_a_whole(bench: Bench) -> None:
    document = json.loads(oci_bundle.spec_template())
    wide = [{"allow": True, "access": "rwm"}]
    linux = {**document["linux"], "resources": {"devices": wide}, "cgroupsPath": f"/fairlead-test-{os.getpid()}-w"}
    pid = bench.start("w", linux=linux)
    bundle = bench.lab.folder / "w/config.json"
    assert [one["verdict"] for one in bench.audit(pid)[1]["findings"]] == ["unconfined"]

    # The same container, had its runtime spec not allowed it.
    bundle.write_text(json.dumps({**json.loads(bundle.read_text()), "linux": document["linux"]}))
    code, report = bench.audit(pid, "--device", f"{KIND}=2")
    if bench.version == 1 and code == 0:
        pytest.fail(str(report))
    assert "too wide" in {one["verdict"] for one in report["findings"]}
    assert bench.audit(pid, "--device", f"{KIND}=2", "--repair")[0] == 0
    assert bench.look("w") == expected(2)


def log_device(bench: Bench) -> None:
    """Offer the kernel's log as a device: one that can be opened and held here."""
    node = bench.lab.folder / "dev/log"
    os.mknod(node, 0o20666, os.makedev(*KMSG))
    node.chmod(0o666)
    edits = cdi.ContainerEdits(
        device_nodes=(cdi.DeviceNode(path="/dev/gpulog", host_path=str(node), permissions="rw"),)
    )
    made = cdi.Spec(cdi_version="", kind="log.fairlead.dev/gpu", devices=(cdi.Device(name="log", edits=edits),))
    (bench.lab.folder / "cdi/log.json").write_bytes(emit.emit_json(made))


@every_cell
def test_who_has_a_device_open_is_named_and_ended_only_by_force(bench: Bench) -> None:
    log_device(bench)
    pid = bench.start("a")
    name = "log.fairlead.dev/gpu=log"
    assert bench.fairlead("attach", "--pid", str(pid), name, *bench.specs).returncode == 0
    bench.checked("exec", "--detach", "a", "/bin/sh", "-c", "exec 3>/dev/gpulog; exec sleep 302")
    bench_until(lambda: holders(pid))

    refused = bench.fairlead("detach", "--pid", str(pid), name, *bench.specs)
    assert refused.returncode == 4
    (holder,) = holders(pid)
    assert f"sleep (pid {holder})" in refused.stderr
    again = bench.call("exec", "a", "/bin/sh", "-c", ": > /dev/gpulog")
    assert again.returncode == 0, again.stderr  # nothing was taken

    forced = bench.fairlead("detach", "--pid", str(pid), name, "--force", *bench.specs, "-o", "json")
    assert forced.returncode == 0, forced.stderr
    assert [one["pid"] for one in json.loads(forced.stdout)["ended"]] == [holder]
    assert not Path(f"/proc/{holder}/fd/3").exists()
    assert bench.pid("a") == pid
    assert bench.call("exec", "a", "/bin/sh", "-c", "mknod /dev/gpulog c 1 11; : > /dev/gpulog").returncode != 0


def holders(pid: int) -> list[int]:
    """Processes in the mount namespace of a container that have the log open, found without the code under test."""
    space = Path(f"/proc/{pid}/ns/mnt").readlink()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if (process / "ns/mnt").readlink() == space and (process / "fd/3").stat().st_rdev == os.makedev(*KMSG):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def bench_until(check: Any) -> None:
    """A process of another program has no event to wait for."""
    for _ in range(200):
        if check():
            return
        subprocess.run(("sleep", "0.05"), check=True)
    raise AssertionError("not within 10 s")


@every_cell
@pytest.mark.parametrize(
    ("trap", "why"),
    [
        ("ln -s /tmp/elsewhere /dev/nvidia2", "something else stands there"),
        ("mkdir /dev/nvidia2", "something else stands there"),
        ("echo x > /dev/nvidia2", "something else stands there"),
    ],
)
def test_what_a_container_puts_in_the_way_makes_it_refuse_and_changes_nothing(
    bench: Bench, trap: str, why: str
) -> None:
    pid = bench.start("a", "0")
    (bench.lab.folder / "a/rootfs/bin/ln").symlink_to("busybox")
    (bench.lab.folder / "a/rootfs/bin/mkdir").symlink_to("busybox")
    assert bench.call("exec", "a", "/bin/sh", "-c", trap).returncode == 0
    done = bench.fairlead("attach", "--pid", str(pid), "2", *bench.specs)
    assert done.returncode == 4
    assert why in done.stderr
    assert bench.look("a")["number:2"] == "EPERM"
    assert not (bench.lab.folder / "a/rootfs/tmp/elsewhere").exists()


def test_a_process_of_the_host_is_never_touched(tmp_path: Path) -> None:
    oci_bundle.require("busybox")
    bench = Bench(Lab(tmp_path), 1)
    bench.lab.spec()
    for words in (("isolate", "audit", "--repair"), ("attach", "0"), ("detach", "0")):
        done = bench.fairlead(*words, "--pid", str(os.getpid()), *bench.specs)
        assert done.returncode == 2
        assert "is in no container" in done.stderr

"""Containers on gVisor, as a user runs them: real runsc under podman, simulated GPUs, tenancies that demand it.

ENXIO: the node was handed on and no driver is behind it. ENOENT: it was not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gvisorhome
import pytest
from home import Home, make_home

from fairlead.kernel import cgrouplimits
from fairlead.kernel.cgrouplimits import Limits
from fairlead.wire.text import timestamp

pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]
LOOK = "for i in 0 1 2 3 4 5 6 7 ctl; do cat /dev/nvidia$i; done 2>&1; dmesg | head -1"
ENXIO, ENOENT = "No such device or address", "No such file or directory"


@pytest.fixture(scope="module")
def gvisor(image: str) -> Iterator[Home]:
    gvisorhome.programs()
    one = make_home(image)
    gvisorhome.with_own_configuration(one)
    gvisorhome.configure(one, f"nvproxy-driver-version={gvisorhome.KNOWN}")
    one.up(FAIRLEAD_CONTROL_START_OBJECTIVES="0=1h,1=0.001s")
    yield one
    one.clear()
    for name in one("tenancy", "list", "-o", "name").out.split():
        one("tenancy", "delete", name)
    one.close()
    one.forget_networks()
    shutil.rmtree(one.folder, ignore_errors=True)


def seen(text: str) -> tuple[set[str], str]:
    """Return the nodes that answer ENXIO, and the kernel's first words; every other node is not there."""
    *lines, kernel = text.strip().splitlines()
    own = {line.partition("'/dev/nvidia")[2].partition("'")[0] for line in lines if line.endswith(ENXIO)}
    assert all(line.endswith((ENXIO, ENOENT)) for line in lines), text
    return own, kernel


def test_a_container_sees_its_own_gpus_nodes_and_no_siblings_on_gvisors_kernel(gvisor: Home) -> None:
    gvisor.start("other", "-g", "2")
    done = gvisor.run("--isolation", "gvisor", "-g", "2", "--name", "own", "--", "sh", "-c", LOOK)
    nodes, kernel = seen(done.out)
    assert "Starting gVisor" in kernel
    held = gvisor.show("own")["gpu_ids"]
    indices = {one["gpu"]["index"] for one in gvisor.ask("/v1/gpus")["gpus"] if one["gpu"]["uuid"] in held}
    assert len(indices) == 2
    assert nodes == {str(index) for index in indices} | {"ctl"}
    assert "not from the driver of its GPUs" in done.err


def test_what_isolates_it_is_said_by_ps_explain_trace_and_the_api(gvisor: Home) -> None:
    gvisor.start("said", "--isolation", "gvisor", "-g", "1")
    assert gvisor.show("said")["isolation"] == "gvisor"
    assert gvisor.ok("ps", "--format", "{{.Name}} {{.Isolation}}").out.splitlines().count("said gvisor") == 1
    assert "its isolation is gvisor" in gvisor.ok("explain", "said").out
    trace = gvisor.ok("trace", "said").out
    assert "isolation gvisor" in trace.splitlines()[0]
    assert "device nodes that gVisor can open read back from its gofer" in trace
    steps = json.loads(gvisor.ok("trace", "said", "-o", "json").out)["entries"]
    (read,) = [entry["step"] for entry in steps if entry["stage"] == "isolated"]
    found = {node["path"] for node in read["facts"]["nodes"]}
    assert len([path for path in found if path.removeprefix("/dev/nvidia").isdecimal()]) == 1


def test_the_phases_of_its_start_add_up_and_a_broken_objective_names_the_longest(gvisor: Home) -> None:
    command = ("sh", "-c", "sleep 1; echo written; sleep 1000")
    gvisor.start("slow", "--isolation", "gvisor", "-g", "1", command=command)
    gvisor.until(lambda: "FirstOutput" in gvisor("trace", "slow", "-o", "json").out, what="its first output is known")
    shown = gvisor.ask("/v1/containers/slow")
    took = {one["name"]: one["duration_s"] for one in shown["start"]}
    assert list(took) == ["admission", "slot", "sandbox", "first output"]
    assert took["first output"] > 0.9
    begun = timestamp.unix_seconds(shown["start"][0]["started_at"])
    (started,) = [
        entry["step"]["at"]
        for entry in json.loads(gvisor.ok("trace", "slow", "-o", "json").out)["entries"]
        if entry["stage"] == "started"
    ]
    wall = timestamp.unix_seconds(started) - begun
    assert sum(took.values()) - took["first output"] == pytest.approx(wall, rel=0.02)
    explained = gvisor.ok("explain", "slow").out
    assert "start: admission " in explained
    assert "took longest" in explained
    events = [one for one in gvisor.ask("/v1/events?limit=500")["items"] if one["reason"] == "StartSlow"]
    assert any("its objective is 0.001 s: sandbox took" in one["message"] for one in events), events


def test_processes_beside_the_first_run_on_it_and_its_end_is_its_own(gvisor: Home) -> None:
    gvisor.start("beside", "--isolation", "gvisor", "-g", "1")
    assert "Starting gVisor" in gvisor.ok("exec", "beside", "--", "dmesg").out
    assert gvisor("attach", "beside", "nvidia.com/gpu=1").err.startswith("error: beside runs on gVisor")
    gvisor.ok("stop", "beside")
    assert gvisor.run("--isolation", "gvisor", "--", "sh", "-c", "exit 7").code == 7
    gvisor.until(lambda: gvisor.free_gpus() == gvisor.allocatable(), what="its GPU is free again", timeout_s=60)


def test_a_tenancys_isolation_binds_its_containers(gvisor: Home) -> None:
    gvisor.ok("tenancy", "create", "red", "--isolation", "gvisor")
    assert "isolation   gvisor" in gvisor.ok("tenancy", "show", "red").out
    done = gvisor.run("--tenancy", "red", "-g", "1", "--", "sh", "-c", LOOK)
    nodes, kernel = seen(done.out)
    assert (len(nodes), "Starting gVisor" in kernel) == (2, True), done.err
    refused = gvisor.run("--tenancy", "red", "--isolation", "none", "--", "true")
    assert (refused.code, 'tenancy "red" has gvisor' in refused.err) == (3, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--isolation", "vm"), "needs a Kubernetes cluster whose nodes have Kata"),
        (("--isolation", "gvisor", "--network", "host"), "the host's network cannot be shared"),
        (("--isolation", "gvisor", "--ipc", "host"), "the host's shared memory cannot be shared"),
    ],
)
def test_what_it_cannot_be_given_is_refused_with_what_is_missing(
    gvisor: Home, options: tuple[str, ...], says: str
) -> None:
    done = gvisor.run(*options, "--", "true")
    assert done.code
    assert says in done.err
    assert len(done.err.splitlines()) <= 3


@pytest.mark.parametrize("key", ["dev.gvisor.tar.rootfs.upper", "io.kubernetes.cri.sandbox-id"])
def test_an_image_gives_gvisor_no_orders(gvisor: Home, key: str, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text(f"FROM {gvisor.image}\nLABEL a=b\n")
    name = f"{gvisor.image.partition(':')[0]}-annotated:1"
    build = ("build", "-q", "--format", "oci", "--annotation", f"{key}=/etc/passwd", "-t", name, str(tmp_path))
    gvisor.podman(*build)
    try:
        refused = gvisor("run", "--isolation", "gvisor", name, "--", "echo", "it ran")
        assert gvisor("run", name, "--", "echo", "it ran").out == "it ran\n"
        assert gvisor.run("--isolation", "gvisor", "--", "echo", "it ran").out == "it ran\n"  # without the annotation
    finally:
        gvisor.podman("rmi", "-f", name)
    assert refused.code
    assert "it ran" not in refused.out
    assert "the image has annotations for gVisor" in refused.err


def test_volumes_secrets_limits_and_a_root_that_is_only_read_work_on_it(gvisor: Home) -> None:
    folder = gvisor.folder / "given"
    folder.mkdir()
    (folder / "word").write_text("given\n")
    options = ("--isolation", "gvisor", "-v", f"{folder}:/given", "-m", "64m", "--read-only", "-g", "1")
    done = gvisor.run(
        *options, "-e", "WORD=said", "--", "sh", "-c", "cat /given/word; echo $WORD; sed -n 1p /proc/meminfo; touch /x"
    )
    assert [line.split()[-2:][0] for line in done.out.splitlines()] == ["given", "said", "65536"], done.err
    assert "Read-only file system" in done.err


def test_a_handler_that_starts_another_runtime_is_found_out_before_the_process_runs(gvisor: Home) -> None:
    (program,) = (gvisor.folder / "libexec").rglob("fairlead-gvisor")
    before = program.read_bytes()
    runc = shutil.which("runc")
    assert runc is not None
    # It says that it is gVisor, and is not.
    program.write_text(
        f'#!/bin/sh\ncase $1 in --version|nvproxy) exec {gvisorhome.programs()}/runsc "$@" ;; esac\nexec {runc} "$@"\n'
    )
    try:
        done = gvisor.run("--isolation", "gvisor", "--", "echo", "it ran")
    finally:
        program.write_bytes(before)
    assert done.code
    assert "it ran" not in done.out
    assert "no sandbox of gVisor" in done.err


def found_by_doctor(home: Home) -> list[dict[str, str]]:
    return [one for one in json.loads(home("doctor", "-o", "json").out) if one["check"] == "sandbox"]


def test_doctor_says_whether_gvisor_works_here_and_what_mends_it(gvisor: Home) -> None:
    (works,) = found_by_doctor(gvisor)
    assert (works["level"], "gVisor" in works["what"]) == ("ok", True)
    gvisorhome.configure(gvisor)
    (program,) = (gvisor.folder / "libexec").rglob("fairlead-gvisor")
    before = program.read_bytes()
    try:
        (unknown,) = found_by_doctor(gvisor)
        program.write_text("#!/bin/sh\nexit 3\n")
        (broken,) = found_by_doctor(gvisor)
    finally:
        program.write_bytes(before)
        gvisorhome.configure(gvisor, f"nvproxy-driver-version={gvisorhome.KNOWN}")
    assert (unknown["level"], "driver 550.163.01 is none" in unknown["what"]) == ("warn", True)
    assert "550.90.12" in unknown["fix"]
    assert (broken["level"], "ended with 3" in broken["what"]) == ("fail", True)
    assert "runtime configure" in broken["fix"]


def test_a_driver_that_gvisor_does_not_know_is_named_before_anything_starts(gvisor: Home) -> None:
    gvisorhome.configure(gvisor)  # without the option: the driver of the simulated node counts
    try:
        refused = gvisor.run("--isolation", "gvisor", "-g", "1", "--", "true")
        without = gvisor.run("--isolation", "gvisor", "--", "true")
    finally:
        gvisorhome.configure(gvisor, f"nvproxy-driver-version={gvisorhome.KNOWN}")
    assert refused.code == 6
    assert "driver 550.163.01 is none that gVisor" in refused.err
    assert "closest: 550.90.12" in refused.err
    assert without.code == 0, without.err  # no GPU, no driver


@pytest.mark.slow
def test_the_page_about_it_runs_as_printed(home: Home) -> None:
    """The reader's /etc and /usr/libexec are the machine's own, with what the page writes laid over them."""
    work, nodes = home.folder / "reader", home.state / "silicon/root/dev"
    work.mkdir()
    (work / "bin").mkdir()
    (work / "bin/runsc").symlink_to(gvisorhome.programs() / "runsc")
    over = " && ".join(
        f"mkdir -p {home.folder}/{name}/up {home.folder}/{name}/work && mount -t overlay "
        f"-o lowerdir={path},upperdir={home.folder}/{name}/up,workdir={home.folder}/{name}/work overlay {path}"
        for name, path in (("etc", "/etc"), ("libexec", "/usr/libexec"))
    )
    env = {**home.env, "HOME": str(work), "PATH": f"{work}/bin:{Path(sys.executable).parent}:{home.env['PATH']}"}
    root = Path(__file__).parents[2]
    page = (sys.executable, str(root / "tests/system/pages.py"), "--timeout", "100", "--say")
    words = (f"/var/lib/fairlead/silicon/root/dev={nodes}", str(root / "docs/how-to/isolate-with-gvisor.md"))
    line = (*gvisorhome.UNSHARED, f'mount --make-private / && {over} && exec "$@"', "sh", *page, *words)
    done = subprocess.run(line, env=env, cwd=work, capture_output=True, text=True, check=False, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Starting gVisor" in done.stdout


def test_without_the_handler_it_is_said_how_to_have_it(image: str) -> None:
    gvisorhome.programs()
    one = make_home(image)
    gvisorhome.with_own_configuration(one)
    try:
        one.up()
        refused = one.run("--isolation", "gvisor", "--", "true")
        assert refused.code == 6
        assert "podman has no runtime of that name" in refused.err
        assert "fairlead runtime configure --engine podman --gvisor" in refused.err
        gvisorhome.configure(one, f"nvproxy-driver-version={gvisorhome.KNOWN}")  # the service need not restart
        assert "Starting gVisor" in one.run("--isolation", "gvisor", "--", "dmesg").out
        assert "is configured" in one.ok("runtime", "check", "--engine", "podman").out
        subprocess.run(("rm", "-rf", str(one.folder / "libexec/podman")), check=True)
        assert "gVisor's handler needs it" in one("runtime", "check", "--engine", "podman").out
    finally:
        one.clear()
        one.close()
        shutil.rmtree(one.folder, ignore_errors=True)


def test_its_size_changes_on_the_host_and_its_own_kernel_shows_the_first_one(gvisor: Home) -> None:
    """What was over the first limit fits then; what its programs read of memory stays, which `update` says."""
    eats = (
        "until [ -e /tmp/go ]; do sleep 0.1; done; head -c 300000000 /dev/zero | tail -c 299000000 | wc -c; sleep 1000"
    )
    gvisor.start("sized", "--isolation", "gvisor", "--cpus", "1", "-m", "256m", command=("sh", "-c", eats))
    done = gvisor.ok("update", "sized", "--cpus", "1.5", "-m", "512m")
    assert "gVisor, whose programs read the memory it was started with" in done.err
    (row,) = [one for one in gvisor.containers() if one["Names"][0].startswith("fl-sized-") and one["Pid"]]
    assert cgrouplimits.of_container(row["Pid"], row["Id"]).limits() == Limits(cpu=1.5, memory_bytes=512 << 20)
    assert gvisor.show("sized")["resize"] == ""
    seen_inside = gvisor.ok("exec", "sized", "--", "sh", "-c", "touch /tmp/go; grep MemTotal /proc/meminfo").out
    assert seen_inside.split() == ["MemTotal:", str(256 << 10), "kB"]
    gvisor.until(lambda: "299000000" in gvisor("logs", "sized").out, what="it holds 300 MB", timeout_s=60)
    gvisor.ok("update", "sized", "--cpus", "1")
    refused = gvisor("update", "sized", "--cpus", "4000")
    assert (refused.code, "Infeasible" in refused.err) == (5, True)
    gvisor.rm("sized")

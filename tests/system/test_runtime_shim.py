"""The shim before real runc and crun: what the kernel lets a container open, and what its linker finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import oci_bundle
import pytest

ENXIO, EPERM, ENOENT = "No such device or address", "Operation not permitted", "No such file or directory"
LOOK = (
    "for i in 0 1 2 3; do cat /dev/nvidia$i; done 2>&1; cat /dev/nvidiactl 2>&1; "
    "mknod /tmp/other c 195 3; cat /tmp/other 2>&1; echo visible=$NVIDIA_VISIBLE_DEVICES"
)


@pytest.fixture(params=["runc", "crun"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[oci_bundle.Lab]:
    yield from oci_bundle.make_lab(tmp_path, request.param)


def name(lab: oci_bundle.Lab, what: str) -> str:
    return f"fl-{os.getpid()}-{lab.runtime}-{what}"


def test_a_container_opens_the_gpus_it_asked_for_and_no_other_number(lab: oci_bundle.Lab) -> None:
    lab.spec()
    bundle = lab.bundle("sh", "-c", LOOK, env=["NVIDIA_VISIBLE_DEVICES=0,1,0"])
    lines = lab.run(bundle, name(lab, "env")).stdout.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == [ENXIO, ENXIO, ENOENT, ENOENT, ENXIO, EPERM, "visible=void"]


def test_the_short_way_gives_the_same_container(lab: oci_bundle.Lab) -> None:
    lab.spec()
    os.utime(lab.folder / "cdi" / "shim.fairlead.dev-gpu.json")
    outputs = []
    for turn in range(20):
        bundle = lab.bundle("sh", "-c", LOOK, name=f"b{turn}", env=["NVIDIA_VISIBLE_DEVICES=2"])
        was_kept = (lab.folder / "run" / "cache.json").exists()
        outputs.append(lab.run(bundle, name(lab, f"short{turn}")).stdout)
        if was_kept:
            break
    assert was_kept
    assert len(set(outputs)) == 1
    assert outputs[0].count(ENXIO) == 2


def test_annotations_count_and_the_image_is_not_asked(lab: oci_bundle.Lab) -> None:
    lab.spec()
    lab.policy(imageRequests="ignore")
    who = {"io.kubernetes.cri.sandbox-uid": "uid-1", "io.kubernetes.cri.container-name": "main"}
    marks = {"cdi.k8s.io/plugin_pod": f"{oci_bundle.KIND}=3", **who}
    bundle = lab.bundle("sh", "-c", "ls /dev | cat", env=["NVIDIA_VISIBLE_DEVICES=all"], annotations=marks)
    found = lab.run(bundle, name(lab, "notes")).stdout.split()
    assert [item for item in found if item.startswith("nvidia")] == ["nvidia3", "nvidiactl"]
    alone = lab.bundle("sh", "-c", "ls /dev | cat", name="alone", env=["NVIDIA_VISIBLE_DEVICES=all"])
    done = lab.run(alone, name(lab, "alone"))
    assert done.returncode == 0
    assert "nvidia" not in done.stdout
    assert "ignored" in done.stderr


def test_volume_mounts_ask_and_leave_no_trace_inside(lab: oci_bundle.Lab) -> None:
    lab.spec()
    lab.policy(imageRequests="ignore", acceptVolumeMounts=True)
    bundle = lab.bundle("sh", "-c", "ls /dev/nvidia1 /var/run/nvidia-container-devices")
    document = json.loads((bundle / "config.json").read_text())
    place = "/var/run/nvidia-container-devices/1"
    document["mounts"].append({"destination": place, "source": "/dev/null", "type": "bind", "options": ["bind"]})
    (bundle / "config.json").write_text(json.dumps(document))
    done = lab.run(bundle, name(lab, "mounts"))
    assert done.stdout.split() == ["/dev/nvidia1"]


def test_each_step_of_a_container_s_life_passes_the_shim(lab: oci_bundle.Lab) -> None:
    lab.spec()
    bundle = lab.bundle("sh", "-c", "cat /dev/nvidia0; exec cat", env=["NVIDIA_VISIBLE_DEVICES=0"])
    mine, output = name(lab, "life"), lab.folder / "output"
    lab.started.append(mine)
    assert lab.call("create", "--bundle", str(bundle), mine, output=output).returncode == 0, output.read_text()
    if lab.runtime == "crun":
        # Each call has a mount namespace of its own; the state is shared.
        assert json.loads(lab.call("state", mine).stdout)["status"] == "created"
    else:
        assert json.loads(lab.call("state", mine).stdout)["bundle"] == str(bundle)
    assert lab.call("start", mine).returncode == 0
    assert lab.call("delete", "--force", mine).returncode == 0
    assert lab.call("state", mine).returncode != 0


def test_an_unknown_gpu_stops_the_container_before_it_exists(lab: oci_bundle.Lab) -> None:
    lab.spec()
    done = lab.run(lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=8"]), name(lab, "none"))
    assert done.returncode == 2
    assert f"no CDI spec defines {oci_bundle.KIND}=8 ({oci_bundle.KIND} offers 0, 1, 2, 3, all)" in done.stderr
    assert lab.call("state", name(lab, "none")).returncode != 0


@pytest.mark.parametrize("etc", ["distroless", "configured", "cached"])
def test_the_linker_finds_the_driver_by_soname(lab: oci_bundle.Lab, etc: str) -> None:
    library = lab.library()
    lab.spec(mounts=[lab.mount(library)])
    bundle = lab.bundle("probe", "libcuda.so.1", env=["NVIDIA_VISIBLE_DEVICES=0"])
    lab.glibc(bundle)
    root = bundle / "rootfs"
    if etc != "distroless":
        (root / "etc/ld.so.conf.d").mkdir(parents=True)
        (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n/opt/mine\n")
        lab_library = oci_bundle.compile_c(oci_bundle.LIBRARY, root / "opt/mine/libmine.so.1", "-shared", "-fPIC")
        assert lab_library.exists()
    if etc == "cached":
        subprocess.run(("ldconfig", "-r", root), check=True)
    done = lab.run(bundle, name(lab, etc))
    assert (done.stdout, done.stderr) == ("libcuda.so.1 says 42\n", "")
    assert (root / "opt/gpu/libcuda.so.1").readlink() == Path("libcuda.so.550.163.01")
    assert (root / "etc/ld.so.conf.d/00-fairlead.conf").read_text() == "/opt/gpu\n"
    if etc != "distroless":
        (bundle / "config.json").unlink()
        again = lab.run(lab.bundle("probe", "libmine.so.1"), name(lab, f"{etc}2"))
        assert again.stdout == "libmine.so.1 says 42\n"


def test_without_the_hook_the_same_container_finds_nothing(lab: oci_bundle.Lab) -> None:
    library = lab.library()
    lab.spec(mounts=[lab.mount(library)])
    lab.policy(hook="")
    bundle = lab.bundle("probe", "libcuda.so.1", env=["NVIDIA_VISIBLE_DEVICES=0"])
    lab.glibc(bundle)
    assert "cannot open shared object file" in lab.run(bundle, name(lab, "nohook")).stdout


def test_a_file_system_that_cannot_be_written_gets_its_cache_laid_over(lab: oci_bundle.Lab) -> None:
    library = lab.library()
    mounts = [lab.mount(library, place=place) for place in ("/opt/gpu/libcuda.so.550.163.01", "/opt/gpu/libcuda.so.1")]
    lab.spec(mounts=mounts)
    bundle = lab.bundle("sh", "-c", "probe libcuda.so.1; cat /proc/mounts", env=["NVIDIA_VISIBLE_DEVICES=0"])
    lab.glibc(bundle)
    root = bundle / "rootfs"
    for place in ("opt/gpu", "etc"):
        (root / place).mkdir(parents=True)
    for mount in mounts:
        (root / mount.container_path.lstrip("/")).touch()
    (root / "etc/ld.so.cache").write_bytes(b"")
    # Read-only by its own super block, not by a mount flag that a runtime may reset.
    steps = (
        "mkdir {0}.ro",
        "mount -t tmpfs x {0}.ro",
        "cp -a {0}/. {0}.ro",
        "mount -o remount,ro {0}.ro",
        "mount --move {0}.ro {0}",
    )
    script = " && ".join(step.format(root) for step in steps)
    held = lab.prefix
    lab.prefix = ("unshare", "-m", "--propagation", "private", "sh", "-c", f'{script} && exec "$@"', "sh", *held)
    try:
        done = lab.run(bundle, name(lab, "ro"))
    finally:
        lab.prefix = held
    lines = done.stdout.splitlines()
    assert lines[0] == "libcuda.so.1 says 42", done.stderr
    cover = next(line.split() for line in lines if " /etc/ld.so.cache " in line)
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(cover[3].split(","))


def test_an_image_of_musl_gets_its_path_file(lab: oci_bundle.Lab) -> None:
    library = lab.library()
    lab.spec(mounts=[lab.mount(library)])
    bundle = lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0"])
    (bundle / "rootfs/lib").mkdir()
    (bundle / "rootfs/lib/ld-musl-x86_64.so.1").write_bytes(b"")
    assert lab.run(bundle, name(lab, "musl")).returncode == 0
    path = bundle / "rootfs/etc/ld-musl-x86_64.path"
    assert path.read_text() == "/lib:/usr/local/lib:/usr/lib:/opt/gpu\n"
    assert not (bundle / "rootfs/etc/ld.so.cache").exists()


def test_musls_own_linker_finds_the_driver(lab: oci_bundle.Lab) -> None:
    oci_bundle.require("gcc", "musl-gcc")
    name_of = "libcuda.so.550.163.01"
    library = oci_bundle.compile_c(
        oci_bundle.LIBRARY,
        lab.folder / "driver" / name_of,
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-Wl,-soname,libcuda.so.1",
    )
    lab.spec(mounts=[lab.mount(library)])
    found = []
    for env in (["NVIDIA_VISIBLE_DEVICES=0"], []):
        bundle = lab.bundle("probe", "libcuda.so.1", name=f"musl{len(env)}", env=env)
        root = bundle / "rootfs"
        (root / "lib").mkdir()
        linker = next(Path("/lib").glob("ld-musl-*.so.1"))
        shutil.copy(linker, root / "lib" / linker.name)
        (root / "bin/probe").write_bytes(musl_probe(lab.folder))
        (root / "bin/probe").chmod(0o755)
        found.append(lab.run(bundle, name(lab, f"realmusl{len(env)}")).stdout.splitlines()[0])
    assert found[0] == "libcuda.so.1 says 42"
    assert "No such file or directory" in found[1]


def musl_probe(folder: Path) -> bytes:
    program = folder / "probe"
    line = ("musl-gcc", "-x", "c", "-", "-o", program)
    subprocess.run(line, input=oci_bundle.PROBE.encode(), check=True)
    return program.read_bytes()


def test_a_container_that_may_not_write_its_root_finds_the_driver(lab: oci_bundle.Lab) -> None:
    """`docker run --read-only`: the hook comes before the runtime closes the file system."""
    lab.spec(mounts=[lab.mount(lab.library())])
    look = "probe libcuda.so.1; touch /made 2>&1"
    bundle = lab.bundle("sh", "-c", look, env=["NVIDIA_VISIBLE_DEVICES=0"])
    lab.glibc(bundle)
    (bundle / "rootfs/bin/touch").symlink_to("busybox")
    document = json.loads((bundle / "config.json").read_text())
    document["root"]["readonly"] = True
    (bundle / "config.json").write_text(json.dumps(document))
    lines = lab.run(bundle, name(lab, "closed")).stdout.splitlines()
    assert lines[0] == "libcuda.so.1 says 42"
    assert "Read-only file system" in lines[1]


def test_a_root_that_its_owner_closed_stays_closed(lab: oci_bundle.Lab) -> None:
    """A folder of root file systems, mounted read-only by the operator: no container's start may write there."""
    lab.spec(mounts=[lab.mount(lab.library())])
    bundle = lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0"])
    root = bundle / "rootfs"
    (root / "opt/gpu").mkdir(parents=True)
    (root / "opt/gpu/libcuda.so.550.163.01").touch()
    document = json.loads((bundle / "config.json").read_text())
    document["root"]["readonly"] = True
    (bundle / "config.json").write_text(json.dumps(document))
    before = sorted(path.relative_to(root) for path in root.rglob("*"))
    close = f"mount --bind {root} {root} && mount -o remount,bind,ro {root}"
    held = lab.prefix
    lab.prefix = ("unshare", "-m", "--propagation", "private", "sh", "-c", f'{close} && exec "$@"', "sh", *held)
    try:
        done = lab.run(bundle, name(lab, "owners"))
    finally:
        lab.prefix = held
    assert done.returncode == 0, done.stderr
    assert sorted(path.relative_to(root) for path in root.rglob("*")) == before


@pytest.mark.parametrize("mode", ["auto", "cdi", "env"])
def test_modes_say_whose_word_counts_and_capabilities_narrow_in_each(lab: oci_bundle.Lab, mode: str) -> None:
    oci_bundle.require("gcc")
    lab.policy(mode=mode)
    lab.spec(mounts=[lab.mount(lab.library()), lab.mount(lab.library("libnvidia-encode.so.550.163.01"))])
    marks = {"cdi.k8s.io/plugin_pod": f"{oci_bundle.KIND}=1"}
    env = ["NVIDIA_VISIBLE_DEVICES=2", "NVIDIA_DRIVER_CAPABILITIES=video"]
    bundle = lab.bundle("sh", "-c", "ls /dev /opt/gpu | cat", env=env, annotations=marks)
    found = lab.run(bundle, name(lab, f"mode-{mode}")).stdout.split()
    gpus = [item for item in found if item.startswith("nvidia") and item != "nvidiactl"]
    assert gpus == ["nvidia2" if mode == "env" else "nvidia1"]
    assert [item for item in found if item.endswith(".550.163.01")] == ["libnvidia-encode.so.550.163.01"]


@pytest.mark.parametrize("ask", ["environment", "annotations"])
def test_an_image_for_a_newer_driver_never_starts_whoever_asked(lab: oci_bundle.Lab, ask: str) -> None:
    lab.spec(mounts=[lab.mount(lab.library())])
    env = ["NVIDIA_REQUIRE_CUDA=cuda>=12.9 brand=tesla,driver>=535,driver<536"]
    marks = {"cdi.k8s.io/plugin_pod": f"{oci_bundle.KIND}=1"} if ask == "annotations" else {}
    env += ["NVIDIA_VISIBLE_DEVICES=1"] if ask == "environment" else []
    done = lab.run(lab.bundle("true", env=env, annotations=marks), name(lab, f"need-{ask[:3]}"))
    assert done.returncode == 6
    assert "is not met: the image needs cuda>=12.9 or driver<536, this host has cuda 12.4" in done.stderr
    assert "on the host: a driver from 575.51.03 on; in the image: an image for CUDA 12.4 or older" in done.stderr
    assert lab.call("state", name(lab, f"need-{ask[:3]}")).returncode != 0


@pytest.mark.parametrize(
    ("text", "devices", "told"),
    [
        ("cuda>=12.4,arch>=9.0", "0", ""),
        ("cuda>=12.4,arch>=9.0", "0,6", "/dev/nvidia0 has arch 7.5, brand nvidia"),
        ("arch>=9.0 brand=nvidia", "all", ""),
        ("arch>=9.0,brand=tesla", "0", "/dev/nvidia2 has arch 9.0, brand nvidia"),
        ("brand=tesla", "none", ""),
    ],
)
def test_an_image_is_held_to_the_very_gpus_it_gets(lab: oci_bundle.Lab, text: str, devices: str, told: str) -> None:
    """Four H100, two A100 and two T4: their spec is the generator's own, nobody serves, both ways say the same."""
    oci_bundle.generate(lab, "mixed")
    lab.policy(defaultKind="nvidia.com/gpu", hook="")
    env = [f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_REQUIRE_CUDA={text}"]
    for turn in ("long", "short"):
        done = lab.run(lab.bundle("true", name=turn, env=env), name(lab, f"gpu-{turn}"))
        if told:
            assert done.returncode == 6
            assert f"this host has cuda 12.4, driver 550.163.01; {told}" in done.stderr
            assert "on the host: a GPU with " in done.stderr
            assert "in the image: an image for " in done.stderr
        else:
            assert (done.returncode, done.stderr) == (0, "")
        oci_bundle.prepare_now(lab)


def test_an_images_newer_libcuda_comes_before_the_drivers(lab: oci_bundle.Lab) -> None:
    library = lab.library()
    lab.spec(mounts=[lab.mount(library)])
    bundle = lab.bundle("probe", "libcuda.so.1", env=["NVIDIA_VISIBLE_DEVICES=0"])
    lab.glibc(bundle)
    place = bundle / "rootfs/usr/local/cuda/compat/libcuda.so.580.65.06"
    newer = oci_bundle.LIBRARY.replace("42", "58")
    oci_bundle.compile_c(newer, place, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    (place.parent / "libcuda.so.1").symlink_to(place.name)
    assert lab.run(bundle, name(lab, "compat")).stdout == "libcuda.so.1 says 58\n"


def test_an_image_without_anything_starts_and_is_told_about(lab: oci_bundle.Lab) -> None:
    lab.spec(mounts=[lab.mount(lab.library())])
    lab.policy(ldconfig="/nowhere/ldconfig")
    bundle = lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0"])
    assert lab.run(bundle, name(lab, "bare")).returncode == 0
    told = lab.by_hand(bundle, "--folder", "/opt/gpu", "--ldconfig", "/nowhere/ldconfig")
    assert "library search left out: no ldconfig on the host (looked for /nowhere/ldconfig)" in told.stderr


@pytest.mark.podman
@pytest.mark.parametrize("lab", ["runc"], indirect=True)
def test_podman_starts_its_containers_through_the_shim(lab: oci_bundle.Lab, image: str) -> None:
    lab.spec()
    mine = name(lab, "podman")
    # Limits: root without CAP_SYS_RESOURCE may not raise any.
    line = (
        "podman",
        "--runtime",
        lab.shim,
        "run",
        "--rm",
        "--name",
        mine,
        "--network",
        "none",
        "--cap-add",
        "MKNOD",
        "--ulimit",
        "nofile=4096:4096",
        "--ulimit",
        "nproc=4096:4096",
        "-e",
        "NVIDIA_VISIBLE_DEVICES=0,1",
    )
    done = subprocess.run((*line, image, "sh", "-c", LOOK), capture_output=True, text=True, check=False, timeout=60)
    assert [part.rpartition(": ")[2] for part in done.stdout.splitlines()] == [
        ENXIO,
        ENXIO,
        ENOENT,
        ENOENT,
        ENXIO,
        EPERM,
        "visible=void",
    ], done.stderr
    refused = subprocess.run(
        (*line[:-1], "NVIDIA_VISIBLE_DEVICES=9", image, "true"), capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode != 0
    assert f"no CDI spec defines {oci_bundle.KIND}=9" in refused.stderr

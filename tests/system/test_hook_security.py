"""What hostile images have done to peers' hooks, done to ours; each test shows first that the naive way breaks.

The classes are those of the peers' advisories: CVE-2024-0132 and 2025-23359 (compat libraries followed and mounted),
CVE-2024-0133 and 0135 to 0137 (files and devices of the host through crafted images), CVE-2024-0134 (links made
outside the root), CVE-2025-23266 (the image's environment), CVE-2025-23267 (the linker's cache through a link),
CVE-2026-24260 (a path swapped between look and use). Those that need no mount are in tests/unit/inject (test_rootfs,
test_elf).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import oci_bundle
import pytest

from fairlead.inject import rootfs
from fairlead_cdi import spec as cdi

FOLDER = ("--folder", "/opt/gpu")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[oci_bundle.Lab]:
    yield from oci_bundle.make_lab(tmp_path, "runc")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the host with one file, that no image may touch or see."""
    place = tmp_path / "host"
    place.mkdir()
    (place / "ld.so.cache").write_text("host")
    return place


def untouched(host: Path) -> bool:
    return [(path.name, path.read_bytes()) for path in host.iterdir()] == [("ld.so.cache", b"host")]


def runc_leaks() -> bool:
    """Whether this runc gives hooks without env the container's own (up to 1.1, fixed by 1.3.6)."""
    text = subprocess.run(("runc", "--version"), capture_output=True, text=True, check=True).stdout
    return text.split()[2].startswith("1.1.")


def with_hook(lab: oci_bundle.Lab, bundle: Path, entry: dict[str, object]) -> None:
    document = json.loads((bundle / "config.json").read_text())
    document["hooks"] = {"createContainer": [entry]}
    (bundle / "config.json").write_text(json.dumps(document))


def test_the_environment_of_an_image_never_loads_code_into_the_hook(lab: oci_bundle.Lab) -> None:
    """CVE-2025-23266, "NVIDIAScape": LD_PRELOAD=./evil.so, and the hook starts in the image's root."""
    oci_bundle.require("gcc")
    owned = lab.folder / "owned"
    lab.spec(mounts=[lab.mount(lab.library())])
    bundle = lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0", "LD_PRELOAD=./evil.so"])
    oci_bundle.compile_c(oci_bundle.EVIL % owned, bundle / "rootfs/evil.so", "-shared", "-fPIC")
    if runc_leaks():
        naive = lab.bundle("true", name="naive", env=["LD_PRELOAD=./evil.so"])
        (naive / "rootfs/evil.so").write_bytes((bundle / "rootfs/evil.so").read_bytes())
        with_hook(lab, naive, {"path": "/bin/true", "args": ["true"]})
        assert lab.run(naive, f"fl-{os.getpid()}-scape0", program="runc").returncode == 0
        assert owned.exists(), "a hook without env must break, or this shows nothing"
        owned.unlink()
    done = lab.run(bundle, f"fl-{os.getpid()}-scape1")
    assert done.returncode == 0, done.stderr
    assert json.loads((bundle / "config.json").read_text())["hooks"]["createContainer"][0]["env"]
    assert not owned.exists()


def test_a_module_planted_in_the_image_is_never_imported(lab: oci_bundle.Lab) -> None:
    """The hook starts with the image's root as its folder; plain `python3 -c` looks for modules there first."""
    owned = lab.folder / "owned"
    lab.spec(mounts=[lab.mount(lab.library())])
    bundle = lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0"])
    for name in ("json", "os", "fairlead", "posix", "_json", "sitecustomize"):
        (bundle / "rootfs" / f"{name}.py").write_text(f"open({str(owned)!r}, 'w').close()\n")
    line = [sys.executable, "-c", "import json"]
    naive = lab.bundle("true", name="naive")
    (naive / "rootfs/json.py").write_bytes((bundle / "rootfs/json.py").read_bytes())
    with_hook(lab, naive, {"path": line[0], "args": line, "env": ["PATH=/bin"]})
    lab.run(naive, f"fl-{os.getpid()}-planted0", program="runc")
    assert owned.exists(), "the naive hook must break, or this shows nothing"
    owned.unlink()
    assert lab.run(bundle, f"fl-{os.getpid()}-planted1").returncode == 0
    assert not owned.exists()


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES", "PYTHONPATH"])
def test_a_hook_started_with_loader_variables_refuses(lab: oci_bundle.Lab, variable: str) -> None:
    done = lab.by_hand(lab.bundle("true"), *FOLDER, **{variable: ""})
    assert done.returncode == 1
    assert f"started with {variable} set" in done.stderr


def test_a_hook_started_without_isolation_refuses(lab: oci_bundle.Lab) -> None:
    line = (sys.executable, "-c", "from fairlead.inject.hook import program; raise SystemExit(program.main([]))")
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={"PATH": "/bin"}, input="{}")
    assert done.returncode == 1
    assert "python -I -S" in done.stderr


def naive_cache(root: Path) -> None:
    """The peers' way before namespaces: the host's ldconfig on paths joined to the root."""
    line = ("ldconfig", "-X", "-f", root / "etc/ld.so.conf", "-C", root / "etc/ld.so.cache", root / "opt/gpu")
    subprocess.run(line, check=False, capture_output=True)


@pytest.mark.parametrize("shape", ["etc", "etc-dots", "cache"])
def test_a_cache_that_is_a_link_to_the_host_is_not_written_there(lab: oci_bundle.Lab, host: Path, shape: str) -> None:
    """CVE-2025-23267: ldconfig followed the image's link and wrote a file of the host."""
    bundle = lab.bundle("true")
    root = bundle / "rootfs"
    (root / "opt/gpu").mkdir(parents=True)
    if shape == "cache":
        (root / "etc").mkdir()
        (root / "etc/ld.so.cache~").symlink_to(host / "ld.so.cache")
        (root / "etc/ld.so.cache").symlink_to(host / "ld.so.cache")
    else:
        (root / "etc").symlink_to(host if shape == "etc" else "../../host")
    if shape != "cache":  # current ldconfig replaces a link at the very end of the path
        naive_cache(root)
        assert not untouched(host), "the naive way must break, or this shows nothing"
        for path in host.iterdir():
            path.unlink()
        (host / "ld.so.cache").write_text("host")
    done = lab.by_hand(bundle, *FOLDER)
    assert done.returncode == 0, done.stderr
    assert untouched(host)
    if shape == "cache":
        assert not (root / "etc/ld.so.cache").is_symlink()


def test_configuration_of_an_image_cannot_name_the_hosts_files(lab: oci_bundle.Lab, host: Path) -> None:
    """A /proc inside the root has a door to the host for every process; chroot alone lets ldconfig through it."""
    oci_bundle.require("gcc")
    oci_bundle.compile_c(oci_bundle.LIBRARY, host / "libsecret.so.1", "-shared", "-fPIC", "-Wl,-soname,libsecret.so.1")
    bundle = lab.bundle("true")
    root = bundle / "rootfs"
    (root / "etc").mkdir()
    (root / "opt/gpu").mkdir(parents=True)
    (root / "etc/ld.so.conf").write_text(f"/proc/{os.getpid()}/root{host}\n")
    mount = f"mount -t proc proc {root}/proc"
    naive = ("unshare", "-m", "--propagation", "private", "sh", "-c", f"{mount}; ldconfig -X -r {root}")
    subprocess.run(naive, check=True, capture_output=True)
    assert b"libsecret" in (root / "etc/ld.so.cache").read_bytes(), "the naive way must break, or this shows nothing"
    (root / "etc/ld.so.cache").unlink()
    done = lab.by_hand(bundle, *FOLDER, before=mount)
    assert done.returncode == 0, done.stderr
    cache = (root / "etc/ld.so.cache").read_bytes()
    assert cache.startswith(b"glibc-ld.so.cache")
    assert b"libsecret" not in cache


@pytest.mark.parametrize("place", ["/etc/ld.so.conf.d", "/etc", "/opt/gpu"])
def test_a_volume_is_never_written(lab: oci_bundle.Lab, host: Path, place: str) -> None:
    bundle = lab.bundle("true")
    root = bundle / "rootfs"
    (root / "etc").mkdir()
    (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    mount = f"mount --bind {host} {root}{place}"
    naive = ("unshare", "-m", "--propagation", "private", "sh", "-c", f"{mount}; echo x > {root}{place}/naive")
    subprocess.run(naive, check=True)
    assert (host / "naive").exists(), "the naive way must break, or this shows nothing"
    (host / "naive").unlink()
    done = lab.by_hand(bundle, *FOLDER, "--link", "x::/opt/gpu/libx.so.1", before=mount)
    assert done.returncode == 0, done.stderr
    assert untouched(host)
    assert "left out" in done.stderr


@pytest.mark.parametrize("place", ["dev", "proc", "sys", "lib", "etc", "opt"])
@pytest.mark.parametrize("kind", ["host", "loop", "file", "pipe"])
def test_no_shape_of_a_root_reaches_the_host(lab: oci_bundle.Lab, host: Path, place: str, kind: str) -> None:
    """CVE-2024-0135 to 0137: hostile /dev, /proc and /etc; the container may fail, the host may not change."""
    bundle = lab.bundle("true")
    root = bundle / "rootfs"
    with contextlib.suppress(OSError):
        (root / place).rmdir()
    if kind == "host":
        (root / place).symlink_to(host)
        (root / place / "naive").write_text("x")
        assert (host / "naive").exists(), "the naive way must break, or this shows nothing"
        (host / "naive").unlink()
    elif kind == "loop":
        (root / place).symlink_to(place)
    elif kind == "file":
        (root / place).write_text("")
    else:
        os.mkfifo(root / place)
    parameters = lab.folder / "params"
    parameters.write_text("ModifyDeviceFiles: 1\n")
    done = lab.by_hand(bundle, *FOLDER, "--link", "t::/dev/x", "--driver", "1.2", "--parameters", str(parameters))
    assert done.returncode == 0, done.stderr
    assert untouched(host)
    assert str(lab.folder) not in Path("/proc/self/mountinfo").read_text()


def test_nothing_is_mounted_where_others_would_see_it(lab: oci_bundle.Lab) -> None:
    """On a host whose mounts are shared, as systemd makes them, what a careless hook mounts appears everywhere."""
    bundle = lab.bundle("true")
    root = bundle / "rootfs"
    (root / "opt/gpu").mkdir(parents=True)
    look = "cut -d' ' -f5- /proc/self/mountinfo | sed 's/ - .*//' | sort"
    state = json.dumps({"bundle": str(bundle)})
    ours = f"echo '{state}' | env -i PATH=/bin {lab.hook} --folder /opt/gpu"
    naive = f"unshare -m --propagation unchanged mount -t tmpfs x {root}/dev"
    counts = {}
    for label, command in (("ours", ours), ("naive", naive)):
        share = f"mount --bind {root} {root}; mount --make-rshared /"
        script = f"{share}; {look} > {lab.folder}/a; {command}; {look} > {lab.folder}/b"
        subprocess.run(("unshare", "-m", "--propagation", "private", "sh", "-c", script), check=True)
        counts[label] = (lab.folder / "a").read_text() == (lab.folder / "b").read_text()
    assert counts == {"ours": True, "naive": False}
    assert (root / "etc/ld.so.cache").exists()


def test_device_files_are_not_to_be_made_inside(lab: oci_bundle.Lab) -> None:
    parameters = lab.folder / "params"
    parameters.write_text("ModifyDeviceFiles: 1\nDeviceFileUID: 0\n")
    bundle = lab.bundle("true")
    place = bundle / "rootfs/proc/driver/nvidia/params"
    place.parent.mkdir(parents=True)
    place.write_text("ModifyDeviceFiles: 1\n")
    done = lab.by_hand(
        bundle,
        "--parameters",
        str(parameters),
        after=f"cat {place}; echo x > {place} || echo kept; ls -A {bundle}/rootfs/dev",
    )
    assert done.stdout == "ModifyDeviceFiles: 0\nDeviceFileUID: 0\nkept\n"
    assert place.read_text() == "ModifyDeviceFiles: 1\n"


def test_a_file_is_never_laid_over_one_of_the_host(lab: oci_bundle.Lab, host: Path) -> None:
    """The class of runc's CVE-2025-31133 and CVE-2025-52881: a mount in /proc that the image sends elsewhere."""
    parameters = lab.folder / "params"
    parameters.write_text("ModifyDeviceFiles: 1\n")
    bundle = lab.bundle("true")
    place = bundle / "rootfs/proc/driver/nvidia/params"
    place.parent.mkdir(parents=True)
    place.symlink_to(host / "ld.so.cache")
    cat = f"cat {host}/ld.so.cache"
    naive = f"mount --bind {parameters} {place}; {cat}"
    line = ("unshare", "-m", "--propagation", "private", "sh", "-c", naive)
    shown = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert shown == parameters.read_text(), "the naive way must break, or this shows nothing"
    done = lab.by_hand(bundle, "--parameters", str(parameters), after=cat)
    assert (done.returncode, done.stdout) == (0, "host"), done.stderr
    assert "device node modification left out" in done.stderr


def test_an_unbelievable_ldconfig_is_not_run(lab: oci_bundle.Lab) -> None:
    bundle = lab.bundle("true")
    script = lab.folder / "ldconfig"
    script.write_text(f"#!/bin/sh\ntouch {lab.folder}/owned\n")
    script.chmod(0o755)
    assert "no ldconfig on the host" in lab.by_hand(bundle, *FOLDER, "--ldconfig", str(script)).stderr
    program = Path("/sbin/ldconfig").read_bytes()
    script.write_bytes(program)
    script.chmod(0o757)
    assert "can be written by others" in lab.by_hand(bundle, *FOLDER, "--ldconfig", str(script)).stderr
    assert not (lab.folder / "owned").exists()


def test_ldconfig_runs_without_rights_environment_or_files_of_the_host(lab: oci_bundle.Lab) -> None:
    """A program in ldconfig's place says what it was given: what a broken ldconfig could do is what it can do.

    CVE-2024-0135 to 0137: by a crafted image the peers' helpers reached programs, devices and the network of the host.
    """
    oci_bundle.require("gcc")
    spy = lab.folder / "spy"
    source = r"""
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
extern char **environ;
int main(int count, char **arguments) {
  struct { unsigned version; int pid; } head = {0x20080522, 0};
  unsigned caps[6]; struct stat found; int open = 0, files = 0;
  syscall(SYS_capget, &head, caps);
  for (int i = 3; i < 1024; i++) open += fstat(i, &found) == 0;
  FILE *test = fopen("/etc/made", "w");
  struct if_nameindex *networks = if_nameindex(); int reached = 0;
  for (struct if_nameindex *one = networks; one && one->if_index; one++) reached++;
  files = access("FOLDER", F_OK) == 0;
  fprintf(stderr, "pid=%d caps=%x environment=%d open=%d host=%d write=%d up=%d net=%d", getpid(), caps[0] | caps[1],
          environ[0] != 0, open, files, test != 0, chdir("..") == 0 && access("proc/1/root", F_OK) == 0, reached);
  return 1;
}
""".replace("FOLDER", str(lab.folder))
    oci_bundle.compile_c(source, spy, "-static")
    bundle = lab.bundle("true")
    root = bundle / "rootfs"
    (root / "etc").mkdir()
    mount = f"mount -t proc proc {root}/proc"
    shutil.copy(spy, root / "spy")
    naive = ("unshare", "-m", "--propagation", "private", "sh", "-c", f"{mount}; exec chroot {root} /spy")
    words = subprocess.run(naive, capture_output=True, text=True, check=False).stderr.split()
    assert {"environment=1", "write=1"} <= set(words), "the naive way must break, or this shows nothing"
    assert not {"pid=1", "caps=0", "net=1"} & set(words), "the naive way must break, or this shows nothing"
    (root / "etc/made").unlink()
    (root / "spy").unlink()
    done = lab.by_hand(bundle, *FOLDER, "--ldconfig", str(spy), before=mount)
    assert "pid=1 caps=0 environment=0 open=0 host=0 write=0 up=0 net=1" in done.stderr


@pytest.mark.slow
def test_an_image_that_holds_ldconfig_up_does_not_hold_the_host_up(lab: oci_bundle.Lab) -> None:
    bundle = lab.bundle("true")
    (bundle / "rootfs/etc").mkdir()
    os.mkfifo(bundle / "rootfs/etc/pipe")
    (bundle / "rootfs/etc/ld.so.conf").write_text("include /etc/pipe\n")
    started = time.monotonic()
    done = lab.by_hand(bundle, *FOLDER)
    assert (done.returncode, "ldconfig failed (-14)" in done.stderr) == (0, True)
    assert time.monotonic() - started < 30


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_runtime_that_blocks_signals_starts_a_container_whose_image_holds_ldconfig_up(
    tmp_path: Path, runtime: str
) -> None:
    # crun runs hooks with every signal blocked: the alarm never came, and after 30 s crun refused the start
    with contextlib.contextmanager(oci_bundle.make_lab)(tmp_path, runtime) as lab:
        lab.spec(mounts=[lab.mount(lab.library())])
        bundle = lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0"])
        (bundle / "rootfs/etc").mkdir()
        os.mkfifo(bundle / "rootfs/etc/pipe")
        (bundle / "rootfs/etc/ld.so.conf").write_text("include /etc/pipe\n")
        started = time.monotonic()
        # 15 s are the hook's own limit and 30 s the runtime's for the hook, which is what refuses: a busy machine's
        # time to start and end the container comes on top of both.
        done = lab.run(bundle, f"fl-{os.getpid()}-held-{runtime}", limit_s=50)
        assert done.returncode == 0, done.stderr
        assert time.monotonic() - started > 10, "ldconfig was not held up, so this shows nothing"


_EXCHANGE = 2


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange two names as fast as the machine can, in another process."""
    child = os.fork()
    if child == 0:
        libc, here = ctypes.CDLL(None), -100
        names = [os.fsencode(path) for path in (one, other)]
        while True:
            libc.renameat2(here, names[0], here, names[1], _EXCHANGE)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def naive_link(root: Path, target: str, place: str, *, meanwhile: Callable[[], object]) -> None:
    """Look, then use: resolve the folder, see that it is inside, make the link there."""
    folder = root / Path(place).parent.relative_to("/")
    assert folder.resolve().is_relative_to(root.resolve())
    meanwhile()
    (folder / Path(place).name).symlink_to(target)


def test_a_folder_swapped_between_look_and_use_never_leads_out(tmp_path: Path, host: Path) -> None:
    """CVE-2024-0132 and CVE-2026-24260: checked as a folder, used as a link."""
    root = tmp_path / "rootfs"
    folder, link = root / "usr/lib", root / "usr/link"
    folder.mkdir(parents=True)
    link.symlink_to(host)

    def swap() -> None:
        folder.rename(root / "usr/aside")
        link.rename(folder)

    naive_link(root, "x", "/usr/lib/libx.so", meanwhile=swap)
    assert (host / "libx.so").is_symlink(), "the naive way must break, or this shows nothing"
    (host / "libx.so").unlink()
    inside, refused, turn = 0, 0, 0
    opened = rootfs.Root(str(root))
    deadline = time.monotonic() + 20
    with swapping(folder, root / "usr/aside"):
        while turn < 4000 or (min(inside, refused) < 10 and time.monotonic() < deadline):
            turn += 1
            try:
                opened.link("x", f"/usr/lib/l{turn % 50}.so")
                opened.write(f"/usr/lib/w{turn % 50}", b"x")
                inside += 1
            except OSError:
                refused += 1
    assert untouched(host)
    assert min(inside, refused) >= 10, "both sides of the race must have been met"


def test_a_hook_of_a_spec_that_others_can_change_is_refused(lab: oci_bundle.Lab) -> None:
    program = lab.folder / "hook.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    lab.spec(hooks=[cdi.Hook(hook_name="createContainer", path=str(program), args=("h",), env=("A=b",), timeout=5)])
    done = lab.run(lab.bundle("true", env=["NVIDIA_VISIBLE_DEVICES=0"]), f"fl-{os.getpid()}-prog")
    assert done.returncode == 3
    assert "a hook's program can be written by others than root" in done.stderr

"""podman with our runtime as `fairlead runtime configure` told it; this host's own /etc/containers is never touched.

Each command runs in a mount namespace with a copy of that folder over it, so that podman and our program both work on
the paths of production.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oci_bundle
import pytest

pytestmark = [pytest.mark.podman, pytest.mark.timeout(120)]
ENXIO, EPERM, ENOENT = "No such device or address", "Operation not permitted", "No such file or directory"
LOOK = "for i in 0 1 2 3; do cat /dev/nvidia$i; done 2>&1; mknod /tmp/other c 195 3; cat /tmp/other 2>&1"
ETC = Path("/etc/containers")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Limits: root without CAP_SYS_RESOURCE may not raise any.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--network", "none", "--cap-add", "MKNOD")


class Host:
    """A copy of the host's podman configuration, and commands that see it in its place."""

    def __init__(self, lab: oci_bundle.Lab, image: str) -> None:
        self.lab, self.image = lab, image
        self.etc = lab.folder / "containers"
        shutil.copytree(ETC, self.etc, symlinks=True)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        inside = f'mount --bind {self.etc} {ETC} && exec "$@"'
        line = ("unshare", "-m", "--propagation", "private", "sh", "-c", inside, "sh", *command)
        environment = {"PATH": PATH, "HOME": "/root", "FAIRLEAD_STATE_FOLDER": str(self.lab.folder / "state")}
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def fairlead(self, verb: str, *options: str) -> str:
        line = (sys.executable, "-m", "fairlead.cli.main", "runtime", verb, "--engine", "podman", *options)
        done = self.call(*line)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def configure(self, *options: str) -> str:
        places = ("--folder", str(self.lab.folder / "libexec"), "--policy", str(self.lab.folder / "runtime.json"))
        return self.fairlead("configure", *places, *options)

    def podman(
        self, *command: str, runtime: tuple[str, ...] = (), devices: str = "0,1"
    ) -> subprocess.CompletedProcess[str]:
        env = ("-e", f"NVIDIA_VISIBLE_DEVICES={devices}")
        return self.call("podman", *runtime, "run", "--rm", *LIMITS, *env, self.image, *command)

    def tree(self) -> dict[str, bytes]:
        files = (path for path in self.etc.rglob("*") if path.is_file())
        return {str(path.relative_to(self.etc)): path.read_bytes() for path in files}


@pytest.fixture
def host(tmp_path: Path, image: str) -> Iterator[Host]:
    oci_bundle.require("runc", "busybox", "unshare", "podman")
    for lab in oci_bundle.make_lab(tmp_path, "runc"):
        lab.spec()
        yield Host(lab, image)


def answers(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode in {0, 1}, done.stderr
    return [line.rpartition(": ")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["fairlead", "nvidia"])
def test_podman_finds_our_runtime_by_its_name(host: Host, name: str) -> None:
    host.configure()
    done = host.podman("sh", "-c", LOOK, runtime=("--runtime", name))
    assert answers(done) == [ENXIO, ENXIO, ENOENT, ENOENT, EPERM], done.stderr


def test_as_default_it_needs_no_name_and_the_others_stay(host: Host) -> None:
    host.configure("--set-as-default")
    assert host.call("podman", "info", "--format", "{{.Host.OCIRuntime.Name}}").stdout == "fairlead\n"
    assert answers(host.podman("sh", "-c", LOOK)) == [ENXIO, ENXIO, ENOENT, ENOENT, EPERM]
    done = host.podman("sh", "-c", LOOK, runtime=("--runtime", "runc"))
    assert answers(done) == [ENOENT, ENOENT, ENOENT, ENOENT, EPERM]


def test_a_refusal_reaches_the_one_who_ran_podman(host: Host) -> None:
    host.configure()
    done = host.podman("true", runtime=("--runtime", "fairlead"), devices="9")
    assert done.returncode != 0
    assert f"no CDI spec defines {oci_bundle.KIND}=9" in done.stderr


@pytest.mark.parametrize(("command", "code"), [("nowhere", 127), ("/tmp", 126)])
def test_what_podman_tells_its_caller_is_what_it_told_before(host: Host, command: str, code: int) -> None:
    host.configure()
    codes = [host.podman(command, runtime=("--runtime", name)).returncode for name in ("runc", "fairlead")]
    assert codes == [code, code]


def test_taken_back_podman_knows_it_no_more_and_every_file_is_as_before(host: Host) -> None:
    before = host.tree()
    assert host.configure().splitlines() == [f"{ETC}/containers.conf.d/zz-fairlead.conf: written"]
    assert "is configured" in host.fairlead("check")
    host.fairlead("unconfigure")
    assert host.tree() == before
    assert not (host.etc / "containers.conf.d").exists()
    done = host.podman("true", runtime=("--runtime", "fairlead"))
    assert done.returncode != 0
    assert "fairlead" in done.stderr

"""Raw OCI bundles for the shim and hook: root file systems of several makes, real runtimes, a spec folder apart."""

from __future__ import annotations

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.inject import cachewriter, launcher
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

KIND = "shim.fairlead.dev/gpu"
MAJOR = 195
FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
IN_CRUN = (
    "unshare",
    "-m",
    "--propagation",
    "private",
    "sh",
    "-c",
    'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"',
    "sh",
)
LIBRARY = "int answer(void) { return 42; }\n"
PROBE = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
  void *library = dlopen(arguments[1], RTLD_NOW);
  if (!library) { puts(dlerror()); return 3; }
  int (*answer)(void) = dlsym(library, "answer");
  printf("%s says %d\\n", arguments[1], answer());
  return 0;
}
"""
EVIL = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void own(void) { close(open("%s", O_CREAT | O_WRONLY, 0600)); }
"""


def require(*programs: str) -> None:
    """Skip where this machine cannot do it."""
    missing = [name for name in programs if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'root'}")


@functools.cache
def spec_template(runtime: str = "runc") -> str:
    """What `runc spec` writes."""
    with tempfile.TemporaryDirectory(prefix="fl-spec-") as folder:
        subprocess.run((runtime, "spec"), cwd=folder, check=True)
        return (Path(folder) / "config.json").read_text()


def compile_c(text: str, target: Path, *options: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(("gcc", "-x", "c", "-", "-o", target, *options), input=text.encode(), check=True)
    return target


@dataclass
class Lab:
    """Launchers, a policy, specs and bundles in one folder."""

    folder: Path
    runtime: str = "runc"
    prefix: Sequence[str] = ()
    started: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("bin", "cdi", "dev", "driver"):
            (self.folder / name).mkdir(mode=0o755)
        launcher.install(self.folder / "bin", config=self.folder / "runtime.json")
        self.policy()

    @property
    def shim(self) -> str:
        return str(self.folder / "bin" / launcher.RUNTIME)

    @property
    def hook(self) -> str:
        return str(self.folder / "bin" / launcher.HOOK)

    def policy(self, **keys: object) -> None:
        base = {
            "runtimes": [self.runtime],
            "specDirs": [str(self.folder / "cdi")],
            "defaultKind": KIND,
            "imageRequests": "honour",
            "cache": str(self.folder / "run" / "cache.json"),
        }
        path = self.folder / "runtime.json"
        path.write_text(json.dumps({**base, **keys}))
        path.chmod(0o644)

    def node(self, name: str, minor: int) -> cdi.DeviceNode:
        place = self.folder / "dev" / name
        if not place.exists():
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
            place.chmod(0o666)
        return cdi.DeviceNode(
            path=f"/dev/{name}", host_path=str(place), type="c", major=MAJOR, minor=minor, permissions="rw"
        )

    def spec(self, *, mounts: Sequence[cdi.Mount] = (), hooks: Sequence[cdi.Hook] = ()) -> None:
        """Four GPUs, a control node, and what is given."""
        devices = [
            cdi.Device(name=str(i), edits=cdi.ContainerEdits(device_nodes=(self.node(f"nvidia{i}", i),)))
            for i in range(4)
        ]
        every = cdi.ContainerEdits(device_nodes=tuple(self.node(f"nvidia{i}", i) for i in range(4)))
        common = cdi.ContainerEdits(
            env=("NVIDIA_VISIBLE_DEVICES=void",),
            device_nodes=(self.node("nvidiactl", 255),),
            mounts=tuple(mounts),
            hooks=tuple(hooks),
        )
        made = cdi.Spec(
            cdi_version="", kind=KIND, devices=(*devices, cdi.Device(name="all", edits=every)), edits=common
        )
        (self.folder / "cdi" / emit.file_name(KIND)).write_bytes(emit.emit_json(made))

    def library(self, name: str = "libcuda.so.550.163.01", soname: str = "libcuda.so.1") -> Path:
        return compile_c(LIBRARY, self.folder / "driver" / name, "-shared", "-fPIC", f"-Wl,-soname,{soname}")

    def mount(self, source: Path, *, place: str = "") -> cdi.Mount:
        return cdi.Mount(host_path=str(source), container_path=place or f"/opt/gpu/{source.name}", options=FILE_OPTIONS)

    def bundle(self, *command: str, name: str = "bundle", env: Sequence[str] = (), **more: Any) -> Path:
        """A bundle with busybox; `more` replaces parts of config.json."""
        place = self.folder / name
        root = place / "rootfs"
        for part in ("bin", "dev", "proc", "sys", "tmp"):
            (root / part).mkdir(parents=True, exist_ok=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, root / "bin/busybox")
        for applet in ("sh", "cat", "ls", "mknod", "true"):
            if not (root / "bin" / applet).exists():
                (root / "bin" / applet).symlink_to("busybox")
        document = json.loads(spec_template())
        document["process"].update(terminal=False, args=list(command))
        document["process"]["env"] += list(env)
        for part in document["process"]["capabilities"].values():
            part.append("CAP_MKNOD")
        document["root"]["readonly"] = False
        (place / "config.json").write_text(json.dumps({**document, **more}))
        return place

    def glibc(self, bundle: Path) -> None:
        """Add the host's linker and libc, and a program that opens a library by name."""
        require("gcc")
        root = bundle / "rootfs"
        for pattern, place in (("/lib64/ld-linux-*", "lib64"), ("/lib/*-linux-gnu/libc.so.6", "usr/lib")):
            found = next(Path("/").glob(pattern.lstrip("/")), None)
            if found is None:
                pytest.skip("the host's glibc is not where Debian has it")
            target = root / (place if place == "lib64" else str(found.parent.relative_to("/")))
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)
        compile_c(PROBE, root / "bin/probe")

    def run(
        self, bundle: Path, name: str, *, program: str = "", limit_s: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """Run a bundle to its end through the shim (or another program)."""
        self.started.append(name)
        line = (*self.prefix, program or self.shim, "run", "--bundle", str(bundle), name)
        return subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=limit_s, stdin=subprocess.DEVNULL
        )

    def call(self, *arguments: str, output: Path | None = None) -> subprocess.CompletedProcess[str]:
        line = (*self.prefix, self.shim, *arguments)
        if output is None:
            return subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
        # The container inherits what `create` was given: a pipe would stay open for as long as it lives.
        with output.open("wb") as file:
            return subprocess.run(
                line, stdout=file, stderr=file, check=False, timeout=30, stdin=subprocess.DEVNULL, text=True
            )

    def by_hand(
        self, bundle: Path, *arguments: str, before: str = "", after: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the hook alone in a mount namespace of its own, started in the root file system as runc does."""
        state = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": str(bundle)}
        script = f'{before}\ncd "$1/rootfs"; shift; hook=$1; shift; "$hook" "$@"; code=$?\n{after}\nexit $code'
        line = (
            "unshare",
            "-m",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            str(bundle),
            self.hook,
            *arguments,
        )
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}
        return subprocess.run(
            line, input=json.dumps(state), env=clean, capture_output=True, text=True, check=False, timeout=40
        )

    def close(self) -> None:
        for name in self.started:
            line = (*self.prefix, self.runtime, "delete", "--force", name)
            subprocess.run(line, capture_output=True, check=False, timeout=30)


def make_lab(folder: Path, runtime: str) -> Iterator[Lab]:
    require(runtime, "busybox", "unshare")
    folder.chmod(0o755)
    lab = Lab(folder, runtime=runtime, prefix=IN_CRUN if runtime == "crun" else ())
    yield lab
    lab.close()


def generate(lab: Lab, profile: str) -> None:
    """Have `fairlead cdi generate` write the spec of a simulated machine into the lab's folder."""
    program = Path(sys.executable).parent / "fairlead"
    more = ("--output", lab.folder / "cdi", "--runtime-config", lab.folder / "no-shim.json")
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "FAIRLEAD_STATE_FOLDER": str(lab.folder / "state")}
    line = (program, "cdi", "generate", "--simulate", profile, "--format", "json", *more)
    subprocess.run(line, env=env, check=True, capture_output=True, timeout=60)


def prepare_now(lab: Lab) -> None:
    """Write the cache, so that the next container takes the short way."""
    deadline = time.monotonic() + 60
    while not cachewriter.write([str(lab.folder / "cdi")], str(lab.folder / "run" / "cache.json")):
        assert time.monotonic() < deadline  # it is written once the spec's last change is some ticks of the clock ago

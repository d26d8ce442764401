"""What the shim adds to an exec and the hook to a container's start, cold processes measured by hyperfine.

Everything is made in a temporary folder: launchers, 4 GPUs with 32 libraries, a bundle with busybox. The bundle that
the shim edits is on a tmpfs, as those of containerd, Docker and CRI-O are (/run); podman's are on the disk, whose file
system adds its own time to replacing a file: that is a row of its own. The peer's figures are differences too, so ours
are: the bare command is measured in the same breath and taken off, at the priority that the peer's were taken at.
Minima are compared besides medians, because a busy machine adds to medians first.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import frame
from fairlead.inject import launcher
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

KIND = "bench.fairlead.dev/gpu"
PEER = "NVIDIA Container Toolkit 1.20"
SOURCE = "docs/design/peers.md, container toolkit"
SHIM_BAR_MS, HOOK_BAR_MS = 9.0, 24.0
RUNS = 60
MEMORY = "/dev/shm"  # noqa: S108  the tmpfs itself; what is made in it has a name of its own
"""A tmpfs everywhere; /run is none in a container."""
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


class Bench:
    """One folder with all that a start needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "own/cache.json"
        """In a folder of root's alone: the shim reads a cache from no other."""
        self.cache.parent.mkdir(mode=0o700, parents=True)
        self.env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        for name in ("bin", "cdi", "dev", "driver", "bundle/rootfs/bin", "bundle/rootfs/proc", "bundle/rootfs/dev"):
            (folder / name).mkdir(parents=True)
        (folder / "bundle/rootfs/sys").mkdir()
        launcher.install(folder / "bin", config=folder / "runtime.json")
        self._write_spec()
        shutil.copy(shutil.which("busybox") or "/bin/busybox", folder / "bundle/rootfs/bin/busybox")
        (folder / "bundle/rootfs/bin/true").symlink_to("busybox")
        subprocess.run(("runc", "spec"), cwd=folder / "bundle", check=True)
        self.plain: dict[str, Any] = json.loads((folder / "bundle/config.json").read_text())
        self.plain["process"].update(terminal=False, args=["true"])
        self.plain["root"]["readonly"] = False
        self.asking = json.loads(json.dumps(self.plain))
        self.asking["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"]

    def _write_spec(self) -> None:
        for minor in range(4):
            os.mknod(self.folder / f"dev/nvidia{minor}", stat.S_IFCHR | 0o666, os.makedev(195, minor))
        devices = tuple(
            cdi.Device(name=str(i), edits=cdi.ContainerEdits(device_nodes=(self._node(f"nvidia{i}"),)))
            for i in range(4)
        )
        mounts: list[cdi.Mount] = []
        for name in ("libcuda", "libnvidia-ml", *(f"libnvidia-part{i}" for i in range(30))):
            source = self.folder / "driver" / f"{name}.so.550.163.01"
            source.write_bytes(b"")
            mounts += [
                cdi.Mount(host_path=str(source), container_path=f"/usr/lib/x86_64-linux-gnu/{place}", options=OPTIONS)
                for place in (source.name, f"{name}.so.1")
            ]
        common = cdi.ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",), mounts=tuple(mounts))
        self.mounts = [
            {"destination": item.container_path, "source": item.host_path, "options": list(item.options)}
            for item in mounts
        ]
        made = cdi.Spec(cdi_version="", kind=KIND, devices=devices, edits=common)
        (self.folder / "cdi/bench.json").write_bytes(emit.emit_json(made))

    def _node(self, name: str) -> cdi.DeviceNode:
        return cdi.DeviceNode(path=f"/dev/{name}", host_path=str(self.folder / "dev" / name), permissions="rw")

    def policy(self, runtime: str, **keys: object) -> None:
        base = {
            "runtimes": [runtime],
            "specDirs": [str(self.folder / "cdi")],
            "defaultKind": KIND,
            "imageRequests": "honour",
            "cache": str(self.cache),
        }
        (self.folder / "runtime.json").write_text(json.dumps({**base, **keys}))
        (self.folder / "runtime.json").chmod(0o644)

    def bundle(self, document: dict[str, Any], folder: Path | None = None) -> str:
        """Write config.json; returns the command that puts it back before each run."""
        kept = self.folder / "kept.json"
        kept.write_text(json.dumps(document))
        place = (folder or self.folder / "bundle") / "config.json"
        shutil.copy(kept, place)
        return f"cp {kept} {place}"

    def warm(self) -> None:
        """Create until the cache is there: specs just written are not kept."""
        while not self.cache.exists():
            self.bundle(self.asking)
            subprocess.run((self.shim, "create", "-b", self.folder / "bundle", "x"), env=self.env, check=True)

    @property
    def shim(self) -> str:
        return str(self.folder / "bin" / launcher.RUNTIME)

    def times_ms(self, commands: Sequence[str], *, prepare: str = "true") -> list[tuple[float, float]]:
        """Return median and minimum of each command."""
        result = self.folder / "result.json"
        line = [
            "nice",
            "-n",
            "-10",
            "hyperfine",
            "-N",
            "-w",
            "5",
            "-r",
            str(RUNS),
            "-p",
            prepare,
            "--export-json",
            str(result),
            *commands,
        ]
        subprocess.run(line, env=self.env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = json.loads(result.read_text())["results"]
        return [(item["median"] * 1e3, item["min"] * 1e3) for item in found]


@frame.benchmark("inject")
def inject_rows() -> Iterator[frame.Row | frame.Unmeasured]:
    if lacking := frame.needs("shim and hook: what they add to a start", "hyperfine", "runc", "busybox"):
        yield lacking
        return
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        bench = Bench(Path(name))
        yield from _shim_rows(bench)
        yield from _hook_rows(bench)


def _shim_rows(bench: Bench) -> Iterator[frame.Row]:
    bench.policy("/bin/true")
    bench.warm()
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir=MEMORY) as name:
        create = f"{bench.shim} create -b {name} x"
        commands = ["/bin/true", f"{bench.shim} state x", create]
        bare, passed, edited = bench.times_ms(commands, prepare=bench.bundle(bench.asking, Path(name)))
    create = f"{bench.shim} create -b {bench.folder}/bundle x"
    (on_disk,) = bench.times_ms([create], prepare=bench.bundle(bench.asking))
    python = f"{Path(bench.shim).read_text().partition(' ')[0].removeprefix('#!')} -I -S -c pass"
    (empty,) = bench.times_ms([python])
    cold = f"sh -c 'cp {bench.folder}/kept.json {bench.folder}/bundle/config.json; rm -f {bench.cache}'"
    (long,) = bench.times_ms([create], prepare=cold)
    peers = {"shim: create with 2 GPUs over exec": 6.3, "shim: other commands over exec": 8.3}
    for label, found in (("shim: other commands over exec", passed), ("shim: create with 2 GPUs over exec", edited)):
        yield frame.Row(
            name=label,
            ours=found[0] - bare[0],
            unit="ms",
            peer=peers[label],
            peer_name=PEER,
            peer_source=SOURCE,
            bar=SHIM_BAR_MS,
        )
    yield frame.Row(name="shim: create, best of all runs", ours=edited[1] - bare[1], unit="ms", bar=SHIM_BAR_MS)
    yield frame.Row(name="shim: create, bundle on the disk", ours=on_disk[0] - bare[0], unit="ms")
    yield frame.Row(name="shim: create, first start after a spec changed", ours=long[0] - bare[0], unit="ms")
    yield frame.Row(name="shim: of it, an empty interpreter", ours=empty[0] - bare[0], unit="ms")


def _hook_rows(bench: Bench) -> Iterator[frame.Row]:
    args = ["fairlead-hook", "--folder", "/usr/lib/x86_64-linux-gnu", "--driver", "550.163.01"]
    hook = {"path": str(bench.folder / "bin" / launcher.HOOK), "args": args, "env": ["PATH=/bin"], "timeout": 30}
    found = []
    for hooks in ([], [hook]):
        folder = bench.folder / f"run{len(hooks)}"
        folder.mkdir()
        document = {**bench.plain, "hooks": {"createContainer": hooks}}
        document["mounts"] = [*document["mounts"], *bench.mounts]
        document["root"] = {"path": str(bench.folder / "bundle/rootfs")}
        (folder / "config.json").write_text(json.dumps(document))
        found.append(f"runc run -b {folder} fl-bench-{os.getpid()}-{len(hooks)}")
    bare, hooked = bench.times_ms(found)
    yield frame.Row(
        name="hook: over bare runc run",
        ours=hooked[0] - bare[0],
        unit="ms",
        peer=73.0,
        peer_name=f"{PEER}, 6 hooks",
        peer_source=SOURCE,
        bar=HOOK_BAR_MS,
    )
    yield frame.Row(
        name="hook: over bare runc run, best of all runs", ours=hooked[1] - bare[1], unit="ms", bar=HOOK_BAR_MS
    )

"""One engine of any release in a machine of its own, asked for pods as a kubelet asks, without a cluster around it.

The machine is the cluster ring's: its own `/etc`, `/run` and `/var/lib`, its own pids and cgroup, so that `fairlead
runtime configure` works on the production paths and everything ends with one kill. What this kind of machine cannot do
(lower an OOM score without CAP_SYS_RESOURCE) is found out here and set in the node's own configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import grpc.aio
import pytest

from fairlead import errors
from fairlead.wire.kubelet import deviceplugin
from tests.cluster import cri, pods
from tests.cluster.proto import cri_pb2 as pb
from tools.cluster import build, image, machine

MAIN = "/etc/containerd/config.toml"
LIBEXEC = "/var/lib/fairlead/libexec"
SPEC = "/var/run/cdi/nvidia.com-gpu.json"
GPUS = 4
RUNC_ROOT = "/run/runc-of-this-node"
"""Where runc keeps its state: shows whose options a container was started with."""
_CAP_SYS_RESOURCE = 24
_DEBIAN = Path.home() / ".cache" / "fairlead" / "debian" / "containerd-1.6" / "usr" / "bin"
_RELEASES = {
    "1.7": build.folder_of(build.OLDER[0]),
    "2": build.folder_of(next(module for module in build.SHARED if module.name == "containerd")),
}


def programs(release: str) -> Path:
    """Return the folder with the programs of a release: 1.6, 1.7, or 2 for the cluster ring's."""
    if release == "1.6":
        if not _DEBIAN.is_dir():
            pytest.skip("no containerd 1.6: tests/cluster/setup.sh unpacks Debian 12's")
        return _DEBIAN
    folder = _RELEASES[release]
    if not folder.is_dir():
        pytest.fail(f"run tests/cluster/setup.sh first: {folder} is not built")
    return folder


def may_lower_oom_scores() -> bool:
    """Whether the kernel lets us; containerd must not try otherwise."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)


def main_config(version: int) -> str:
    """Return a node's own main file, as an installer would have written it."""
    restricted = str(not may_lower_oom_scores()).lower()
    name = {1: "cri", 2: '"io.containerd.grpc.v1.cri"', 3: '"io.containerd.cri.v1.runtime"'}[version]
    sandbox = f'sandbox_image = "{image.PAUSE}"' if version < 3 else ""
    pinned = f'[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{image.PAUSE}"' if version == 3 else ""
    return f"""\
# The node's own.
version = {version}
oom_score = 0  # mine

[plugins.{name}]
  restrict_oom_score_adj = {restricted}
  {sandbox}
  [plugins.{name}.containerd]
    default_runtime_name = "runc"
    [plugins.{name}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["example.com/*", "*/*"]
      [plugins.{name}.containerd.runtimes.runc.options]
        Root = "{RUNC_ROOT}"

{pinned}
"""


@dataclass
class Node:
    """A machine with one engine."""

    one: machine.Machine
    engine: ClassVar[str]
    folder: ClassVar[str]
    """Where it is configured."""
    command: ClassVar[tuple[str, ...]]
    """Starts it; `options` follow."""
    process: machine.Process | None = field(default=None, init=False)

    @property
    def socket(self) -> Path:
        raise NotImplementedError

    @property
    def options(self) -> tuple[str, ...]:
        return ()

    def write(self, inner: str, text: str) -> None:
        """Write a file in the machine."""
        self.one.run("/bin/sh", "-ec", 'mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"', "sh", inner, text)

    def read(self, inner: str) -> str:
        return self.one.run("cat", inner)

    def fairlead(self, *arguments: str) -> str:
        """Run our program in the machine; raises Unavailable with its words when it fails."""
        return self.one.run(sys.executable, "-m", "fairlead.cli.main", *arguments)

    def try_fairlead(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self.one.command(sys.executable, "-m", "fairlead.cli.main", *arguments)
        return subprocess.run(
            command, env=self.one.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def tree(self) -> str:
        """Return every file of the engine's folder, with mode and owner."""
        script = "cd $1 && find . | sort | xargs stat -c '%n %A %u %g'; cat $(find . -type f)"
        return self.one.run("/bin/sh", "-c", script, "sh", self.folder)

    def configure(self, *arguments: str) -> str:
        return self.fairlead("runtime", "configure", "--engine", self.engine, "--folder", LIBEXEC, *arguments)

    def write_specs(self) -> None:
        """Give the node its GPUs."""
        self.one.run("mkdir", "-p", str(Path(SPEC).parent))
        self.fairlead("cdi", "generate", "--simulate", "t4x4", "--output", SPEC)

    def write_policy(self, **keys: object) -> None:
        self.write("/etc/fairlead/runtime.json", json.dumps(keys))

    def start(self) -> None:
        """Start the engine and wait until it serves."""
        log = self.one.folder / f"{self.engine}.log"
        self.socket.unlink(missing_ok=True)
        self.process = self.one.start((*self.command, *self.options), log)
        deadline = time.monotonic() + 60
        while not self.socket.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            assert self.process.is_alive, tail
            assert time.monotonic() < deadline, tail
            time.sleep(0.02)

    def stop(self) -> None:
        assert self.process is not None
        assert self.process.end(signal.SIGTERM, timeout_s=60)

    def restart(self) -> None:
        self.stop()
        self.start()


@dataclass
class CRINode(Node):
    """A machine with one engine that a kubelet drives."""

    loader: ClassVar[tuple[str, ...]]
    """Loads an archive of an image, whose path follows."""

    def write_main(self) -> None:
        """Write the node's own configuration."""
        raise NotImplementedError

    def load_images(self) -> None:
        """Have the engine keep what the tests' pods run."""
        for name, write in (("pause.tar", image.write_pause), ("busybox.tar", image.write_busybox)):
            path = self.one.folder / name
            write(path)
            self.one.run(*self.loader, str(path))

    @contextlib.asynccontextmanager
    async def kubelet(self, *, limit_s: float = 60) -> AsyncIterator[Kubelet]:
        """Open the CRI as a kubelet would; every pod it started is gone afterwards. Args: limit_s: of one call."""
        channel = grpc.aio.insecure_channel(deviceplugin.target(self.socket), options=deviceplugin.CHANNEL_OPTIONS)
        async with channel:
            one = Kubelet(cri.RuntimeStub(channel, timeout_s=limit_s), self.one.cgroup)
            await one.until_serving()
            try:
                yield one
            finally:
                for container in one.containers:  # CRI-O would ask first, and process 1 hears nothing
                    await one.stub.kill_container(container)
                for sandbox in one.sandboxes:
                    await one.stub.remove_sandbox(sandbox)


@dataclass
class Host(CRINode):
    """A machine with one containerd."""

    release: str
    engine = "containerd"
    folder = "/etc/containerd"
    command = ("containerd", "--config", MAIN)
    loader = ("ctr", "-n", "k8s.io", "images", "import")

    @property
    def socket(self) -> Path:
        return self.one.disk / "run" / "containerd" / "containerd.sock"

    def write_main(self) -> None:
        self.write(MAIN, main_config(3 if self.release == "2" else 2))

    def dump(self) -> dict[str, Any]:
        """Return the configuration as containerd puts it together itself."""
        return tomllib.loads(self.one.run("containerd", "--config", MAIN, "config", "dump"))


@dataclass
class Kubelet:
    """Starts pods of one container."""

    stub: cri.RuntimeStub
    cgroup: str
    sandboxes: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)

    async def until_serving(self) -> None:
        """Wait for the CRI plugin, which begins a moment after the socket is there; it has no event to wait for."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.stub.status()
                except (errors.ProtocolError, errors.Unavailable):
                    await asyncio.sleep(0.02)
                else:
                    return

    async def start(
        self,
        *,
        handler: str = "",
        devices: Sequence[str] = (),
        annotations: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
        uid: str = "",
        pod_annotations: dict[str, str] | None = None,
    ) -> str:
        """Start a pod and its container, and return the container's id; `annotations` are of both."""
        name = f"pod-{uuid.uuid4().hex[:8]}"
        uid = uid or name
        # On the host's network: no CNI is needed, and the machine has one of its own anyway. Pids as kubelets ask.
        spaces = pb.NamespaceOption(network=pb.NamespaceMode.NODE, pid=pb.NamespaceMode.CONTAINER)
        pod = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            annotations={**(annotations or {}), **(pod_annotations or {})},
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=f"/{self.cgroup}/{name}",
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=spaces),
            ),
        )
        sandbox = await self.stub.run_sandbox(pod, handler=handler)
        self.sandboxes.append(sandbox)
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="main"),
            image=pb.ImageSpec(image=image.BUSYBOX),
            command=["/bin/sleep", "3600"],
            envs=[pb.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()],
            # as kubelets do
            labels={"io.kubernetes.pod.uid": uid, "io.kubernetes.container.name": "main"},
            annotations=annotations or {},
            CDI_devices=[pb.CDIDevice(name=device) for device in devices],
            linux=pb.LinuxContainerConfig(
                security_context=pb.LinuxContainerSecurityContext(
                    namespace_options=spaces,
                    # containerd gives it unasked; `pods.LOOK` needs it
                    capabilities=pb.Capability(add_capabilities=["MKNOD"]),
                )
            ),
        )
        container = await self.stub.create_container(sandbox, config, pod)
        await self.stub.start_container(container)
        self.containers.append(container)
        return container

    async def sight(self, container: str) -> pods.Sight:
        """Return what a container sees of the machine's GPUs and what the kernel lets it open."""
        done = await self.stub.run_in_container(container, ["/bin/sh", "-c", pods.LOOK], limit_s=20)
        return pods.parse_sight(done.stdout.decode().splitlines())


@contextlib.contextmanager
def booted(release: str) -> Iterator[Host]:
    """Boot a machine with the programs of a containerd release; nothing is configured and nothing runs."""
    with machine_with(programs(release)) as one:
        yield Host(one, release)


@contextlib.contextmanager
def machine_with(*folders: Path) -> Iterator[machine.Machine]:
    """Boot a machine whose programs are those of the folders, then the system's."""
    folder = Path(tempfile.mkdtemp(prefix="fl-engine-", dir="/var/tmp"))
    number = machine.reserve_number()
    try:
        yield machine.boot(folder, hostname=f"engine{number}", paths=tuple(map(str, folders)), number=number)
    finally:
        machine.shut_down(number)
        machine.forget(folder, number)
        shutil.rmtree(folder, ignore_errors=True)

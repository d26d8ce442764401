"""One pod as a kubelet has an engine run it, for tests of what its containers write and how they end.

`enginehost.Kubelet` starts pods that stay; these have commands, logs and exit codes. Works in any machine that has the
engine's socket: the cluster ring's, and the emulated HGX node, where no kubelet of Kubernetes runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster import cri
from tests.cluster.proto import cri_pb2 as pb

IMAGE: Final = "docker.io/local/busybox:1"
_TURN_S: Final = 0.1


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    code: int
    out: str
    err: str


@dataclass
class Pod:
    """A pod of an engine. `run` makes it."""

    stub: cri.RuntimeStub
    config: pb.PodSandboxConfig
    logs: Path
    """The folder of its logs as this process sees it."""
    sandbox: str = ""
    containers: dict[str, str] = field(default_factory=dict)
    """Ids by name."""

    async def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        devices: Sequence[str] = (),
        host_devices: Mapping[str, str] | None = None,
    ) -> str:
        """Start a container and return its id. Args: devices: CDI names.   host_devices: host's path by container's."""
        spaces = self.config.linux.security_context.namespace_options
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name),
            image=pb.ImageSpec(image=IMAGE),
            command=list(command),
            labels={"io.kubernetes.pod.uid": self.config.metadata.uid, "io.kubernetes.container.name": name},
            CDI_devices=[pb.CDIDevice(name=one) for one in devices],
            devices=[
                pb.Device(container_path=inner, host_path=outer, permissions="rw")
                for inner, outer in (host_devices or {}).items()
            ],
            log_path=f"{name}.log",
            linux=pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(namespace_options=spaces)),
        )
        container = await self.stub.create_container(self.sandbox, config, self.config)
        self.containers[name] = container
        await self.stub.start_container(container)
        return container

    async def wait(self, name: str, *, limit_s: float = 60) -> Ended:
        """Return how a container ended."""
        until = time.monotonic() + limit_s
        while (status := (await self.stub.container_status(self.containers[name])).status).state != pb.CONTAINER_EXITED:
            assert time.monotonic() < until, (status, self.log(name))
            await asyncio.sleep(_TURN_S)
        return Ended(code=status.exit_code, out=self.log(name), err=self.log(name, stream="stderr"))

    async def wait_log(self, name: str, text: str, *, limit_s: float = 60) -> str:
        """Return what a container has written once a text is in it."""
        until = time.monotonic() + limit_s
        while text not in (found := self.log(name)):
            assert time.monotonic() < until, (found, await self.stub.container_status(self.containers[name]))
            await asyncio.sleep(_TURN_S)
        return found

    def log(self, name: str, *, stream: str = "stdout") -> str:
        """Return what a container has written to a stream. Source: Kubernetes, CRI logging format."""
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        parts = [line.split(" ", 3) for line in lines]
        return "".join(
            text + ("\n" if tag == "F" else "")
            for _, one, tag, text in (part for part in parts if len(part) == 4)
            if one == stream
        )

    async def inspect(self, name: str) -> dict[str, Any]:
        """Return what `crictl inspect` shows of a container under `info`."""
        found: dict[str, Any] = json.loads((await self.stub.container_status(self.containers[name])).info["info"])
        return found

    async def remove(self) -> None:
        """End the pod and forget it; idempotent."""
        await self.stub.remove_sandbox(self.sandbox)


async def run(
    stub: cri.RuntimeStub,
    name: str,
    *,
    handler: str,
    logs: str,
    seen_at: Path,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    cgroup: str = "",
) -> Pod:
    """Start a pod's sandbox. Args: logs: the folder of its logs as the engine sees it.   seen_at: as we see it."""
    # On the host's network: no CNI is needed. Pids as kubelets ask.
    spaces = pb.NamespaceOption(network=pb.NamespaceMode.NODE, pid=pb.NamespaceMode.CONTAINER)
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace=namespace),
        log_directory=logs,
        annotations=dict(annotations or {}),
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=f"{cgroup}/{name}",
            security_context=pb.LinuxSandboxSecurityContext(namespace_options=spaces),
        ),
    )
    made = Pod(stub, config, seen_at)
    made.sandbox = await stub.run_sandbox(config, handler=handler)
    return made

"""A client of the container runtime interface: starts, reads and ends pods of containerd and CRI-O, as a kubelet does.

Conventions are those of `wire.kubelet.deviceplugin`. Images, logs and streams are left out.

Source: k8s.io/cri-api pkg/apis/runtime/v1 api.proto.
"""

from __future__ import annotations

from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf import message

from fairlead.wire.kubelet import deviceplugin
from tests.cluster.proto import cri_pb2 as pb

SERVICE: Final = "runtime.v1.RuntimeService"

Response = TypeVar("Response", bound=message.Message)


class RuntimeStub:
    """Calls an engine. Every method raises the table's class for the status that came back; None means no deadline."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout_s: float | None = None) -> None:
        self._channel, self._timeout_s = channel, timeout_s

    async def version(self) -> pb.VersionResponse:
        """Return name and release of the engine."""
        return await self._call("Version", pb.VersionRequest(), pb.VersionResponse)

    async def status(self, *, verbose: bool = False) -> pb.StatusResponse:
        """Return the engine's conditions; verbose: its configuration too, as JSON by key."""
        return await self._call("Status", pb.StatusRequest(verbose=verbose), pb.StatusResponse)

    async def run_sandbox(self, config: pb.PodSandboxConfig, *, handler: str = "") -> str:
        """Start a pod's sandbox and return its id. Args: handler: of its RuntimeClass; empty: the engine's default."""
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=handler)
        return (await self._call("RunPodSandbox", request, pb.RunPodSandboxResponse)).pod_sandbox_id

    async def remove_sandbox(self, sandbox: str) -> None:
        """End a pod, its containers too, and forget it; idempotent."""
        request = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox)
        await self._call("StopPodSandbox", request, pb.StopPodSandboxResponse)
        await self._call(
            "RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox), pb.RemovePodSandboxResponse
        )

    async def create_container(self, sandbox: str, config: pb.ContainerConfig, pod: pb.PodSandboxConfig) -> str:
        """Make a container in a sandbox, do not start it, and return its id."""
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=pod)
        return (await self._call("CreateContainer", request, pb.CreateContainerResponse)).container_id

    async def start_container(self, container: str) -> None:
        """Start a container that was made."""
        await self._call("StartContainer", pb.StartContainerRequest(container_id=container), pb.StartContainerResponse)

    async def container_status(self, container: str) -> pb.ContainerStatusResponse:
        """Return a container's state, and what `crictl inspect` shows of it, as JSON by key."""
        request = pb.ContainerStatusRequest(container_id=container, verbose=True)
        return await self._call("ContainerStatus", request, pb.ContainerStatusResponse)

    async def sandbox_status(self, sandbox: str) -> pb.PodSandboxStatusResponse:
        """Return a sandbox's state, and what `crictl inspectp` shows of it, as JSON by key."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
        return await self._call("PodSandboxStatus", request, pb.PodSandboxStatusResponse)

    async def stop_container(self, container: str, *, grace_s: int) -> None:
        """Ask a container's process to end, and kill it after so many seconds."""
        request = pb.StopContainerRequest(container_id=container, timeout=grace_s)
        await self._call("StopContainer", request, pb.StopContainerResponse)

    async def remove_container(self, container: str) -> None:
        """Forget a container; idempotent."""
        request = pb.RemoveContainerRequest(container_id=container)
        await self._call("RemoveContainer", request, pb.RemoveContainerResponse)

    async def kill_container(self, container: str) -> None:
        """End a container without asking its processes; idempotent."""
        request = pb.StopContainerRequest(container_id=container, timeout=0)
        await self._call("StopContainer", request, pb.StopContainerResponse)

    async def run_in_container(self, container: str, command: list[str], *, limit_s: int = 0) -> pb.ExecSyncResponse:
        """Run one more process in a container, to its end. Args: limit_s: whole seconds; 0: none."""
        request = pb.ExecSyncRequest(container_id=container, cmd=command, timeout=limit_s)
        return await self._call("ExecSync", request, pb.ExecSyncResponse)

    async def _call(self, method: str, request: message.Message, kind: type[Response]) -> Response:
        call = deviceplugin.method(self._channel, SERVICE, method)
        return await deviceplugin.answer(call(request, timeout=self._timeout_s), method, kind)

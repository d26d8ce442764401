"""Calls the container runtime interface's `Version`: which engine serves a kubelet, and which release.

Conventions are those of `wire.kubelet.deviceplugin`; nothing else of the interface is spoken here.
Source: k8s.io/cri-api pkg/apis/runtime/v1 api.proto; kubelet kuberuntime_manager.go, ContainerRuntimeVersion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc.aio

from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import engineversion_pb2 as pb

SERVICE: Final = "runtime.v1.RuntimeService"


async def ask(socket: Path, *, timeout_s: float) -> str:
    """Return engine and release in the words of a Node's `containerRuntimeVersion`, `containerd://v2.2.1`.

    Raises: the table's class for what goes wrong.
    """
    async with grpc.aio.insecure_channel(deviceplugin.target(socket), options=deviceplugin.CHANNEL_OPTIONS) as channel:
        call = deviceplugin.method(channel, SERVICE, "Version")
        said = await deviceplugin.answer(call(pb.VersionRequest(), timeout=timeout_s), "Version", pb.VersionResponse)
    return f"{said.runtime_name}://{said.runtime_version}"

"""Defines the plugin registration API's calls: a kubelet asks a plugin what it is, and says what came of it.

Conventions are those of `wire.kubelet.deviceplugin`. The plugin serves; the kubelet finds its socket in the folder
`plugins_registry`, whose files without a leading dot it dials.

Source: k8s.io/kubelet pkg/apis/pluginregistration/v1 api.proto and constants.go.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import grpc
import grpc.aio

from fairlead.frozen import frozen
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import pluginregistration_pb2 as pb

SERVICE: Final = "pluginregistration.Registration"
FOLDER: Final = "plugins_registry"
"""Name of the folder below the kubelet's root that it watches."""
PLUGINS: Final = "plugins"
"""Name of the folder beside it, in which each plugin keeps its own sockets and files."""
DRA_PLUGIN: Final = "DRAPlugin"
DEVICE_PLUGIN: Final = "DevicePlugin"
CSI_PLUGIN: Final = "CSIPlugin"


@frozen
class Info:
    """What a plugin says it is."""

    type: str
    name: str
    """Of a DRA plugin: its driver."""
    endpoint: str
    """Absolute path of the socket that its calls go to."""
    versions: tuple[str, ...]
    """Services that it offers, such as `v1.DRAPlugin`."""


class Servicer(Protocol):
    """What a plugin serves on its registration socket."""

    async def info(self) -> Info:
        """Return what the plugin is; kubelets ask again from time to time."""
        ...

    async def registered(self, problem: str) -> None:
        """Take in what came of it; empty: the plugin is registered."""
        ...


def handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    """Return the handler of service `pluginregistration.Registration`, for `server.add_generic_rpc_handlers`."""

    async def info(_: pb.InfoRequest) -> pb.PluginInfo:
        said = await servicer.info()
        return pb.PluginInfo(type=said.type, name=said.name, endpoint=said.endpoint, supported_versions=said.versions)

    async def notify(status: pb.RegistrationStatus) -> pb.RegistrationStatusResponse:
        problem = "" if status.plugin_registered else status.error or "refused without a reason"
        await servicer.registered(problem)
        return pb.RegistrationStatusResponse()

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetInfo": deviceplugin.unary(info, pb.InfoRequest),
        "NotifyRegistrationStatus": deviceplugin.unary(notify, pb.RegistrationStatus),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class Stub:
    """Calls a plugin. Every method raises the table's class for the status that came back."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._info = deviceplugin.method(channel, SERVICE, "GetInfo")
        self._notify = deviceplugin.method(channel, SERVICE, "NotifyRegistrationStatus")

    async def info(self, *, timeout_s: float) -> Info:
        """Return what the plugin says it is, unchecked."""
        said = await deviceplugin.answer(self._info(pb.InfoRequest(), timeout=timeout_s), "GetInfo", pb.PluginInfo)
        return Info(type=said.type, name=said.name, endpoint=said.endpoint, versions=tuple(said.supported_versions))

    async def notify(self, problem: str = "", *, timeout_s: float) -> None:
        """Say that the plugin is registered, or why it is not."""
        status = pb.RegistrationStatus(plugin_registered=not problem, error=problem)
        call = self._notify(status, timeout=timeout_s)
        await deviceplugin.answer(call, "NotifyRegistrationStatus", pb.RegistrationStatusResponse)

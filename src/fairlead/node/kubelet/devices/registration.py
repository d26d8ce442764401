"""Serves `v1beta1.Registration` on `kubelet.sock` as the real kubelet does; every start empties the socket folder.

The sockets of plugins from before the start are removed, so that each plugin notices and registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio

from fairlead.node.kubelet.devices.devicemanager import DeviceManager
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import deviceplugin_pb2 as pb


class _Servicer:
    def __init__(self, devices: DeviceManager, folder: Path) -> None:
        self._devices = devices
        self._folder = folder

    async def register(self, request: pb.RegisterRequest) -> pb.Empty:
        return await self._devices.register(request, self._folder)


@contextlib.asynccontextmanager
async def serve_registration(devices: DeviceManager, folder: Path) -> AsyncIterator[None]:
    """Serve while the block runs; the socket is gone afterwards."""
    await asyncio.to_thread(_remove_sockets, folder)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((deviceplugin.registration_handlers(_Servicer(devices, folder)),))
    socket = folder / deviceplugin.KUBELET_SOCKET
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()  # it ends itself where it is cancelled
    try:  # a server that is left without `stop` lets its next call write into freed memory (grpcio 1.85)
        socket.chmod(0o600)
        yield
    finally:
        await server.stop(grace=None)
        socket.unlink(missing_ok=True)


def _remove_sockets(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # plugins are root's, as this kubelet is
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()

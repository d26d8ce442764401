"""A device plugin beside the product's agent: our plugin's code on a socket of another name, with two devices.

Run as `python stale_plugin.py RESOURCE healthy|stale`. `stale`: as soon as the kubelet was told of two healthy devices
both are ill, and no list says so any more, as in the moment before one does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from fairlead import telemetry
from fairlead.model.device import Device
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.deviceplugin import registration
from fairlead.node.inventory import foldermonitor
from fairlead.plan.gpu.allocation import answer, choose
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.proto import deviceplugin_pb2 as pb

_FOLDER = Path("/var/lib/kubelet/device-plugins")


class Stale(deviceplugin.Plugin):
    """Sends its first list and no other."""

    async def list_and_watch(self) -> AsyncIterator[pb.ListAndWatchResponse]:
        async for message in super().list_and_watch():
            yield message
            offer(self, reason="XID79")
            await asyncio.Event().wait()


def offer(plugin: deviceplugin.Plugin, *, reason: str = "") -> None:
    devices = tuple(
        Device(
            id=DeviceID(name),
            cdi_name=f"example.com/gpu={name}",
            gpu=GPUUUID(name),
            is_healthy=not reason,
            reason=reason,
        )
        for name in ("GPU-0", "GPU-1")
    )
    advertisement = advertise.Advertisement(resource=plugin.resource, vendor=Vendor.NVIDIA, devices=devices)
    plugin.update(advertisement, choose.Topology())


async def main(resource: str, how: str) -> None:
    plugin = (Stale if how == "stale" else deviceplugin.Plugin)(resource, allocate_options=answer.AllocateOptions())
    offer(plugin)
    endpoint = deviceplugin.Endpoint(plugin, _FOLDER)
    endpoint.path = _FOLDER / "other.sock"
    watch = foldermonitor.FolderMonitor(_FOLDER)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as tasks:
        registrar = registration.Registrar(endpoint, watch, first_wait_s=1)
        parts = [tasks.create_task(part.run()) for part in (watch, registrar)]
        await stop.wait()
        for part in parts:
            part.cancel()


if __name__ == "__main__":
    telemetry.configure("info", "json")
    asyncio.run(main(*sys.argv[1:]))

"""A machine with containerd whose handler for machines is Kata's stand-in, and a kubelet's PodResources beside it.

No registry has Kata: see `tests/katastandin`. The handler is the one that `fairlead runtime configure --kata` writes,
but for the shim, which is containerd's own for runc with the stand-in for its runtime. What PodResources says is a list
that a test writes; the calls are served by Fairlead's own statement of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from fairlead import errors
from fairlead.wire.kubelet import deviceplugin, podresources
from fairlead.wire.proto import podresources_pb2 as pods_pb
from tests.cluster import enginehost
from tests.katastandin import guest
from tools.cluster import build, machine

HANDLER: Final = "kata-qemu-nvidia-gpu"
FOLDER: Final = "/var/lib/katastandin"
CONFIG: Final = f"{FOLDER}/configuration.toml"
SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
STATE: Final = f"{enginehost.RUNC_ROOT}-kata"
_ROOT: Final = Path(__file__).parent.parent.parent


@dataclass
class Held:
    """What the kubelet says of pods."""

    devices: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Pod → resource → ids of devices."""
    asked: int = 0

    async def list(self) -> pods_pb.ListPodResourcesResponse:
        self.asked += 1
        return pods_pb.ListPodResourcesResponse(pod_resources=[self._pod(name) for name in self.devices])

    async def allocatable(self) -> pods_pb.AllocatableResourcesResponse:
        return pods_pb.AllocatableResourcesResponse()

    async def get(self, namespace: str, name: str) -> pods_pb.GetPodResourcesResponse:
        self.asked += 1
        if namespace != "default" or name not in self.devices:
            raise errors.NotFound(f"no pod {namespace}/{name}", reason="PodNotFound")
        return pods_pb.GetPodResourcesResponse(pod_resources=self._pod(name))

    def _pod(self, name: str) -> pods_pb.PodResources:
        devices = [
            pods_pb.ContainerDevices(resource_name=resource, device_ids=ids)
            for resource, ids in self.devices[name].items()
        ]
        main = pods_pb.ContainerResources(name="main", devices=devices)
        return pods_pb.PodResources(name=name, namespace="default", containers=[main])


def install(one: machine.Machine, **changes: Any) -> str:
    """Write the stand-in's files into a machine and return its handler. Args: changes: keys of Kata's configuration."""
    guest.require()
    emulator = shutil.which("qemu-system-x86_64")
    if emulator is None:
        pytest.skip("Kata's stand-in needs qemu-system-x86_64")
    kernel = guest.debian_kernel()
    place = one.folder / "kata"
    place.mkdir(exist_ok=True)
    initrd = place / "initramfs"
    if not initrd.exists():
        guest.initramfs(initrd, modules=guest.DEBIAN)
    own = guest.configuration(emulator=emulator, kernel=str(kernel), initrd=str(initrd), sock=SOCKET, **changes)
    program = guest.script(sys.executable, CONFIG, str(_ROOT), str(_ROOT / "src"))
    for path, text in ((CONFIG, own), (f"{FOLDER}/runtime", program)):
        one.run("/bin/sh", "-ec", 'mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"; chmod 755 "$1"', "sh", path, text)
    return handler(f"{FOLDER}/runtime")


def handler(program: str, **keys: Any) -> str:
    """Return the handler's part of containerd's configuration. Args: keys: more of its keys."""
    name = f'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{HANDLER}'
    more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return f"""
[{name}]
  runtime_type = "io.containerd.runc.v2"
  privileged_without_host_devices = true
  {more}
  [{name}.options]
    BinaryName = "{program}"
    Root = "{STATE}"
"""


@contextlib.contextmanager
def booted(**changes: Any) -> Iterator[enginehost.Host]:
    """Boot a machine with containerd and the handler; both are gone afterwards."""
    if not build.folder_of(next(one for one in build.SHARED if one.name == "containerd")).is_dir():
        pytest.skip("containerd has not been built: tests/cluster/setup.sh")
    with enginehost.booted("2") as one:
        one.write(enginehost.MAIN, enginehost.main_config(3) + install(one.one, **changes))
        one.start()
        one.load_images()
        yield one


@contextlib.asynccontextmanager
async def pod_resources(
    host: enginehost.Host, devices: Mapping[str, Mapping[str, Sequence[str]]]
) -> AsyncIterator[Held]:
    """Serve the kubelet's PodResources in the machine during a block. Args: devices: as `Held`'s."""
    held = Held({pod: {name: list(ids) for name, ids in one.items()} for pod, one in devices.items()})
    socket = host.one.disk / SOCKET.lstrip("/").replace("var/lib", "var-lib", 1)
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((podresources.handlers(held),))
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()
    try:
        yield held
    finally:
        await server.stop(grace=None)
        await asyncio.to_thread(socket.unlink, missing_ok=True)

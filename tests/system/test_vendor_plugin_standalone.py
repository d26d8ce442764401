"""NVIDIA's device plugin, as a double of its answers, beside ours: real containers, and the kernel's word on each."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import grpc.aio
import pytest
from home import Home

from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.node.kubelet import vendorplugin

pytestmark = pytest.mark.podman
RESOURCE: Final = "nvidia.com/gpu"
SOCKET: Final = "nvidia-gpu.sock"
_PROBE: Final = ("sh", "-c", "ls /dev | grep -E '^nvidia[0-9]+$'; ls /var/run/nvidia-container-devices 2>/dev/null")


@contextlib.contextmanager
def plugged(service: Home, plugin: vendorplugin.VendorPlugin, resource: str = RESOURCE) -> Iterator[None]:
    """Serve a plugin and register it with the service's kubelet, from a thread with a loop of its own."""
    folder = service.folder / "run/device-plugins"
    # The newest registration serves: ours must have come first.
    service.until(lambda: allocatable(service) == "8", what="our own plugin has registered", timeout_s=30)
    ready, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with plugin.serve(folder / SOCKET):
            address = deviceplugin.target(folder / deviceplugin.KUBELET_SOCKET)
            async with grpc.aio.insecure_channel(address, options=deviceplugin.CHANNEL_OPTIONS) as channel:
                stub = deviceplugin.RegistrationStub(channel)
                await stub.register(plugin.request(SOCKET, resource=resource), timeout_s=20)
            ready.set()
            await over.wait()

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(30)
        count = str(len(plugin.devices))
        service.until(lambda: allocatable(service, resource) == count, what="its devices are advertised", timeout_s=30)
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)


def allocatable(service: Home, resource: str = RESOURCE) -> str | None:
    nodes = service.ok("nodes", "-o", "json").data  # none right after the start
    return next((str(node["allocatable"][resource]) for node in nodes if resource in node["allocatable"]), None)


def uuids(service: Home) -> list[str]:
    return [one["gpu"]["uuid"] for one in service.ok("gpus", "-o", "json").data["gpus"]]


def steps(service: Home, name: str) -> dict[str, dict[str, Any]]:
    entries = service.ok("trace", name, "-o", "json").data["entries"]
    return {entry["step"]["reason"]: entry["step"]["facts"] for entry in entries if entry["step"] is not None}


@pytest.mark.parametrize("strategy", [("envvar",), ("volume-mounts",)])
def test_a_plugin_without_cdi_gives_the_gpu_and_trace_names_it(service: Home, strategy: tuple[str, ...]) -> None:
    name = f"by-{strategy[0]}"
    gpus = uuids(service)
    with plugged(service, vendorplugin.VendorPlugin(gpus[5], gpus[2], strategies=strategy)):
        result = service.run("-g", "1", "--name", name, "--", *_PROBE)
        assert result.out.split() == ["nvidia5"], result.err
        told = steps(service, name)
    assert told["DevicesAdvertised"]["socket"].endswith(f"/{SOCKET}")
    assert told["EditsResolved"]["names"] == [f"fairlead.dev/gpu={gpus[5]}"]
    assert told["IsolationRead"]["opens"]["/dev/nvidia5"] == "ENXIO"


def test_device_nodes_of_an_answer_are_read_back(service: Home) -> None:
    (node,) = service.state.rglob("dev/nvidia3")

    class Nodes(vendorplugin.VendorPlugin):
        def answer(self, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
            spec = pb.DeviceSpec(container_path="/dev/nvidia3", host_path=str(node), permissions="rw")
            return pb.ContainerAllocateResponse(devices=[spec])

    with plugged(service, Nodes("0000:3b:00.0"), "example.com/gpu"):
        manifest = service.folder / "nodes.yaml"
        manifest.write_text(_MANIFEST.format(image=service.image))
        result = service("run", "-f", str(manifest))
        assert result.out.split() == ["nvidia3"], result.err
        told = steps(service, "nodes")
    assert told["IsolationRead"]["granted"] == ["/dev/nvidia3"]
    assert told["IsolationRead"]["opens"]["/dev/nvidia3"] == "ENXIO"


_MANIFEST: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: nodes}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: {image}
    command: [sh, -c, "ls /dev | grep -E '^nvidia[0-9]+$'"]
    resources: {{limits: {{example.com/gpu: 1}}}}
"""


def test_a_gpu_that_no_spec_defines_refuses_the_start_and_says_why(service: Home) -> None:
    with plugged(service, vendorplugin.VendorPlugin("GPU-of-another-machine")):
        result = service.run("-g", "1", "--name", "strange", "--", *_PROBE)
    assert result.code != 0
    said = service.ok("trace", "strange").out
    assert re.search(r"no CDI spec of this machine defines\s+GPU-of-another-machine", said)
    assert "DEVICE_LIST_STRATEGY=cdi-cri" in said


@pytest.mark.slow
def test_ours_serves_again_when_the_other_plugin_ends(service: Home) -> None:
    with plugged(service, vendorplugin.VendorPlugin(*uuids(service)[:3])):
        assert allocatable(service) == "3"
    service.until(lambda: allocatable(service) == "8", what="our plugin serves again", timeout_s=20)
    assert service.run("-g", "8", "--name", "after", "--rm", "--", "true").code == 0
    assert service.run("-g", "1", "--name", "again", "--", "true").code == 0
    assert "/fairlead-" in steps(service, "again")["DevicesAdvertised"]["socket"]
    found = service("doctor")
    assert "8 healthy nvidia.com/gpu advertised" in found.out

"""A configuration that changes under running pods: resources begin, change and end at the kubelet, over sockets."""

# ruff: noqa: F811  (fixtures of another file)

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from fairlead import errors, settings
from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID
from fairlead.node.config import source
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.contract.test_agent_contract import NVIDIA, PATIENCE_S, Home, home_folder, reason  # noqa: F401 fixture
from tests.contract.test_other_holders import Kubelet

SHARED = f"{NVIDIA}.shared"
BY_TIME = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 10}]}}"


def configured(home: Home, **plugin: object) -> None:
    home.settings = dataclasses.replace(
        home.settings,
        plugin=settings.PluginSettings(**plugin),  # type: ignore[arg-type]
    )


async def until(home: Home, wanted: dict[str, tuple[int, int]]) -> None:
    """Wait until the kubelet's (capacity, allocatable) of these resources is this."""
    async with asyncio.timeout(PATIENCE_S):
        while {name: home.devices.capacity().get(name) for name in wanted} != wanted:
            await home.changes.wait(home.changes.version)


async def until_published(home: Home, wanted: set[tuple[str, str, int]]) -> None:
    """Wait until the GPUs' objects say this of resource, means and replicas."""
    found: dict[str, tuple[str, str, int]] = {}
    async with asyncio.timeout(PATIENCE_S):
        async for change in home.store.watch(gpudevice.GPUDevice):
            spec = change.object.spec
            found[spec.uuid] = (spec.resource, spec.sharing, spec.replicas)
            if set(found.values()) == wanted:
                return


@contextlib.asynccontextmanager
async def plugin_of(home: Home, resource: str) -> AsyncIterator[wire.DevicePluginStub]:
    path = home.settings.kubelet_folder / f"fairlead-{resource.replace('/', '_')}.sock"
    async with grpc.aio.insecure_channel(wire.target(path), options=wire.CHANNEL_OPTIONS) as channel:
        yield wire.DevicePluginStub(channel)


def ask(*ids: str) -> pb.AllocateRequest:
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


async def test_a_fault_marks_ten_of_ten_replicas_at_the_kubelet(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    file = home_folder / "plugin.yaml"
    file.write_text(BY_TIME)
    configured(home, config_file=file)
    async with home.kubelet(), home.agent():
        await until(home, {SHARED: (20, 20)})
        await home.silicon.events.put(GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-1"), xid=79))
        await until(home, {SHARED: (20, 10)})


async def test_the_nodes_label_switches_resources_while_the_agent_runs(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    files = home_folder / "configs"
    files.mkdir()
    (files / "default").write_text("version: v1")
    (files / "shared").write_text(BY_TIME)
    (files / "wrong").write_text("sharing: {timeSlicing: {replicas: 2}}")
    configured(home, config_folder=files)
    node = await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1")))

    async def label(name: str) -> None:
        about = meta.ObjectMeta(name="node-1", uid=node.metadata.uid, labels={source.LABEL: name} if name else {})
        await home.store.apply(core.Node(metadata=about), manager="admin")

    async with home.kubelet(), home.agent():
        await until(home, {NVIDIA: (2, 2), SHARED: None})  # type: ignore[dict-item]
        await label("shared")
        await until(home, {NVIDIA: (0, 0), SHARED: (20, 20)})
        await until_published(home, {(SHARED, "time-slicing", 10)})
        async with asyncio.timeout(PATIENCE_S):
            while (home.settings.kubelet_folder / "fairlead-nvidia.com_gpu.sock").exists():  # noqa: ASYNC110 (a file)
                await asyncio.sleep(0.01)
        await label("wrong")
        refused = await home.until_step(reason("ConfigRefused"))
        assert "sharing.timeSlicing.replicas: it belongs into sharing.timeSlicing.resources[]" in refused.message
        await until(home, {SHARED: (20, 20)})
        await label("")
        await until(home, {NVIDIA: (2, 2), SHARED: (0, 0)})
        await until_published(home, {(NVIDIA, "", 0)})


async def test_a_gpu_that_a_pod_has_whole_is_not_shared_before_the_pod_has_ended(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    file = home_folder / "plugin.yaml"
    file.write_text("version: v1")
    configured(home, config_file=file)
    kubelet = Kubelet(home)
    async with kubelet.running(), home.agent():
        await until(home, {NVIDIA: (2, 2)})
        held = await kubelet.start("p", NVIDIA)
        file.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
        await until(home, {NVIDIA: (8, 4)})
        shared = await kubelet.start("q", NVIDIA)
        assert not {name.partition("::")[0] for name in kubelet.ids(shared)} & set(kubelet.ids(held))
        await kubelet.end(held)
        await until(home, {NVIDIA: (8, 8)})


@pytest.mark.parametrize(
    ("field", "ids", "word"),
    [
        ("sharing: {timeSlicing: {failRequestsGreaterThanOne: true, %s}}", ("GPU-0::0", "GPU-1::0"), "one is the most"),
        ("sharing: {timeSlicing: {%s}}\nfairlead: {sharing: {differentGPUs: true}}", ("GPU-0::0", "GPU-0::1"), "diff"),
    ],
)
async def test_what_one_container_may_not_have_is_refused(
    home_folder: Path, field: str, ids: tuple[str, ...], word: str
) -> None:
    home = Home(home_folder, 2)
    file = home_folder / "plugin.yaml"
    file.write_text(field % "resources: [{name: nvidia.com/gpu, replicas: 2}]")
    configured(home, config_file=file)
    async with home.kubelet(), home.agent():
        await until(home, {NVIDIA: (4, 4)})
        async with plugin_of(home, NVIDIA) as plugin:
            with pytest.raises(errors.RequestError, match=word):
                await plugin.allocate(ask(*ids))
            answer = await plugin.allocate(ask("GPU-0::1"))
    assert [one.name for one in answer.container_responses[0].cdi_devices] == ["fairlead.dev/gpu=GPU-0"]

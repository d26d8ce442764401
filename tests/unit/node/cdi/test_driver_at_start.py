"""What an image needs against the driver it would get, and the part of the driver its pod asks for, before a start."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from fairlead import errors
from fairlead import settings as configuration
from fairlead.engine.fake.engine import FakeEngine
from fairlead.engine.port import ContainerPhase, ContainerSpec, ContainerState
from fairlead.node.kubelet import runtime, spec
from fairlead.node.kubelet.devices import checkpoint, devicemanager
from fairlead.plan.pod.life import podsync
from fairlead.store import tracerecorder
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.cdi import stamp
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

_IMAGE: Final = "localhost/cuda:1"
_KIND: Final = "fairlead.dev/gpu"
_DRIVER: Final = "550.163.01"
_UID: Final = "0d3b5f4e-1111-2222-3333-444455556666"
_ABOUT: Final = core.ObjectReference(kind="Pod", namespace="default", uid=_UID)
_WHO: Final = spec.Identity(node="here", home="home-1")


class Engine(FakeEngine):
    """The fake engine, whose containers have a process in which something can be read back: this one."""

    async def create(self, wanted: ContainerSpec) -> ContainerState:
        return dataclasses.replace(await super().create(wanted), pid=os.getpid())


class World:
    """A runtime whose pods hold one GPU, over the fake engine and CDI specs on disk."""

    def __init__(self, folder: Path, engine: FakeEngine) -> None:
        self.folder, self.engine, self.store = folder, engine, MemoryStore()
        self.settings = configuration.Settings(
            state=configuration.StateSettings(folder=folder / "state", run=folder / "run"),
            node=configuration.NodeSettings(cdi_folder=folder / "cdi"),
        )
        (folder / "cdi").mkdir()
        (folder / "state").mkdir()
        self.write_spec(_KIND)
        answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=f"{_KIND}=0")]).SerializeToString()
        self.grant = checkpoint.Grant(
            pod_uid=_UID, container="main", resource=_KIND, device_ids=("g0",), response=answer
        )
        kept = checkpoint.Checkpoint(folder / "state")
        self.devices = devicemanager.DeviceManager(kept, grace_s=1, changed=lambda: None)
        self.devices.restore((self.grant,))

    def write_spec(self, kind: str, *files: str, nodes: tuple[str, ...] = ()) -> None:
        """Write a spec of one GPU."""
        mounts = tuple(
            cdi.Mount(host_path=f"/opt/driver/{name}", container_path=f"/usr/lib/{name}", options=("ro", "rbind"))
            for name in files or (f"libcuda.so.{_DRIVER}",)
        )
        shown = tuple(cdi.DeviceNode(path=path, host_path="/dev/null") for path in nodes)
        device = cdi.Device(name="0", edits=cdi.ContainerEdits(env=("GPU=0",), device_nodes=shown))
        made = cdi.Spec(cdi_version="", kind=kind, devices=(device,), edits=cdi.ContainerEdits(mounts=mounts))
        self.path = self.folder / "cdi" / emit.file_name(kind)
        self.path.write_bytes(emit.emit_json(made))
        self.engine.devices.add(f"{kind}=0")

    def stamp(self, **gpus: tuple[str, str]) -> None:
        """Say which GPUs the spec last written is of."""
        found = {f"/dev/{name}": pair for name, pair in gpus.items()}
        mark = stamp.Stamp(driver="nvidia", version=_DRIVER, cuda="12.4", gpus=found)
        stamp.beside(self.path).write_bytes(stamp.emit_stamp(mark, self.path.read_bytes()))

    def runtime(self, **node: Any) -> runtime.Runtime:
        chosen = dataclasses.replace(self.settings, node=dataclasses.replace(self.settings.node, **node))
        return runtime.Runtime(
            store=self.store,
            engine=self.engine,
            images=self.engine,
            devices=self.devices,
            claimed=lambda *_: (),
            settings=runtime.RuntimeSettings.of(chosen),
            identity=_WHO,
        )

    async def start(self, pod: core.Pod, **node: Any) -> podsync.Blocked | ContainerState | None:
        made = self.runtime(**node)
        return await made.noting(pod.metadata.uid, made.start(pod, pod.spec.containers[0], 0))


def _pod(env: dict[str, str] | None = None, *, policy: str = "Never") -> core.Pod:
    item = core.Container(
        name="main",
        image=_IMAGE,
        command=("sleep", "600"),
        env=tuple(core.EnvVar(name=name, value=value) for name, value in (env or {}).items()),
    )
    return core.Pod(
        metadata=meta.ObjectMeta(name="train", namespace="default", uid=_UID),
        spec=core.PodSpec(containers=(item,), restart_policy=policy),
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with Engine() as engine:
        yield World(tmp_path, engine)


def _needs(world: World, text: str, **more: str) -> None:
    world.engine.add_image(_IMAGE, command=("true",), env={"NVIDIA_REQUIRE_CUDA": text, **more})


async def test_an_image_whose_needs_the_driver_meets_starts(world: World) -> None:
    _needs(world, "cuda>=12.4")
    state = await world.start(_pod())
    assert isinstance(state, ContainerState)
    assert state.phase is ContainerPhase.RUNNING


async def test_an_image_whose_needs_cannot_be_met_never_runs_and_both_sides_are_named(world: World) -> None:
    _needs(world, "cuda>=12.9")
    blocked = await world.start(_pod())
    assert isinstance(blocked, podsync.Blocked)
    assert (blocked.reason, blocked.is_final) == ("DriverRequirementUnmet", True)
    assert "NVIDIA_REQUIRE_CUDA=cuda>=12.9 is not met: the image needs cuda>=12.9" in blocked.message
    assert f"driver {_DRIVER}" in blocked.message
    assert "on the host: a driver from 575.51.03 on; in the image: an image for CUDA 12.4 or older" in blocked.message
    assert await world.engine.list_containers({}) == ()
    (*_, step) = await tracerecorder.list_steps(world.store, _ABOUT)
    assert (step.reason, step.is_warning) == ("DriverRequirementUnmet", True)


async def test_a_pod_that_restarts_waits_for_another_driver(world: World) -> None:
    _needs(world, "driver>=580")
    blocked = await world.start(_pod(policy="Always"))
    assert isinstance(blocked, podsync.Blocked)
    assert not blocked.is_final
    world.write_spec(_KIND, "libcuda.so.580.65.06")
    assert isinstance(await world.start(_pod(policy="Always")), ContainerState)


@pytest.mark.parametrize("env", [{"NVIDIA_DISABLE_REQUIRE": "true"}, {"NVIDIA_REQUIRE_CUDA": "cuda>=12"}])
async def test_the_pods_own_word_comes_before_its_images(world: World, env: dict[str, str]) -> None:
    _needs(world, "cuda>=12.9")
    assert isinstance(await world.start(_pod(env)), ContainerState)


async def test_a_requirement_of_the_pod_counts_too(world: World) -> None:
    _needs(world, "cuda>=12")
    blocked = await world.start(_pod({"NVIDIA_REQUIRE_MINE": "driver<550"}))
    assert isinstance(blocked, podsync.Blocked)
    assert "NVIDIA_REQUIRE_MINE=driver<550 is not met" in blocked.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arch>=9.0", "/dev/nvidia6 has arch 8.0, brand nvidia"),
        ("brand=tesla", "/dev/nvidia6 has arch 8.0, brand nvidia"),
        ("arch>=8.0,brand=nvidia", ""),
    ],
)
async def test_the_very_gpus_of_the_container_are_held_to_it(world: World, text: str, words: str) -> None:
    _needs(world, text)
    world.write_spec(_KIND, nodes=("/dev/nvidia6", "/dev/nvidiactl"))
    world.stamp(nvidia6=("8.0", "nvidia"), nvidia0=("7.5", "nvidia"))
    found = await world.start(_pod())
    if words:
        assert isinstance(found, podsync.Blocked)
        assert words in found.message
    else:
        assert isinstance(found, ContainerState)


async def test_without_a_gpu_nobody_asks_what_an_image_needs(world: World) -> None:
    _needs(world, "cuda>=99")
    world.devices.restore(())
    assert isinstance(await world.start(_pod()), ContainerState)


async def test_a_container_found_created_after_a_crash_is_held_to_the_driver_before_it_goes(world: World) -> None:
    _needs(world, "cuda>=12.9")
    pod = _pod()
    held = await world.engine.create(ContainerSpec(name="fl-train", image=_IMAGE))
    blocked = await world.runtime().resume(pod, pod.spec.containers[0], held)
    assert isinstance(blocked, podsync.Blocked)
    assert blocked.reason == "DriverRequirementUnmet"
    assert await world.engine.list_containers({}) == ()


# the part of the driver that is asked for


def _names(*env: tuple[str, str], has_variants: bool = True, grant: str = f"{_KIND}=0") -> tuple[str, ...]:
    item = core.Container(name="main", env=tuple(core.EnvVar(name=name, value=value) for name, value in env))
    answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=grant)]).SerializeToString()
    held = checkpoint.Grant(pod_uid=_UID, container="main", resource=_KIND, device_ids=("g0",), response=answer)
    return spec.cdi_names(item, (held,), has_variants=has_variants)


@pytest.mark.parametrize(
    ("value", "classes"),
    [
        ("compute", ["compute"]),
        ("video,compute", ["compute", "video"]),
        ("", ["compute", "utility"]),
        ("all", ["compute", "compat32", "display", "graphics", "ngx", "utility", "video"]),
    ],
)
def test_capabilities_of_the_pod_become_classes_of_its_devices(value: str, classes: list[str]) -> None:
    assert _names(("NVIDIA_DRIVER_CAPABILITIES", value)) == tuple(f"{_KIND}-{part}=0" for part in classes)


def test_what_has_no_classes_stays_as_the_plugin_answered() -> None:
    asked = ("NVIDIA_DRIVER_CAPABILITIES", "video")
    assert _names(asked, has_variants=False) == (f"{_KIND}=0",)
    assert _names(asked, grant="amd.com/gpu=0") == ("amd.com/gpu=0",)
    assert _names() == (f"{_KIND}=0",)


def test_a_capability_that_is_none_is_refused() -> None:
    with pytest.raises(errors.Invalid) as caught:
        _names(("NVIDIA_DRIVER_CAPABILITIES", "teleport"))
    assert caught.value.reason == "CapabilityUnknown"


async def test_a_pod_is_shown_its_part_and_its_image_widens_nothing(world: World) -> None:
    _needs(world, "cuda>=12.4", NVIDIA_DRIVER_CAPABILITIES="all")
    world.write_spec(f"{_KIND}-video", f"libnvidia-encode.so.{_DRIVER}")
    pod = _pod({"NVIDIA_DRIVER_CAPABILITIES": "video"})
    assert isinstance(await world.start(pod, cdi_variants=True), ContainerState)
    steps = await tracerecorder.list_steps(world.store, _ABOUT)
    resolved = next(step for step in steps if step.reason == "EditsResolved")
    assert resolved.facts["mounts"] == [f"/usr/lib/libnvidia-encode.so.{_DRIVER}"]


async def test_a_class_that_is_not_on_disk_stops_the_start(world: World) -> None:
    _needs(world, "cuda>=12.4")
    blocked = await world.start(_pod({"NVIDIA_DRIVER_CAPABILITIES": "video"}), cdi_variants=True)
    assert isinstance(blocked, podsync.Blocked)
    assert f"{_KIND}-video=0" in blocked.message

"""NVIDIA's device plugin with the embedded kubelet: each of its strategies gives the GPU, or the start is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from fairlead.store import tracerecorder
from fairlead.wire.kubernetes import core
from tests.unit.node.kubelet import vendorplugin
from tests.unit.node.kubelet.test_kubelet import World, _container, _pod

_GPU: Final = "nvidia.com/gpu"
_ONE, _TWO = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab", "GPU-22222222-aaaa-bbbb-cccc-0123456789ab"
_ROOT: Final = "/var/run/nvidia-container-devices"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as one:
        for kind in ("fairlead.dev/gpu", vendorplugin.KIND):
            vendorplugin.write_spec(one.settings.node.cdi_folder, kind, _ONE, _TWO)
            one.engine.devices |= {f"{kind}={gpu}" for gpu in (_ONE, _TWO)}
        yield one


def _asking(count: int = 1) -> core.Pod:
    return _pod(_container(("true",), gpus=count, of=_GPU))


async def _given(world: World, pod: core.Pod) -> list[str]:
    """Return the CDI names that the engine was asked for, as the trace has them."""
    steps = await tracerecorder.list_steps(world.store, tracerecorder.reference(pod))
    found = [step.facts["names"] for step in steps if step.reason == "EditsResolved"]
    return [str(name) for names in found if isinstance(names, list) for name in names]


@pytest.mark.parametrize(
    ("strategies", "kind"),
    [
        (("envvar",), "fairlead.dev/gpu"),
        (("volume-mounts",), "fairlead.dev/gpu"),
        (("cdi-annotations",), vendorplugin.KIND),
        (("cdi-cri",), vendorplugin.KIND),
        (vendorplugin.STRATEGIES, vendorplugin.KIND),
    ],
)
async def test_each_strategy_gives_the_gpus(world: World, strategies: tuple[str, ...], kind: str) -> None:
    plugin = vendorplugin.VendorPlugin(_ONE, _TWO, strategies=strategies)
    async with world.kubelet(plugged=False), world.plug(plugin, _GPU):
        pod = await world.run(_asking(2))
        await world.until_phase("train", "Succeeded")
        assert await _given(world, pod) == [f"{kind}={_ONE}", f"{kind}={_TWO}"]


async def test_annotations_under_another_prefix_give_the_gpu(world: World) -> None:
    plugin = vendorplugin.VendorPlugin(_ONE, strategies=("cdi-annotations",), prefix="gpus.example.com/")
    async with world.kubelet(plugged=False), world.plug(plugin, _GPU):
        pod = await world.run(_asking())
        await world.until_phase("train", "Succeeded")
        assert await _given(world, pod) == [f"{vendorplugin.KIND}={_ONE}"]


async def test_two_resources_that_both_answer_by_the_variable_give_both_gpus(world: World) -> None:
    first, second = vendorplugin.VendorPlugin(_ONE), vendorplugin.VendorPlugin(_TWO)
    both = {_GPU: 1, "nvidia.com/gpu.shared": 1}
    item = core.Container(
        name="main",
        image="localhost/tools:1",
        command=("true",),
        resources=core.ResourceRequirements(limits=both, requests=both),
    )
    async with (
        world.kubelet(plugged=False),
        world.plug(first, _GPU),
        world.plug(second, "nvidia.com/gpu.shared"),
    ):
        pod = await world.run(_pod(item))
        await world.until_phase("train", "Succeeded")
        assert await _given(world, pod) == [f"fairlead.dev/gpu={_ONE}", f"fairlead.dev/gpu={_TWO}"]


async def test_mounts_that_are_requests_are_not_mounted(world: World) -> None:
    plugin = vendorplugin.VendorPlugin(_ONE, strategies=("volume-mounts",))
    async with world.kubelet(plugged=False), world.plug(plugin, _GPU):
        await world.run(_asking())
        await world.until_phase("train", "Succeeded")
        (name,) = [state.name for state in await world.engine.list_containers({})]
        assert world.engine._containers[name].spec.binds == ()


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
async def test_a_gpu_that_no_spec_defines_refuses_the_start_with_the_reason(world: World, strategy: str) -> None:
    plugin = vendorplugin.VendorPlugin("GPU-elsewhere", strategies=(strategy,))
    async with world.kubelet(plugged=False), world.plug(plugin, _GPU):
        await world.run(_asking())
        stuck = await world.until("train", lambda pod: "no CDI spec of this machine defines" in _waiting(pod))
        assert "GPU-elsewhere" in _waiting(stuck)
        assert await world.engine.list_containers({}) == ()


def _waiting(pod: core.Pod) -> str:
    told = [one.state.waiting.message for one in pod.status.container_statuses if one.state.waiting]
    return " ".join([*told, pod.status.message])


async def test_the_kubelet_notes_the_foreign_plugin_that_it_took_in(world: World) -> None:
    plugin = vendorplugin.VendorPlugin(_ONE, _TWO)
    async with world.kubelet(plugged=False), world.plug(plugin, _GPU):
        about = core.ObjectReference(kind="Node", name="here")
        async with asyncio.timeout(50):
            async for change in world.store.watch(core.Event):
                if change.object.involved_object.kind == "Node":
                    break
        steps = await tracerecorder.list_steps(world.store, about)
        (step,) = steps
        assert (step.reason, step.facts["resource"]) == ("DevicesAdvertised", _GPU)
        assert (step.facts["ids"], step.facts["healthy"]) == ([_ONE, _TWO], 2)
        assert str(step.facts["socket"]).endswith(".sock")

"""A GPU that a pod has under another resource's name is given to nobody else: agent and kubelet over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fairlead import errors, telemetry
from fairlead.node import agent
from fairlead.node.kubelet.devices import checkpoint, devicemanager
from fairlead.node.kubelet.devices import podresources as served
from fairlead.plan.gpu import clash
from fairlead.wire.kubernetes import core, gpudevice, meta
from tests.contract.test_agent_contract import NVIDIA, PATIENCE_S, Home, home_folder, reason  # noqa: F401 fixture

RENAMED = "fairlead.dev/gpu"


def pod(name: str, resource: str) -> core.Pod:
    asked = core.ResourceRequirements(limits={resource: "1"})
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="team"),
        spec=core.PodSpec(node_name="node-1", containers=(core.Container(name="main", resources=asked),)),
    )


class Kubelet:
    """The embedded kubelet's checkpoint over this node's pods, and what it says of them."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.pods: list[core.Pod] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            self.home.kubelet(),
            served.serve_pod_resources(self.home.devices, lambda: self.pods, self.home.settings.pod_resources),
        ):
            yield

    async def start(self, name: str, resource: str) -> core.Pod:
        """Admit a pod of one GPU. Raises: Insufficient, DeviceFault."""

        async def unrecorded(_: str, __: devicemanager.Choice) -> None:
            return

        made = await self.home.store.create(pod(name, resource))
        self.pods.append(made)
        try:
            await self.home.devices.allocate(made, unrecorded)
        except errors.FairleadError:
            self.pods.remove(made)
            raise
        running = core.PodStatus(phase="Running")
        return await self.home.store.update_status(msgspec.structs.replace(made, status=running))

    async def end(self, one: core.Pod) -> None:
        self.pods = [item for item in self.pods if item.metadata.uid != one.metadata.uid]
        await self.home.devices.free(one.metadata.uid)
        await self.home.store.update_status(msgspec.structs.replace(one, status=core.PodStatus(phase="Succeeded")))

    async def until(self, resource: str, capacity: int, allocatable: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.home.devices.capacity().get(resource) != (capacity, allocatable):
                await self.home.changes.wait(self.home.changes.version)

    def ids(self, one: core.Pod) -> list[str]:
        return [device for grant in self.home.devices.held(one.metadata.uid) for device in grant.device_ids]


def renamed(home: Home) -> None:
    home.settings = dataclasses.replace(home.settings, node=dataclasses.replace(home.settings.node, resource=RENAMED))


class Figures:
    """A meter that keeps the newest value of each row."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def set(self, metric: telemetry.Metric, value: float, *labels: str) -> None:
        self.values[metric.name, *labels] = value

    def add(self, metric: telemetry.Metric, *labels: str) -> None:
        return

    def observe(self, metric: telemetry.Metric, seconds: float, *labels: str) -> None:
        return

    def heartbeat(self, loop: str, within_s: float | None) -> None:
        return


async def test_after_a_rename_a_second_pod_never_gets_the_gpu_of_a_running_one(home_folder: Path) -> None:  # noqa: F811
    home = Home(home_folder, 2)
    kubelet, figures = Kubelet(home), Figures()
    await home.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1")))
    async with kubelet.running():
        async with home.agent():
            await kubelet.until(NVIDIA, 2, 2)
            keep = await kubelet.start("keep", NVIDIA)
        renamed(home)
        async with home.agent(meter=figures) as report:
            await kubelet.until(RENAMED, 2, 1)
            (lost,) = kubelet.ids(keep)
            (ad,) = report.supply.value.resources
            assert {device.id: device.reason for device in ad.devices if not device.is_healthy} == {lost: clash.REASON}
            assert figures.values["fairlead_devices_unhealthy", RENAMED, clash.REASON] == 1
            told = await home.until_step(reason(clash.REASON))
            assert told.is_warning
            assert f"{lost} is not offered: team/keep (container main) has it as {NVIDIA}" in told.message
            index = int(lost.removeprefix("GPU-"))
            await home.until_devices({index: gpudevice.UNHEALTHY, 1 - index: gpudevice.HEALTHY})

            second = await kubelet.start("second", RENAMED)
            assert set(kubelet.ids(second)) == {"GPU-0", "GPU-1"} - {lost}
            with pytest.raises(errors.Insufficient):
                await kubelet.start("third", RENAMED)

            await kubelet.end(keep)
            await kubelet.until(RENAMED, 2, 2)
            await home.until_step(reason(f"{clash.REASON}Ended"))
            assert figures.values["fairlead_devices_unhealthy", RENAMED, clash.REASON] == 0
            assert kubelet.ids(await kubelet.start("fourth", RENAMED)) == [lost]


async def test_nothing_is_given_away_before_the_kubelet_has_said_who_holds_what(
    home_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent, "KUBELET_PATIENCE_S", 0.05)
    home = Home(home_folder, 2)
    home.has_list = False
    home.settings.pod_resources.parent.mkdir(parents=True)
    home.settings.pod_resources.touch()  # a kubelet was here, and may come back with pods that run
    async with home.kubelet(), home.agent() as report:
        await home.until_capacity(2, 0)
        assert {device.reason for device in report.supply.value.resources[0].devices} == {clash.UNKNOWN}
        async with served.serve_pod_resources(home.devices, lambda: [], home.settings.pod_resources):
            await home.until_capacity(2, 2)


async def test_a_kubelet_that_is_only_starting_takes_back_nothing_that_was_offered(
    home_folder: Path,  # noqa: F811
) -> None:
    home = Home(home_folder, 2)
    home.has_list = False
    async with home.kubelet(), home.agent() as report:
        await home.until_capacity(2, 2)
        assert "there is no socket" in report.holders_problem()
        home.settings.pod_resources.parent.mkdir(parents=True)
        home.settings.pod_resources.touch()  # bound, and nobody answers yet
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await home.until_capacity(2, 0)
        assert "has not said yet" in report.holders_problem()
        async with served.serve_pod_resources(home.devices, lambda: [], home.settings.pod_resources):
            async with asyncio.timeout(PATIENCE_S):
                while report.holders_problem():  # noqa: ASYNC110 (nobody tells)
                    await asyncio.sleep(0.02)
        assert home.devices.capacity()[NVIDIA] == (2, 2)


async def test_a_plugin_beside_ours_takes_its_gpus_from_our_offer(home_folder: Path) -> None:  # noqa: F811
    home = Home(home_folder, 3)
    kubelet = Kubelet(home)
    other = msgspec.structs.replace(
        pod("theirs", "nvidia.com/gpu.shared"),
        metadata=meta.ObjectMeta(name="theirs", namespace="team", uid="u-theirs"),
    )
    grant = checkpoint.Grant(
        pod_uid="u-theirs", container="main", resource="nvidia.com/gpu.shared", device_ids=("GPU-2::1",), response=b""
    )
    async with kubelet.running(), home.agent():
        await kubelet.until(NVIDIA, 3, 3)
        home.devices.restore((grant,))
        kubelet.pods.append(other)
        await home.store.create(other)  # what has every agent look: a pod of this node that asks for devices
        await kubelet.until(NVIDIA, 3, 2)
        taken = [*kubelet.ids(await kubelet.start("a", NVIDIA)), *kubelet.ids(await kubelet.start("b", NVIDIA))]
        assert sorted(taken) == ["GPU-0", "GPU-1"]


async def test_a_kubelet_that_starts_anew_and_lists_nobody_yet_frees_nothing(home_folder: Path) -> None:  # noqa: F811
    home = Home(home_folder, 2)
    kubelet = Kubelet(home)
    async with kubelet.running():
        async with home.agent():
            await kubelet.until(NVIDIA, 2, 2)
            keep = await kubelet.start("keep", NVIDIA)
        renamed(home)
        async with home.agent():
            await kubelet.until(RENAMED, 2, 1)
            before, kubelet.pods = kubelet.pods, []
            await home.store.create(pod("another", RENAMED))  # has the agent read the list that names nobody
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await kubelet.until(RENAMED, 2, 2)
            assert home.devices.capacity()[RENAMED] == (2, 1)
            kubelet.pods = before
            await kubelet.end(keep)
            await kubelet.until(RENAMED, 2, 2)

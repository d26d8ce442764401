"""The node's MIG configuration over simulated silicon: states, what is in use, and a crash at every step."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.model.ids import DeviceID
from fairlead.model.mig import Partition
from fairlead.node.inventory import latest
from fairlead.node.mig import configurator, drain
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.mig import wanted
from fairlead.silicon.sim import silicon as simulation
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta

FILE = """
version: v1
mig-configs:
  small: [{devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2, 3g.20gb: 1}}]
  large: [{devices: [0], mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  whole: [{devices: [0], mig-enabled: true, mig-devices: {7g.40gb: 1}}]
  "off": [{devices: all, mig-enabled: false}]
"""
POINTS = (
    "mig.after-pending",
    "mig.before-destroy-compute",
    "mig.before-destroy-instance",
    "mig.before-set-mode",
    "mig.before-reset",
    "mig.before-create-instance",
    "mig.before-create-compute",
    "mig.after-change",
)
DYING = """
import asyncio, sys
from pathlib import Path
from fairlead import telemetry
from tests.contract import test_mig_configurator as here

async def main(folder, name, point):
    telemetry.arm_crash_point(point)
    async with here.running(Path(folder), name) as node:
        await node.reached("success", "failed")

asyncio.run(main(*sys.argv[1:]))
"""


class Node:
    """One run of the configurator."""

    def __init__(self, folder: Path, name: str) -> None:
        try:
            self.silicon = simulation.SimulatedSilicon(folder / "sim", "a100x8")
        except errors.Unavailable as error:
            pytest.skip(errors.sentence(error))
        (folder / "mig.yaml").write_text(FILE)
        self.labels: latest.Latest[Mapping[str, str] | None] = latest.Latest({configurator.LABEL: name})
        self.state: latest.Latest[str] = latest.Latest("")
        self.told: list[tuple[str, str, str]] = []
        self.held: frozenset[str] = frozenset()
        self.blocked_at_asking: list[frozenset[str]] = []
        self.partitioner = self.silicon.partitioner()
        self.configurator = configurator.Configurator(
            self.partitioner,
            file=folder / "mig.yaml",
            default="",
            labels=self.labels,
            in_use=self._in_use,
            state=self.state,
            told=lambda *said: self.told.append(said),
            patience_s=0.05,
        )

    async def _in_use(self) -> frozenset[str]:
        self.blocked_at_asking.append(self.configurator.blocked.value)
        return self.held

    def choose(self, name: str) -> None:
        self.labels.set({configurator.LABEL: name})

    async def reached(self, *states: str, after: int = 0) -> str:
        """Return the first of these states that was told after so many."""
        async with asyncio.timeout(30):
            async for _ in self.state.changes():
                found = next((state for _, state, _ in self.told[after:] if state in states), "")
                if found:
                    return found
        raise AssertionError(states)

    async def look(self, index: int = 0) -> Partition:
        return (await self.partitioner.list_partitions())[index]


@contextlib.asynccontextmanager
async def running(folder: Path, name: str) -> AsyncIterator[Node]:
    node = Node(folder, name)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(node.configurator.run())
            yield node
            task.cancel()
    finally:
        await node.silicon.close()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running(tmp_path, "small") as found:
        yield found


async def test_a_chosen_configuration_comes_into_force(node: Node) -> None:
    assert await node.reached("success", "failed") == "success"
    assert [state for _, state, _ in node.told] == ["pending", "success"]
    assert wanted.present(await node.look()) == {"1g.5gb": 2, "3g.20gb": 1}
    assert not (await node.look(1)).is_enabled
    assert node.configurator.blocked.value == frozenset()


async def test_another_choice_keeps_what_both_have(node: Node) -> None:
    await node.reached("success")
    before = await node.look()
    kept = next(one.computes[0].uuid for one in before.instances if one.profile == "3g.20gb")
    node.choose("large")
    assert await node.reached("success", "failed", after=2) == "success"
    after = {compute.uuid for one in (await node.look()).instances for compute in one.computes}
    assert kept in after
    doomed = {str(one.computes[0].uuid) for one in before.instances if one.profile == "1g.5gb"}
    assert node.blocked_at_asking[-1] == doomed


async def test_what_is_in_use_is_spared_and_the_change_done_once_it_is_free(node: Node) -> None:
    await node.reached("success")
    before = await node.look()
    node.held = frozenset(str(compute.uuid) for one in before.instances for compute in one.computes)
    node.choose("whole")
    assert await node.reached("success", "failed", after=2) == "failed"
    assert (await node.look()).instances == before.instances
    assert "in use" in node.told[-1][2]
    node.held = frozenset()
    node.configurator.poke()
    assert await node.reached("success", after=3) == "success"


async def test_a_second_choice_that_fails_is_told_too_and_once(node: Node) -> None:
    await node.reached("success")
    for name in ("nonsense", "rubbish"):
        node.choose(name)
        async with asyncio.timeout(30):
            while node.told[-1][0] != name:  # noqa: ASYNC110 (nobody tells: the state is the same)
                await asyncio.sleep(0.01)
    assert [(name, state) for name, state, _ in node.told[2:]] == [("nonsense", "failed"), ("rubbish", "failed")]
    assert "rubbish" in node.told[-1][2]


async def test_an_unknown_configuration_fails_and_the_next_choice_is_taken(node: Node) -> None:
    await node.reached("success")
    node.choose("nonsense")
    assert await node.reached("failed", after=2) == "failed"
    node.choose("off")
    assert await node.reached("success", after=3) == "success"
    assert not (await node.look()).is_enabled


async def test_no_choice_has_no_state(node: Node) -> None:
    await node.reached("success")
    node.choose("")
    async with asyncio.timeout(10):
        async for state in node.state.changes():
            if not state:
                break
    assert (await node.look()).is_enabled


async def test_a_driver_that_breaks_ends_as_failed_never_as_pending(node: Node) -> None:
    await node.reached("success")
    node.silicon.inject("lost", gpu=0, value=None)
    node.choose("large")
    assert await node.reached("failed", after=2) == "failed"
    node.silicon.inject("recover", gpu=0, value=None)
    node.configurator.poke()
    assert await node.reached("success", after=3) == "success"


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_step_is_made_good_by_the_next_run(tmp_path: Path, point: str) -> None:
    first = "whole" if "destroy" in point else ""
    if first:
        async with running(tmp_path, first) as node:
            await node.reached("success")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", DYING, str(tmp_path), "small", point], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    async with running(tmp_path, "small") as node:
        assert await node.reached("success", "failed") == "success"
        assert wanted.present(await node.look()) == {"1g.5gb": 2, "3g.20gb": 1}


class Pods:
    """A kubelet's list and the eviction API over it: each pod holds devices until it is evicted."""

    def __init__(self, held: dict[str, str], *, budget: frozenset[str] = frozenset()) -> None:
        self.held, self.budget = held, budget
        self.evicted: list[tuple[str, str]] = []

    async def ask(self) -> tuple[Holding, ...]:
        return tuple(
            Holding(resource="nvidia.com/mig", ids=(DeviceID(device),), namespace="default", pod=pod, container="main")
            for pod, device in self.held.items()
        )

    async def in_use(self) -> frozenset[str]:
        return frozenset(self.held.values())

    async def bind(self, pod: core.Pod, node: str) -> None:
        raise NotImplementedError

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        if pod.metadata.name in self.budget:
            raise errors.Denied("the budget keeps it", reason="DisruptionBudget")
        self.evicted.append((pod.metadata.name, reason))
        del self.held[pod.metadata.name]


@contextlib.asynccontextmanager
async def draining(
    folder: Path, choice: str, pods: Pods, *, within_s: float = 5, label: str = ""
) -> AsyncIterator[Node]:
    """Run the configurator with pods that hold devices. Args: label: value of the Node's label about drains."""
    node, store = Node(folder, "small"), memory.MemoryStore()
    node.configurator.drain = drain.Drain(choice, store, pods, labels=node.labels, ask=pods.ask, within_s=within_s)
    node.configurator._in_use = pods.in_use
    node.labels.set({configurator.LABEL: "small", drain.LABEL: label})
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(node.configurator.run())
            assert await node.reached("success", "failed") == "success"
            for name in ("a", "b"):
                await store.create(core.Pod(metadata=meta.ObjectMeta(name=name, namespace="default")))
            small = [one.computes[0].uuid for one in (await node.look()).instances if one.profile == "1g.5gb"]
            large = next(one.computes[0].uuid for one in (await node.look()).instances if one.profile == "3g.20gb")
            pods.held.update({"a": str(small[0]), "b": str(large)})
            yield node
            task.cancel()
    finally:
        await node.silicon.close()


async def test_a_node_that_may_be_drained_ends_the_pods_in_the_way_and_no_other(tmp_path: Path) -> None:
    pods = Pods({})
    async with draining(tmp_path, drain.ALWAYS, pods) as node:
        node.choose("large")
        assert await node.reached("success", "failed", after=2) == "success"
        assert pods.evicted == [("a", drain.REASON)]
        assert set(pods.held) == {"b"}
        assert wanted.present(await node.look()) == {"3g.20gb": 2}


async def test_without_the_label_nothing_is_drained_and_the_label_is_enough(tmp_path: Path) -> None:
    pods = Pods({})
    async with draining(tmp_path, drain.BY_LABEL, pods, label="false") as node:
        node.choose("whole")
        assert await node.reached("success", "failed", after=2) == "failed"
        assert not pods.evicted
        node.labels.set({configurator.LABEL: "whole", drain.LABEL: "true"})
        assert await node.reached("success", after=3) == "success"
        assert sorted(pods.evicted) == [("a", drain.REASON), ("b", drain.REASON)]


async def test_a_disruption_budget_keeps_a_pod_and_the_round_says_which(tmp_path: Path) -> None:
    pods = Pods({}, budget=frozenset({"b"}))
    async with draining(tmp_path, drain.ALWAYS, pods, within_s=0.2) as node:
        before = await node.look()
        node.choose("whole")
        assert await node.reached("success", "failed", after=2) == "failed"
        assert "default/b" in node.told[-1][2]
        assert "the budget keeps it" in node.told[-1][2]
        assert (await node.look()).instances == before.instances
        assert node.configurator.blocked.value == frozenset()
        pods.budget = frozenset()
        node.configurator.poke()
        assert await node.reached("success", after=4) == "success"

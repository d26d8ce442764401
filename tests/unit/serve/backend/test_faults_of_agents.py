"""Faults of a cluster's simulated silicon: run in the container of that node's agent, or refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.serve.backend import faults
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, gpudevice, meta


@dataclass
class Session:
    """A program that says something and ends."""

    output: list[bytes]
    code: int
    is_closed: bool = False

    async def read(self) -> bytes:
        return self.output.pop(0) if self.output else b""

    async def write(self, data: bytes) -> None:
        raise AssertionError(data)

    async def resize(self, rows: int, columns: int) -> None:
        raise AssertionError(rows, columns)

    async def wait(self) -> int:
        return self.code

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class Streams:
    """A `subresource.Streams` that remembers what was run where."""

    session: Session = field(default_factory=lambda: Session([b"gpu 3: ", b"xid 79\n"], 0))
    ran: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    async def exec(self, pod: core.Pod, container: str, argv: tuple[str, ...], **_: Any) -> Session:
        self.ran.append((pod.metadata.name, container, argv))
        return self.session

    async def attach(self, pod: core.Pod, container: str, *, stdin: bool, replay: bool = False) -> Any:
        raise AssertionError(pod, container, stdin)

    async def port_forward(self, pod: core.Pod, port: int) -> Any:
        raise AssertionError(pod, port)


class World:
    """A cluster, and who breaks its silicon."""

    def __init__(self) -> None:
        self.store, self.streams = MemoryStore(), Streams()
        self.faults = faults.AgentFaults(store=self.store, streams=self.streams)

    async def add_node(self, name: str, *, simulated: bool = True, has_agent: bool = True) -> None:
        spec = gpudevice.GPUDeviceSpec(
            node_name=name,
            index=0,
            minor=0,
            uuid=f"GPU-{name}",
            vendor="nvidia",
            product="X",
            memory="1",
            simulated=simulated,
        )
        await self.store.create(gpudevice.GPUDevice(metadata=meta.ObjectMeta(name=f"{name}.gpu"), spec=spec))
        for label in ("agent", "scheduler") if has_agent else ("scheduler",):
            labels = {**faults.AGENT, "app.kubernetes.io/component": label}
            about = meta.ObjectMeta(name=f"{label}-{name}", namespace="fairlead", labels=labels)
            made = await self.store.create(core.Pod(metadata=about, spec=core.PodSpec(node_name=name)))
            running = core.ContainerStateUnion(running=core.ContainerStateRunning())
            status = core.PodStatus(container_statuses=(core.ContainerStatus(name="agent", state=running),))
            await self.store.update_status(msgspec.structs.replace(made, status=status))


@pytest.fixture
def world() -> World:
    return World()


async def test_a_fault_is_a_program_in_the_agents_container_of_that_node(world: World) -> None:
    await world.add_node("a")
    await world.add_node("b")
    said = await world.faults.inject("xid", gpu=3, value="79", node="b")
    assert said == "b: gpu 3: xid 79"
    argv = ("fairlead", "simulate", "fault", "--gpu", "3", "--", "xid", "79")
    assert world.streams.ran == [("agent-b", "agent", argv)]
    assert world.streams.session.is_closed


async def test_an_only_node_need_not_be_named_and_words_are_never_options(world: World) -> None:
    await world.add_node("a")
    await world.faults.inject("--url", gpu=None, value="--node=b", node=None)
    (_, _, argv) = world.streams.ran[0]
    assert argv == ("fairlead", "simulate", "fault", "--", "--url", "--node=b")


@pytest.mark.parametrize(
    ("node", "kind", "says"),
    [
        (None, errors.Invalid, "3 nodes have GPUs (simulated: a, lone)"),
        ("c", errors.NotFound, 'no GPUs are published of node "c" (simulated: a, lone)'),
        ("real", errors.Conflict, "the silicon of node real is real"),
        ("lone", errors.Unavailable, "no agent runs in a pod of node lone"),
    ],
)
async def test_what_cannot_be_broken_is_refused_before_anything_runs(
    world: World, node: str | None, kind: type[errors.FairleadError], says: str
) -> None:
    await world.add_node("a")
    await world.add_node("real", simulated=False)
    await world.add_node("lone", has_agent=False)
    with pytest.raises(kind) as refused:
        await world.faults.inject("xid", gpu=0, value=None, node=node)
    assert says in refused.value.message
    assert refused.value.hint
    assert world.streams.ran == []


async def test_what_the_agent_refuses_is_told_in_its_words(world: World) -> None:
    await world.add_node("a")
    world.streams.session = Session([b'fairlead: no fault "fire" (offered: xid)\n'], 2)
    with pytest.raises(errors.Invalid, match=r'agent of node a did not do it: fairlead: no fault "fire"'):
        await world.faults.inject("fire", gpu=0, value=None, node="a")
    assert world.streams.session.is_closed

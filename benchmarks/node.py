"""The node agent as a kubelet meets it: another process, real sockets, simulated silicon (8 x H100).

This process plays the kubelet: it serves Registration, follows ListAndWatch and calls the plugin. Times are taken on
this side, so they contain a client. The peer's were taken with a Go client, as a kubelet is one; ours calls by grpc's
blocking stubs in a thread, the cheapest client that Python has (grpc.aio costs some 0.15 ms more a call, of this
process alone). "Empty call" shows what client, transport and server come to.

Whether bytecode is cached decides about start and memory (compiling `pynvml` alone costs 17 MB that the allocator
keeps), and a checkout, an environment or a read-only image may or may not have it. So the agent runs with a bytecode
folder of its own: the first start finds it empty (cold), all later ones find it filled (warm), and both are shown.
Memory is the worst moment of a process, not its last: use makes the allocator give back what an idle agent keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks import frame
from fairlead import errors
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.proto import deviceplugin_pb2 as pb

CALLS = 1000
STARTS = 5
PROFILE = "h100x8"
PATIENCE_S = 20.0
PROGRAM_S = 8.0
"""After which an agent has scanned, written its specs and served its metrics."""
_WHOLE_AGENT = "resident memory of `fairlead agent` itself, beside the programs that it replaces"
_PROGRAMS = "NVIDIA's plugin, feature discovery, MPS control daemon and dcgm-exporter together"


@dataclass(slots=True)
class Kubelet:
    """Registration server and list follower; remembers when what arrived."""

    folder: Path
    tasks: asyncio.TaskGroup
    registered_at: list[float] = field(default_factory=list)
    unhealthy_at: dict[str, float] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    endpoint: Path | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([wire.registration_handlers(self)])
        server.add_insecure_port(wire.target(self.folder / wire.KUBELET_SOCKET))
        await server.start()
        try:
            yield
        finally:
            await server.stop(0)

    async def register(self, request: pb.RegisterRequest) -> pb.Empty:
        at = time.monotonic()
        self.endpoint = self.folder / request.endpoint
        self.tasks.create_task(self._follow(self.endpoint))
        async with self.changed:
            self.registered_at.append(at)
            self.changed.notify_all()
        return pb.Empty()

    async def _follow(self, endpoint: Path) -> None:
        channel = grpc.aio.insecure_channel(wire.target(endpoint), options=wire.CHANNEL_OPTIONS)
        async with channel:
            with contextlib.suppress(errors.Unavailable):  # the plugin stopped
                async for answer in wire.DevicePluginStub(channel).list_and_watch():
                    await self._keep(answer)

    async def _keep(self, answer: pb.ListAndWatchResponse) -> None:
        at = time.monotonic()
        async with self.changed:
            self.devices = [device.ID for device in answer.devices]
            for device in answer.devices:
                if device.health == wire.UNHEALTHY:
                    self.unhealthy_at.setdefault(device.ID, at)
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(condition)


@dataclass(slots=True)
class Agent:
    """The agent's process and its two pipes."""

    process: asyncio.subprocess.Process
    spawned_at: float

    async def read(self, event: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            facts: dict[str, Any] = json.loads(line)
            if facts["event"] == event:
                return facts
        raise AssertionError(f"the agent ended without {event}")

    async def ask(self, line: str, event: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        return await self.read(event)


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Agent]:
    spawned_at = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        "env",
        "-u",
        "PYTHONDONTWRITEBYTECODE",
        f"PYTHONPYCACHEPREFIX={folder / 'bytecode'}",
        sys.executable,
        "-m",
        "benchmarks.agent_process",
        str(folder),
        PROFILE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Agent(process, spawned_at)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@dataclass(slots=True)
class Figures:
    """All samples of one session, in seconds and bytes."""

    from_spawn: list[float] = field(default_factory=list)
    """The first is cold, as are the first of the next two."""
    from_imports: list[float] = field(default_factory=list)
    idle_bytes: list[int] = field(default_factory=list)
    used_bytes: int = 0
    again: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    """A call that does nothing, made between the Allocates: what client, transport and machine cost by themselves."""
    prefer: list[float] = field(default_factory=list)
    fault: list[float] = field(default_factory=list)


async def measure() -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        folder = Path(name)
        plugins = folder / "run" / "device-plugins"
        plugins.mkdir(parents=True)
        async with asyncio.TaskGroup() as tasks:
            kubelet = Kubelet(plugins, tasks)
            for start in range(STARTS):
                async with kubelet.serve(), running(folder) as agent:
                    await _starts(figures, kubelet, agent, start + 1)
                    if start == STARTS - 1:
                        await _calls(figures, kubelet)
                        await _faults(figures, kubelet, agent)
                        figures.used_bytes = (await agent.ask("memory", "memory"))["bytes"]
            await _restarts(figures, kubelet, folder)
    return figures


async def measure_program(profile: str) -> int:
    """Return the resident bytes of `fairlead agent` itself, warm, some seconds after its start.

    The process above has no command line, no metrics and no settings to read, and so is smaller.
    Args: profile: of simulated GPUs; empty: a machine without any.
    """
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        folder = Path(name)
        simulated = ("--silicon-simulate", profile) if profile else ()
        process = await asyncio.create_subprocess_exec(
            "env",
            f"FAIRLEAD_STATE_FOLDER={folder / 'state'}",
            f"FAIRLEAD_STATE_RUN={folder / 'run'}",
            f"FAIRLEAD_NODE_CDI_FOLDER={folder / 'cdi'}",
            "FAIRLEAD_NODE_ENGINE=containerd://2.2.1",
            "FAIRLEAD_NODE_METRICS=127.0.0.1:0",
            sys.executable,
            "-m",
            "fairlead.cli.main",
            "agent",
            *simulated,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.sleep(PROGRAM_S)
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.terminate()
            await process.wait()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def _starts(figures: Figures, kubelet: Kubelet, agent: Agent, count: int) -> None:
    imported = await agent.read("imported")
    await kubelet.until(lambda: len(kubelet.registered_at) == count and len(kubelet.devices) == 8)
    figures.from_spawn.append(kubelet.registered_at[-1] - agent.spawned_at)
    figures.from_imports.append(kubelet.registered_at[-1] - imported["at"])
    figures.idle_bytes.append((await agent.ask("memory", "memory"))["bytes"])


async def _calls(figures: Figures, kubelet: Kubelet) -> None:
    assert kubelet.endpoint is not None
    await asyncio.to_thread(_call, figures, kubelet.endpoint, kubelet.devices)


_CALLED = ("Allocate", "GetDevicePluginOptions", "GetPreferredAllocation")


def _method(channel: grpc.Channel, name: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/{wire.DEVICE_PLUGIN}/{name}")


def _call(figures: Figures, endpoint: Path, ids: list[str]) -> None:
    """Call the plugin as a kubelet does: encode, call, decode."""
    with grpc.insecure_channel(wire.target(endpoint), options=wire.CHANNEL_OPTIONS) as channel:
        allocate, options, prefer = (_method(channel, name) for name in _CALLED)
        for number in range(CALLS + 50):
            wanted = [ids[number % 8], ids[(number + 1) % 8]]
            ask = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=wanted)])
            started = time.perf_counter()
            pb.AllocateResponse.FromString(allocate(ask.SerializeToString()))
            figures.allocate.append(time.perf_counter() - started)
            started = time.perf_counter()
            pb.DevicePluginOptions.FromString(options(b""))
            figures.empty.append(time.perf_counter() - started)
        for number in range(CALLS + 50):
            need = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=number % 8 + 1)
            request = pb.PreferredAllocationRequest(container_requests=[need])
            started = time.perf_counter()
            pb.PreferredAllocationResponse.FromString(prefer(request.SerializeToString()))
            figures.prefer.append(time.perf_counter() - started)
    del figures.allocate[:50], figures.empty[:50], figures.prefer[:50]  # connection and first imports


async def _faults(figures: Figures, kubelet: Kubelet, agent: Agent) -> None:
    for gpu, device in enumerate(kubelet.devices):
        injected = await agent.ask(f"inject xid {gpu} 79", "injected")
        await kubelet.until(lambda device=device: device in kubelet.unhealthy_at)  # type: ignore[misc]
        figures.fault.append(kubelet.unhealthy_at[device] - injected["at"])


async def _restarts(figures: Figures, kubelet: Kubelet, folder: Path) -> None:
    """Make kubelet.sock anew under a running agent."""
    before = len(kubelet.registered_at)
    async with running(folder):
        for turn in range(STARTS + 1):
            async with kubelet.serve():
                served_at = time.monotonic()
                await kubelet.until(lambda turn=turn: len(kubelet.registered_at) > before + turn)  # type: ignore[misc]
                if turn > 0:
                    figures.again.append(kubelet.registered_at[-1] - served_at)


def ms(samples: list[float], share: float = 0.5) -> float:
    return frame.percentile(samples, share) * 1e3


@frame.benchmark("node")
def node_rows() -> Iterator[frame.Row]:
    figures = asyncio.run(measure())
    peer = {"peer_name": frame.NVIDIA_PLUGIN, "peer_source": frame.REFERENCE}
    with_gpus, without = (asyncio.run(measure_program(profile)) / 1e6 for profile in (PROFILE, ""))
    cold_mb, *warm_mb = (size / 1e6 for size in figures.idle_bytes)
    rows: list[tuple[str, float, str, float | None, float | None]] = [
        ("Allocate p50", ms(figures.allocate), "ms", 0.28, 0.6),
        ("Allocate p99", ms(figures.allocate, 0.99), "ms", 0.6, 1.5),
        ("empty call between the Allocates p50", ms(figures.empty), "ms", None, None),
        ("empty call between the Allocates p99", ms(figures.empty, 0.99), "ms", None, None),
        ("GetPreferredAllocation 1..8 of 8 p50", ms(figures.prefer), "ms", 3.5, None),
        ("GetPreferredAllocation 1..8 of 8 p99", ms(figures.prefer, 0.99), "ms", None, 5.0),
        ("fault to Unhealthy at the kubelet, slowest of 8", max(figures.fault) * 1e3, "ms", None, 50.0),
        ("agent start to registered, imports done, warm", ms(figures.from_imports[1:]), "ms", None, 150.0),
        ("agent start to registered, imports done, cold", figures.from_imports[0] * 1e3, "ms", None, None),
        ("agent process start to registered, warm", ms(figures.from_spawn[1:]), "ms", 20.0, None),
        ("agent process start to registered, cold", figures.from_spawn[0] * 1e3, "ms", 66.0, None),
        ("kubelet.sock made anew to registered again", ms(figures.again), "ms", 10.0, None),
        ("resident memory, warm, idle or used: the worst", max(*warm_mb, figures.used_bytes / 1e6), "MB", 33.0, 60.0),
        (_WHOLE_AGENT, with_gpus, "MB", 33.0 + 37.0 + 20.0 + 142.0, None),
        ("resident memory of `fairlead agent` itself, warm, simulated GPUs: the worst", with_gpus, "MB", 33.0, 60.0),
        ("resident memory of `fairlead agent` itself, warm, no GPUs: the worst", without, "MB", None, 60.0),
        ("resident memory, warm, after use", figures.used_bytes / 1e6, "MB", 33.0, None),
        ("resident memory, cold (no bytecode cached), idle", cold_mb, "MB", 28.7, 60.0),
    ]
    for name, ours, unit, theirs, bar in rows:
        named = {**peer, "peer_name": _PROGRAMS} if name == _WHOLE_AGENT else peer
        yield frame.Row(name=name, ours=ours, unit=unit, peer=theirs, bar=bar, **named)

"""What keeping figures costs: 8 GPUs and 50 containers sampled every ten seconds, as the service does it.

Pods are real objects in the shipped store, counters those of simulated GPUs, and each container's figures are read from
the cgroup and the interfaces of a process on this machine. An hour's ticks are made one after the other.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks import frame
from fairlead.engine.access import Usage
from fairlead.engine.podman.access import usage
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.plan.history import figure, tier
from fairlead.serve.history.file import FILE, HistoryFile
from fairlead.serve.history.recorder import Machine, Recorder
from fairlead.settings import SiliconSettings
from fairlead.silicon import machine
from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core, meta, names

CONTAINERS = 50
TICKS = 360
NODE = "bench"
BEGIN = 1_700_000_400.0


class _Engine:
    """Containers, all of them this process."""

    def __init__(self, states: tuple[ContainerState, ...]) -> None:
        self.states = states

    async def list_containers(self, labels: object) -> tuple[ContainerState, ...]:
        assert labels
        return self.states

    def read_counters(self, state: ContainerState) -> Usage | None:
        assert state.pid is not None
        return usage.read(state.pid)


def _pod(number: int, gpu: str) -> core.Pod:
    given = (
        core.ResourceStatus(name="nvidia.com/gpu", resources=(core.ResourceHealth(resource_id=gpu),)) if gpu else None
    )
    running = core.ContainerStateUnion(running=core.ContainerStateRunning(started_at=meta.now()))
    status = core.ContainerStatus(
        name="main",
        state=running,
        container_id=f"podman://c{number}",
        allocated_resources_status=(given,) if given else (),
    )
    return core.Pod(
        metadata=meta.ObjectMeta(name=f"c{number}", namespace="default"),
        spec=core.PodSpec(node_name=NODE, containers=(core.Container(name="main", image="x"),)),
        status=core.PodStatus(phase="Running", container_statuses=(status,)),
    )


async def _measure(folder: Path) -> tuple[float, float, float, float, int]:
    silicon = machine.open_silicon(SiliconSettings(simulate="h100x8"), folder / "silicon")
    inventory = await silicon.scan()
    with SQLiteStore(folder / "state.db") as store:
        states = []
        for number in range(CONTAINERS):
            gpu = inventory.gpus[number].uuid if number < len(inventory.gpus) else ""
            wanted = _pod(number, gpu)
            pod = await store.create(wanted)
            await store.update_status(msgspec.structs.replace(pod, status=wanted.status))
            labels = {names.POD_UID: pod.metadata.uid}
            states.append(
                ContainerState(
                    engine="podman",
                    id=f"c{number}",
                    name=f"c{number}",
                    phase=ContainerPhase.RUNNING,
                    labels=labels,
                    image="x",
                    pid=os.getpid(),
                )
            )
        at, steady = BEGIN, 0.0
        file = HistoryFile(folder / FILE, days=14, most_bytes=128 << 20)
        made = Recorder(
            Machine(store=store, node=NODE, engine=_Engine(tuple(states)), scan=lambda: inventory, sampler=silicon),
            file,
            now=lambda: at,
            clock=lambda: steady,
        )
        await made.tick()
        written, used, began = _written(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(TICKS):
            at, steady = at + 10, steady + 10
            await made.tick()
            assert not made.problem, made.problem
        cpu, disk = time.process_time() - used, _written() - written
        window = tier.choose(at - 3600, at, None, now=at, days=14)
        started = time.perf_counter()
        for _ in range(20):
            assert len(file.read(figure.CONTAINER, pod.metadata.uid, window)) >= TICKS
        read = (time.perf_counter() - started) / 20
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began
        file.forget(at)
        size = file.size.bytes
        file.close()
    await silicon.close()
    return cpu / TICKS, disk / TICKS * 6, read, float(grown), size


def _written() -> int:
    """Return the bytes that this process had written to disk. Source: proc(5), /proc/PID/io, write_bytes."""
    text = Path("/proc/self/io").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("write_bytes")))


@frame.benchmark("history")
def history_rows() -> Iterator[frame.Row]:
    """Keep figures of 8 GPUs and 50 containers for an hour."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir="/var/tmp") as name:
        cpu, disk, read, grown, size = asyncio.run(_measure(Path(name)))
    yield frame.Row(name="one sample of 8 GPUs and 50 containers, processor", ours=cpu * 1000, unit="ms", bar=100.0)
    yield frame.Row(name="share of one processor", ours=cpu * 10, unit="%", bar=1.0)
    yield frame.Row(name="written to disk a minute", ours=disk / 1024, unit="KiB", bar=1024.0)
    yield frame.Row(name="memory that grew in an hour", ours=grown / 1024, unit="MiB", bar=16.0)
    yield frame.Row(name="an hour of one figure read", ours=read * 1000, unit="ms", bar=20.0)
    yield frame.Row(name="file after an hour", ours=size / (1 << 20), unit="MiB", bar=8.0)

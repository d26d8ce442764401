"""Rows of the live scheduler on a real control plane: beside the real kube-scheduler, and alone on 10,000 nodes.

Side by side: 1,000 nodes of 8 GPUs and 3,000 pods of 1 to 8 GPUs, 7,125 of 8,000 in all; both schedulers in turn on one
API server, twice, medians. The wall clock counts every process of the machine, the control plane's most of all, so the
processor time that each scheduler itself takes for a pod stands beside it.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmarks import plane
from benchmarks.frame import Row, Unmeasured, benchmark
from tools.cluster import build, home

_ROUNDS = 2
_SETTLE_S = 4.0
"""A scheduler that has just started lists nodes and pods first."""


@benchmark("scheduler-cluster")
def scheduler_cluster() -> Iterable[Row | Unmeasured]:
    if why := plane.missing():
        yield Unmeasured(name="scheduler: beside kube-scheduler on one control plane", why=why)
        return
    ours, theirs = asyncio.run(_side_by_side(nodes=1000, pods=3000))
    source = "the same API server, nodes and pods"
    peer: dict[str, Any] = {"peer_name": f"kube-scheduler {_version()}", "peer_source": source}
    rates = _median(ours, lambda one: one.per_s), _median(theirs, lambda one: one.per_s)
    yield Row(name=_name("pods bound"), ours=rates[0], unit="1/s", bar=2 * rates[1], peer=rates[1], **peer)
    pending = _median(ours, lambda one: one.pending), _median(theirs, lambda one: one.pending)
    yield Row(name=_name("pods left pending"), ours=pending[0], unit="pods", bar=pending[1], peer=pending[1], **peer)
    spent = tuple(_median(rounds, lambda one: 1000 * one.processor_s / one.bound) for rounds in (ours, theirs))
    yield Row(name=_name("processor time of a pod"), ours=spent[0], unit="ms", peer=spent[1], **peer)
    memory = tuple(_median(rounds, lambda one: one.memory_mib) for rounds in (ours, theirs))
    yield Row(name=_name("most memory"), ours=memory[0], unit="MiB", peer=memory[1], **peer)
    yield _kept(ours)


@benchmark("scheduler-large")
def scheduler_large() -> Iterable[Row | Unmeasured]:
    if why := plane.missing():
        yield Unmeasured(name="scheduler: 10,000 nodes, 30,000 pods on a control plane", why=why)
        return
    (found,) = asyncio.run(_alone(nodes=10_000, pods=30_000))
    size = "10,000 nodes, 30,000 pods"
    yield Row(name=_name("pods bound", size), ours=found.per_s, unit="1/s")
    yield Row(name=_name("pods left pending", size), ours=found.pending, unit="pods", bar=0)
    yield Row(name=_name("processor time of a pod", size), ours=1000 * found.processor_s / found.bound, unit="ms")
    yield Row(name=_name("most memory", size), ours=found.memory_mib, unit="MiB", bar=2048)
    yield _kept([found], size)


def _name(what: str, size: str = "1,000 nodes, 3,000 pods") -> str:
    return f"scheduler: {what}, {size}"


def _kept(rounds: Sequence[plane.Round], size: str = "1,000 nodes, 3,000 pods") -> Row:
    most = max(one.overcommitted for one in rounds)
    return Row(name=_name("nodes with more GPUs bound than they have", size), ours=most, unit="", bar=0)


def _median(rounds: Sequence[plane.Round], of: Callable[[plane.Round], float]) -> float:
    return statistics.median(of(one) for one in rounds)


def _version() -> str:
    return next(build.version_of(one) for one in build.modules(build.DEFAULT_VERSION) if "kubernetes" in one.name)


async def _side_by_side(*, nodes: int, pods: int) -> tuple[list[plane.Round], list[plane.Round]]:
    ours, theirs = list[plane.Round](), list[plane.Round]()
    async with plane.opened(plane.Plane) as one:
        await one.prepare(nodes)
        for _ in range(_ROUNDS):
            theirs.append(await _round(one, plane.kube_scheduler, pods, "default-scheduler"))
            await one.clear()
            ours.append(await _round(one, plane.fairlead_scheduler, pods, "fairlead"))
            await one.clear()
    return ours, theirs


async def _alone(*, nodes: int, pods: int) -> list[plane.Round]:
    async with plane.opened(plane.Plane) as one:
        await one.prepare(nodes)
        # Nothing is cleared: an API server ends a deletion of 30,000 pods after its 60 s, and the row was lost with it.
        return [await _round(one, plane.fairlead_scheduler, pods, "fairlead")]


async def _round(
    one: plane.Plane, scheduler: Callable[[home.Cluster], AbstractContextManager[int]], pods: int, name: str
) -> plane.Round:
    with scheduler(one.cluster) as pid:
        await asyncio.sleep(_SETTLE_S)
        return await one.round(pods, name, pid)

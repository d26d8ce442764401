"""Prepare and Unprepare of claims on a simulated node: ledger, hardware, CDI file and answer, flushes included.

The node is the one of the tests (`tests/unit/node/dra/claimnode.py`): real ledger and files on the disk of the
temporary folder, simulated GPUs. What the simulated driver itself takes for a MIG device is measured beside it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import frame
from fairlead import telemetry
from fairlead.model.mig import Slot
from tests.unit.node.dra.claimnode import ClaimNode, claim, result

ROUNDS = 200
MIG_ROUNDS = 20
GPUS = 8


async def _whole(node: ClaimNode) -> tuple[list[float], list[float]]:
    prepared, unprepared = list[float](), list[float]()
    for number in range(ROUNDS):
        made = claim(f"c{number}", result(f"gpu-{number % GPUS}"))
        began = time.perf_counter()
        await node.prepare(made)
        prepared.append(time.perf_counter() - began)
        began = time.perf_counter()
        await node.unprepare(made)
        unprepared.append(time.perf_counter() - began)
        while number % GPUS == GPUS - 1 and not _are_free(node):
            node.gate.poke()
            await asyncio.sleep(0.002)
    return prepared, unprepared


async def _together(node: ClaimNode) -> list[float]:
    samples = list[float]()
    for number in range(ROUNDS // GPUS):
        made = [claim(f"t{number}-{gpu}", result(f"gpu-{gpu}")) for gpu in range(GPUS)]
        began = time.perf_counter()
        await asyncio.gather(*map(node.prepare, made))
        samples.append(time.perf_counter() - began)
        await asyncio.gather(*map(node.unprepare, made))
        while not _are_free(node):
            node.gate.poke()
            await asyncio.sleep(0.002)
    return samples


async def _partition(node: ClaimNode) -> tuple[list[float], list[float]]:
    """Return the seconds of Prepare, and of the simulated driver's calls and the scan alone."""
    ours, driver = list[float](), list[float]()
    gpu = (await node.partition(0)).gpu
    await node.partitioner.set_mode(gpu, is_enabled=True)
    slot = Slot(profile="1g.10gb", start=0)
    for number in range(MIG_ROUNDS):
        made = claim(f"m{number}", result("gpu-0-mig-1g10gb-19-0"))
        began = time.perf_counter()
        await node.prepare(made)
        ours.append(time.perf_counter() - began)
        await node.unprepare(made)
        began = time.perf_counter()
        instance = await node.partitioner.create_instance(gpu, slot)
        await node.partitioner.create_compute(gpu, instance, 1)
        await node.silicon.scan()
        driver.append(time.perf_counter() - began)
        await node.partitioner.destroy_compute(gpu, instance, 0)
        await node.partitioner.destroy_instance(gpu, instance)
        while not _are_free(node):
            node.gate.poke()
            await asyncio.sleep(0.002)
    return ours, driver


def _are_free(node: ClaimNode) -> bool:
    return all(node.row(index).state.value == "Free" for index in range(GPUS))


async def _measure(folder: Path) -> list[frame.Row]:
    node = ClaimNode(folder)
    try:
        async with node.running():
            while not _are_free(node):
                node.gate.poke()
                await asyncio.sleep(0.01)
            one, end = await _whole(node)
            eight = await _together(node)
            mig, driver = await _partition(node)
    finally:
        await node.close()
    single = frame.percentile(one, 0.5)
    return [
        frame.Row(name="Prepare, whole GPU, p50", ours=single * 1e3, unit="ms"),
        frame.Row(name="Prepare, whole GPU, p99", ours=frame.percentile(one, 0.99) * 1e3, unit="ms", bar=15.0),
        frame.Row(name="Unprepare, whole GPU, p99", ours=frame.percentile(end, 0.99) * 1e3, unit="ms", bar=15.0),
        frame.Row(
            name="Prepare of 8 claims at once, over one",
            ours=frame.percentile(eight, 0.5) / single,
            unit="x",
            bar=2.0,
        ),
        frame.Row(
            name="Prepare, MIG device, beyond the simulated driver, p50",
            ours=(frame.percentile(mig, 0.5) - frame.percentile(driver, 0.5)) * 1e3,
            unit="ms",
            bar=20.0,
        ),
    ]


@frame.benchmark("dra-prepare")
def dra_prepare_rows() -> Iterator[frame.Row]:
    """Prepare and unprepare claims, one by one and eight at once."""
    telemetry.configure("error", "json")
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir="/var/tmp") as name:
        yield from asyncio.run(_measure(Path(name)))

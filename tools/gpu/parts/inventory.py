"""Holds what Fairlead says of GPUs against nvidia-smi, and records what NVML answered."""

from __future__ import annotations

import asyncio
import ctypes
import json
from pathlib import Path
from typing import Any

from fairlead import errors
from fairlead.model.gpu import Inventory
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.sim import host
from tools.gpu import context as contexts
from tools.gpu import facts, recording, smi
from tools.gpu.outcome import Log


def run(context: contexts.Context, log: Log) -> None:
    """Compare the inventory, the readings, the links and the driver's files."""
    asyncio.run(_run(context, log))
    _record(context, log)


async def _run(context: contexts.Context, log: Log) -> None:
    silicon = context.open_silicon()
    try:
        with log.timed("first scan"):
            inventory = await silicon.scan()
        with log.timed("second scan"):
            await silicon.scan()
        for gone in inventory.unreadable:
            log.fail(f"gpu {gone.index}", f"did not answer: {gone.reason}, {gone.message}")
        for files in await silicon.scan_driver():
            for problem in files.problems:
                log.fail("driver's files", problem)
            log.note("driver's files", f"{len(files.files)} files, {len(files.nodes)} nodes, version {files.version}")
            log.fact("files", sorted(item.host_path for item in files.files))
            log.fact("nodes", [f"{node.path} {node.major}:{node.minor}" for node in files.nodes])
        _compare_nodes(context, inventory, log)
        answer = _ask(context, log)
        samples = await silicon.sample(within_s=10)
        if answer is not None:
            facts.compare(inventory, answer, log)
            facts.compare_readings(samples, inventory, answer, log)
        await _listen(silicon, log)
    finally:
        await silicon.close()


def _ask(context: contexts.Context, log: Log) -> smi.Answer | None:
    if not context.smi and context.simulate:
        log.skip("nvidia-smi", "the simulation has none for this; a stand-in can be named by --smi FILE")
        return None
    if not context.smi:
        log.fail("nvidia-smi", "it was not found on PATH nor in the usual folders: name it by --smi FILE")
        return None
    done = contexts.run((context.smi, "-q", "-x"), timeout_s=25)
    try:
        answer = smi.parse(done.stdout)
    except ValueError as error:
        log.fail("nvidia-smi", f"{error}: {done.stderr.strip() or done.stdout[:200]}")
        return None
    log.fact("nvidia-smi -q -x", done.stdout)
    links = contexts.run((context.smi, "topo", "-m"), timeout_s=15)
    log.fact("nvidia-smi topo -m", links.stdout)
    return answer


def _compare_nodes(context: contexts.Context, inventory: Inventory, log: Log) -> None:
    """Every GPU's nodes exist, and no node of a GPU is there that no GPU names."""
    folder = context.root / "dev"
    here = {f"/dev/{path.name}" for path in folder.glob("nvidia[0-9]*")}
    named = {node for gpu in inventory.gpus for node in gpu.device_nodes if node.startswith("/dev/nvidia")}
    log.compare("device nodes", sorted(named), sorted(here))


async def _listen(silicon: Any, log: Log) -> None:
    """The driver takes the registration of events; none is provoked."""
    events = silicon.watch_events()
    try:
        async with asyncio.timeout(10):
            first = await anext(events)
        log.judge("events", True, f"registered: {first.kind.value} came first, as it should")
    except (TimeoutError, errors.FairleadError) as error:
        log.fail("events", f"not registered within 10 s: {error or 'no answer'}")


def _record(context: contexts.Context, log: Log) -> None:
    """Scan once more by a library that remembers, for the simulation to be held to."""
    library, root = _library(context)
    if library is None:
        log.skip("record", "no libnvidia-ml.so.1 could be loaded to be recorded")
        return
    recorder = recording.RecordingNVML(library)

    async def scan() -> None:
        silicon = nvml.NVMLSilicon(root, Path("/"), call_timeout_s=20, library=recorder)
        try:
            found = await silicon.scan()
            await silicon.sample(within_s=10)
            await silicon.partitioner().list_partitions()
            for gpu in found.gpus:
                await silicon.inspector().inspect(gpu.uuid)
        finally:
            await silicon.close()

    try:
        asyncio.run(scan())
    except errors.FairleadError as error:
        log.fail("record", f"a scan that is recorded failed: {errors.sentence(error)}")
    path = context.folder / "nvml.json"
    path.write_text(json.dumps(recorder.document()))
    log.note("record", f"{len(recorder.calls)} calls of NVML, in nvml.json beside this report")


def _library(context: contexts.Context) -> tuple[Any, Path]:
    if context.simulate:
        made = host.SimulatedHost(context.folder / "state/silicon", context.simulate)
        return made.library, made.tree.path
    chosen = context.silicon_settings
    found = driver.find_nvml(Path("/"), Path("/"), driver.search_of(chosen))
    try:
        return ctypes.CDLL(str(found or "libnvidia-ml.so.1")), Path("/")
    except OSError:
        return None, Path("/")

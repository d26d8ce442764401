"""What is remembered of a GPU's health over a restart: what only a reset ends, for this boot, until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.model.gpu import EventKind, GPUEvent, GPUHealth, Inventory
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import healthmemory, monitor
from fairlead.plan.gpu.snapshot import Snapshot
from tests.unit.node.inventory.test_inventory import (
    DRIVER,
    NO_DRIVER,
    PATIENCE_S,
    POLICY,
    TWO,
    ScriptedSilicon,
    gpu,
    until,
)

_XID = GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-1"), xid=79)


@contextlib.asynccontextmanager
async def _agent(
    silicon: ScriptedSilicon, folder: Path, boot_id: str = "b1"
) -> AsyncIterator[monitor.InventoryMonitor]:
    memory = healthmemory.HealthMemory(folder, boot_id=boot_id)
    watch = monitor.InventoryMonitor(silicon, rescan_s=60.0, policy=POLICY, memory=memory)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch.run())
        try:
            yield watch
        finally:
            task.cancel()


def _is_faulty(snapshot: Snapshot) -> bool:
    verdict = snapshot.verdicts.get(GPUUUID("GPU-1"))
    return verdict is not None and not verdict.is_healthy


async def _until_written(folder: Path, *, gpus: int) -> None:
    path = folder / healthmemory.FILE

    def wait() -> None:
        while not path.exists() or len(json.loads(path.read_text())["gpus"]) != gpus:
            time.sleep(0.01)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(wait)


async def _fail(folder: Path) -> None:
    silicon = ScriptedSilicon(TWO)
    async with _agent(silicon, folder) as watch:
        await until(watch, lambda snapshot: snapshot.is_scanned)
        silicon.events.put_nowait(_XID)
        await until(watch, _is_faulty)
        await _until_written(folder, gpus=1)


async def test_a_fault_that_only_a_reset_ends_stands_after_a_restart(tmp_path: Path) -> None:
    await _fail(tmp_path)
    for _ in range(2):
        async with _agent(ScriptedSilicon(TWO), tmp_path) as watch:
            found = await until(watch, lambda snapshot: snapshot.is_scanned)
            verdict = found.verdicts[GPUUUID("GPU-1")]
            assert (verdict.is_healthy, verdict.reason) == (False, "XID79")
            assert verdict.message.count("seen before a restart") == 1
            assert str(tmp_path / healthmemory.FILE) in verdict.message
            assert found.verdicts[GPUUUID("GPU-0")].is_healthy


async def test_it_stands_though_the_driver_answers_late(tmp_path: Path) -> None:
    await _fail(tmp_path)
    silicon = ScriptedSilicon(NO_DRIVER)
    async with _agent(silicon, tmp_path) as watch:
        await until(watch, lambda snapshot: bool(snapshot.problem))
        silicon.answer = TWO
        watch.ask_scan()
        assert _is_faulty(await until(watch, lambda snapshot: bool(snapshot.inventory.gpus)))


async def test_a_driver_that_asks_for_nothing_ends_it_and_it_is_forgotten(tmp_path: Path) -> None:
    await _fail(tmp_path)
    well = dataclasses.replace(gpu(1), health=GPUHealth(recovery_action=0))
    silicon = ScriptedSilicon(Inventory(gpus=(gpu(0), well), drivers=(DRIVER,)))
    async with _agent(silicon, tmp_path) as watch:
        await _until_written(tmp_path, gpus=0)
        assert watch.snapshots.value.is_scanned


async def test_a_reboot_ends_it(tmp_path: Path) -> None:
    await _fail(tmp_path)
    async with _agent(ScriptedSilicon(TWO), tmp_path, boot_id="b2") as watch:
        assert not _is_faulty(await until(watch, lambda snapshot: snapshot.is_scanned))


@pytest.mark.parametrize("text", ["", "{", '{"bootId": 1}', '{"bootId": "b1", "gpus": {"x": {}}}', "\xff"])
async def test_a_damaged_file_is_set_aside_and_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / healthmemory.FILE).write_bytes(text.encode("latin-1"))
    async with _agent(ScriptedSilicon(TWO), tmp_path) as watch:
        assert not _is_faulty(await until(watch, lambda snapshot: snapshot.is_scanned))
    assert [path.name for path in tmp_path.iterdir()] != [healthmemory.FILE]


async def test_without_faults_no_file_is_made(tmp_path: Path) -> None:
    async with _agent(ScriptedSilicon(TWO), tmp_path / "agent") as watch:
        await until(watch, lambda snapshot: snapshot.is_scanned)
    assert not (tmp_path / "agent").exists()

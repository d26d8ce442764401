"""The page of one machine shows its GPUs' figures, the service's gauges, and what is held for what is gone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fairlead import settings, telemetry
from fairlead.cli.process.listen import machinepage
from fairlead.engine.fake import engine
from fairlead.node import leftovers
from fairlead.store.embedded import memory


async def _gpus() -> bytes:
    return b"DCGM_FI_DEV_GPU_UTIL 3\n"


async def test_gauges_of_the_service_stand_beside_its_gpus(tmp_path: Path) -> None:
    plain = settings.Settings()
    config = dataclasses.replace(plain, state=dataclasses.replace(plain.state, folder=tmp_path, run=tmp_path / "run"))
    (tmp_path / "pods/gone").mkdir(parents=True)
    page = machinepage.MachinePage(config, engine.FakeEngine(), memory.MemoryStore())
    page.meter.set(telemetry.CONNECTIONS, 2, "tls")
    page.meter.set(telemetry.UNDER_WAY, 1)
    lines = (await page.expose(_gpus)).decode().splitlines()
    assert {
        "DCGM_FI_DEV_GPU_UTIL 3",
        'fairlead_connections{door="tls"} 2.0',
        "fairlead_requests_under_way 1.0",
        'fairlead_leftovers{kind="folder"} 1.0',
    } <= {*lines}
    for kind in leftovers.KINDS:
        assert any(line.startswith(f'fairlead_leftovers{{kind="{kind}"}} ') for line in lines)
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


async def test_what_is_left_is_looked_for_once_in_a_while(tmp_path: Path) -> None:
    plain = settings.Settings()
    config = dataclasses.replace(plain, state=dataclasses.replace(plain.state, folder=tmp_path, run=tmp_path / "run"))
    page = machinepage.MachinePage(config, engine.FakeEngine(), memory.MemoryStore())
    await page.expose(_gpus)
    (tmp_path / "pods/gone").mkdir(parents=True)
    assert 'fairlead_leftovers{kind="folder"} 0.0' in (await page.expose(_gpus)).decode()

"""The exporter over simulated silicon: who holds what, how often it samples, what a fault costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.model.sample import Sample
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest
from fairlead.node.metrics import exporter
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.metrics import chosen
from fairlead.silicon.sim.silicon import SimulatedSilicon


class Counting:
    """A sampler that counts how often it is asked."""

    def __init__(self, silicon: SimulatedSilicon) -> None:
        self.silicon, self.asked = silicon, 0

    async def sample(self, *, within_s: float) -> tuple[Sample, ...]:
        self.asked += 1
        return await self.silicon.sample(within_s=within_s)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.silicon = SimulatedSilicon(folder / "sim", "h100x8", call_timeout_s=30.0)
        self.sampler = Counting(self.silicon)
        self.now = 100.0
        self.snapshots: latest.Latest[Snapshot] = latest.Latest(Snapshot())
        self.holdings = podresources.Holdings(folder / "kubelet.sock")
        self.xids = exporter.XIDCounts()
        self.exporter = exporter.Exporter(
            "n1",
            self.sampler,
            snapshots=self.snapshots,
            holdings=self.holdings,
            xids=self.xids,
            clock=lambda: self.now,
        )

    async def scan(self) -> tuple[GPUUUID, ...]:
        inventory = await self.silicon.scan()
        known = {gpu.uuid: gpu for gpu in inventory.gpus}
        self.snapshots.set(Snapshot(inventory=inventory, known=known, is_scanned=True))
        return tuple(known)

    async def page(self) -> list[str]:
        self.now += exporter.FRESH_S
        return (await self.exporter.expose()).decode().splitlines()


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    one = Bench(tmp_path)
    yield one
    await one.silicon.close()


def held(pod: str, uuid: str) -> Holding:
    return Holding(namespace="default", pod=pod, container="main", resource="nvidia.com/gpu", ids=(DeviceID(uuid),))


async def test_a_pod_s_series_end_with_the_pod(bench: Bench) -> None:
    uuids = await bench.scan()
    bench.holdings.latest.set((held("train", uuids[2]),))
    assert [line for line in await bench.page() if 'pod="train"' in line and "GPU_UTIL" in line]
    bench.holdings.latest.set(())
    page = await bench.page()
    assert not [line for line in page if "pod=" in line]
    assert len([line for line in page if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]) == 8


async def test_ten_readers_at_once_cost_one_sample(bench: Bench) -> None:
    await bench.scan()
    first = await bench.exporter.expose()
    for _ in range(9):
        assert await bench.exporter.expose() == first
    assert bench.sampler.asked == 1


async def test_before_the_first_scan_the_page_is_empty_of_gpus(bench: Bench) -> None:
    assert not [line for line in await bench.page() if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]


async def test_a_lost_gpu_keeps_the_others_on_the_page(bench: Bench) -> None:
    await bench.scan()
    bench.silicon.inject("lost", gpu=3, value=None)
    page = await bench.page()
    assert len([line for line in page if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]) == 7
    await bench.scan()
    assert [line for line in await bench.page() if line.startswith("fairlead_gpu_health") and 'reason="Lost"' in line]


async def test_a_list_of_counters_says_what_of_dcgms_is_shown_and_how(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(
        "# ours\nDCGM_FI_DEV_POWER_USAGE, gauge, watts\nDCGM_FI_DEV_GPU_TEMP , counter, heat\n"
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, not in NVML\nDCGM_FI_DRIVER_VERSION, label, driver\n"
    )
    listed = exporter.read_counters(file)
    assert [one.field for one in chosen.find_unknown(listed or ())] == ["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"]
    bench.exporter._counters = listed
    await bench.scan()
    page = await bench.page()
    assert [line for line in page if line.startswith("# ")] == [
        "# HELP DCGM_FI_DEV_POWER_USAGE watts",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
        "# HELP DCGM_FI_DEV_GPU_TEMP heat",
        "# TYPE DCGM_FI_DEV_GPU_TEMP counter",
        "# HELP fairlead_gpu_health 1 where the GPU is offered, 0 where it is not, with the reason",
        "# TYPE fairlead_gpu_health gauge",
    ]
    for text, reason in (("gpu_temp, gauge, x\n", "CountersInvalid"), (None, "CountersUnreadable")):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(errors.FairleadError) as caught:
            exporter.read_counters(file)
        assert caught.value.reason == reason


def event(code: int) -> GPUEvent:
    return GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-1"), xid=code)


def test_a_storm_of_codes_stays_bounded() -> None:
    counts = exporter.XIDCounts()
    for code in range(100_000):
        counts.note(event(code))
    kept = counts.by_gpu[GPUUUID("GPU-1")]
    assert (len(kept), next(reversed(kept))) == (64, 99_999)


def test_the_newest_code_stands_last() -> None:
    counts = exporter.XIDCounts()
    for code in (48, 79, 48):
        counts.note(event(code))
    assert list(counts.by_gpu[GPUUUID("GPU-1")].items()) == [(79, 1), (48, 2)]

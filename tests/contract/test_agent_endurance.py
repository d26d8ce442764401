"""The agent over long times: thirty thousand allocations, a hundred kubelets; memory, files and tasks stay level."""

# ruff: noqa: F811  (fixtures of another file)

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.contract.test_agent_contract import NVIDIA, Home, home_folder  # noqa: F401 fixture
from tests.contract.test_live_config import plugin_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]

ALLOCATIONS = 30_000
WARM_UP = 5_000
KUBELETS = 100


def resident_bytes() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_memory_is_level_over_thirty_thousand_allocations(home_folder: Path) -> None:
    home = Home(home_folder, 8)
    async with home.kubelet(), home.agent():
        await home.until_capacity(8, 8)
        asked = [
            pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[f"GPU-{index}"])])
            for index in range(8)
        ]
        async with plugin_of(home, NVIDIA) as stub:
            seen: dict[int, int] = {}
            for number in range(ALLOCATIONS):
                answer = await stub.allocate(asked[number % 8])
                assert len(answer.container_responses) == 1
                if number in {WARM_UP, ALLOCATIONS - 1}:
                    await asyncio.sleep(1)  # what follows from the last call is on its way
                    seen[number] = resident_bytes()
        first, last = seen.values()
        assert last - first < 2 << 20, f"{(last - first) / 1024:.0f} KiB more after {ALLOCATIONS - WARM_UP} calls"


async def test_a_hundred_kubelets_in_turn_each_find_the_plugin_and_nothing_is_left_of_them(home_folder: Path) -> None:
    home = Home(home_folder, 2)
    async with home.agent():
        found: list[tuple[int, int]] = []
        for _ in range(KUBELETS):
            async with home.kubelet():
                await home.until_capacity(2, 2)
            await home.until_capacity(2, 0)
            found.append((open_files(), len(asyncio.all_tasks())))
        settled = found[5:]
        assert max(files for files, _ in settled) - min(files for files, _ in settled) <= 4
        assert max(tasks for _, tasks in settled) - min(tasks for _, tasks in settled) <= 6

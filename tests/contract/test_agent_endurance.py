"""The agent over long times: seven thousand allocations, a hundred kubelets; memory, files and tasks stay level."""

# ruff: noqa: F811  (fixtures of another file)

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

import pytest

from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.contract.test_agent_contract import NVIDIA, Home, home_folder  # noqa: F401 fixture
from tests.contract.test_live_config import plugin_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]

ALLOCATIONS = 7_000
WARM_UP = 3_000
MORE_OBJECTS = 1_000
"""Python's own blocks that are noise: one that every fourth call leaves is more."""
MORE_BYTES = 4 << 20
"""What C's allocator may still spread: 1 KiB that each call leaves is as much."""
KUBELETS = 100


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def forget_leases(home: Home) -> None:
    """Delete what the store keeps of each possession for months: each call is one."""
    while found := (await home.store.list(GPULease)).items:  # the store keeps what it listed last: in the end nothing
        for lease in found:
            await home.store.delete(GPULease, lease.metadata.name)


async def test_memory_is_level_over_seven_thousand_allocations(home_folder: Path) -> None:
    home = Home(home_folder, 8)
    home.store = MemoryStore(history_kept=64)  # the API server's memory, which is another process's
    async with home.kubelet(), home.agent():
        await home.until_capacity(8, 8)
        asked = [
            pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[f"GPU-{index}"])])
            for index in range(8)
        ]
        async with plugin_of(home, NVIDIA) as stub:
            seen: list[tuple[int, int]] = []
            for number in range(ALLOCATIONS):
                answer = await stub.allocate(asked[number % 8])
                assert len(answer.container_responses) == 1
                if number % 500 == 0:
                    await forget_leases(home)
                if number in {WARM_UP, ALLOCATIONS - 1}:
                    await asyncio.sleep(1)  # what follows from the last call is on its way
                    await forget_leases(home)
                    gc.collect()
                    seen.append((sys.getallocatedblocks(), resident_bytes()))
        (objects, resident), (objects_then, resident_then) = seen
        assert objects_then - objects < MORE_OBJECTS
        assert resident_then - resident < MORE_BYTES


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

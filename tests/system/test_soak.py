"""Many containers, one after another and at once: nothing is left over, and the service has not grown.

The loops that kill (`test_kill_loop.py`, `test_churn.py`) see what is left over too, but begin service and kubelet
again every few seconds. Memory or descriptors that grow with each container are seen here alone, where both live on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]

COUNT, AT_ONCE = 500, 8


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def one(client: httpx.AsyncClient, number: int, image: str) -> None:
    name = f"soak-{number}"
    body = {"name": name, "image": image, "command": ["true"], "gpus": 1}
    answer = await client.post("/v1/containers", json=body)
    assert answer.status_code < 300, answer.text
    ended = await client.get(f"/v1/containers/{name}/wait", params={"timeout": 120})
    assert ended.json()["state"] == "succeeded", ended.text
    gone = await client.delete(f"/v1/containers/{name}")
    assert gone.status_code < 300, gone.text


async def many(socket: Path, first: int, count: int, image: str) -> None:
    limit = asyncio.Semaphore(AT_ONCE)
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://fairlead", timeout=180) as client:

        async def guarded(number: int) -> None:
            async with limit:
                await one(client, number, image)

        async with asyncio.TaskGroup() as tasks:
            for number in range(first, first + count):
                tasks.create_task(guarded(number))


def left_over(home: Home) -> str:
    """Everything that tells why a container is still there."""
    rows = [{key: row[key] for key in ("Names", "State", "Status", "Labels", "Pid")} for row in home.containers()]
    pods = home.ok("ps", "-a", "-o", "json").data
    commands = [
        path.read_bytes().replace(b"\0", b" ").decode()
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"podman" in path.read_bytes()
    ]
    return f"\npodman: {rows}\npods: {pods}\nprocesses: {commands}"


@pytest.mark.timeout(900)
def test_five_hundred_containers_leave_nothing(home: Home) -> None:
    home.up(FAIRLEAD_LOG_LEVEL="warning")
    socket = home.folder / "run" / "api.sock"
    assert home.process is not None
    asyncio.run(many(socket, 0, 50, home.image))
    pids = (home.process.pid, home.kubelet_pid())
    before = [(resident_kib(pid), open_files(pid)) for pid in pids]
    asyncio.run(many(socket, 50, COUNT - 50, home.image))
    home.until(lambda: home.containers() == [], what="podman has none of them", detail=lambda: left_over(home))
    assert home.free_gpus() == 8
    assert home.ok("ps", "-a", "-o", "json").data == []
    assert (home.process.pid, home.kubelet_pid()) == pids
    after = [(resident_kib(pid), open_files(pid)) for pid in pids]
    for (memory, files), (memory_after, files_after) in zip(before, after, strict=True):
        assert memory_after < memory + 30_000, (before, after)
        assert files_after <= files + 8, (before, after)
    assert not list((home.state / "pods").glob("*"))

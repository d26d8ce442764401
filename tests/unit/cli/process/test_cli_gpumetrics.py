"""Where the GPUs' metrics are served, and what happens where another program has the address."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import httpx
import pytest

from fairlead import errors
from fairlead.cli.process import gpumetrics
from fairlead.serve import probes


@pytest.mark.parametrize(
    ("configured", "is_local", "expected"),
    [
        ("", True, "127.0.0.1:9400"),
        ("", False, ":9400"),
        ("none", True, ""),
        ("10.0.0.1:9500", True, "10.0.0.1:9500"),
    ],
)
def test_where_metrics_are_served(configured: str, is_local: bool, expected: str) -> None:
    assert gpumetrics.address(configured, is_local=is_local) == expected


async def _page() -> bytes:
    return b"up 1\n"


async def test_metrics_appear_when_another_program_leaves_the_address() -> None:
    app = probes.create_app(lambda: "", lambda: "", _page)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            task = tasks.create_task(gpumetrics.serve(f"127.0.0.1:{port}", app, again_s=0.05))
            await asyncio.sleep(0.2)
            assert not task.done()
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await _when_it_answers(client, f"http://127.0.0.1:{port}/metrics")
        assert (answer.status_code, answer.text) == (200, "up 1\n")
        task.cancel()


async def _when_it_answers(client: httpx.AsyncClient, url: str) -> httpx.Response:
    while True:
        with contextlib.suppress(httpx.TransportError):
            return await client.get(url)
        await asyncio.sleep(0.05)


async def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(errors.Invalid):
        await gpumetrics.serve("nowhere", probes.create_app(lambda: "", lambda: "", _page))

"""The console's figures over time: what a container's page, a GPU's and the overview show of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.serve.console import app as console
from tests.unit.serve.history.kept import Kept
from tests.unit.serve.world import World, application, in_process


@pytest.fixture
def kept(world: World, tmp_path: Path) -> Kept:
    made = Kept(world, tmp_path)
    made.at -= 1200  # what is sampled is in the past of the pages' clock
    made.history._now = lambda: made.at + 60
    world.backend = replace(world.backend, history=made.history)
    world.services = replace(world.services, backend=world.backend)
    return made


async def opened(world: World) -> httpx.AsyncClient:
    made: Any = console.create_app(application(world.services), has_login=False)
    headers = {"origin": "http://localhost", "accept": "text/html"}
    return httpx.AsyncClient(transport=in_process(made), base_url="http://localhost", headers=headers)


@pytest.fixture
async def browser(kept: Kept, world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with await opened(world) as client:
        yield client


async def start(client: httpx.AsyncClient) -> None:
    body = {"image": "demo", "name": "train", "gpus": 2, "args": ["sleep", "60"]}
    assert (await client.post("/v1/containers", json=body)).status_code == 201
    await client.get("/v1/containers/train/wait", params={"state": "started"})


async def test_a_gpus_page_draws_its_figures_and_says_them(kept: Kept, browser: httpx.AsyncClient) -> None:
    kept.load(90, 10, 0, 0)
    await kept.tick(6)
    text = (await browser.get("/console/gpus/GPU-0")).text
    assert '<polyline points="' in text
    assert '<title id="pt-gpu-load">GPU load</title>' in text
    assert "mean 90 %, peak 90 %" in text
    assert 'aria-current="true">Last hour' in text
    assert (await browser.get("/console/gpus/GPU-9")).status_code == 404


async def test_the_overview_has_small_charts_and_what_was_held_and_used(kept: Kept, browser: httpx.AsyncClient) -> None:
    await start(browser)
    kept.load(80, 40, 0, 0)
    await kept.tick(6)
    text = (await browser.get("/console/")).text
    assert "load in the last hour: mean 80 %, peak 80 %" in text
    assert "held <b>50 %</b>, used <b>30 %</b>" in text


async def test_a_containers_page_has_a_tab_with_its_ranges(kept: Kept, browser: httpx.AsyncClient) -> None:
    await start(browser)
    text = (await browser.get("/console/containers/default/train")).text
    assert text.index('href="#output"') < text.index('href="#metrics"') < text.index('href="#terminal-tab"')
    assert "Nothing was measured in this period" in text
    for word in ("1h", "1d", "life", "<script>"):
        answer = await browser.get("/console/containers/default/train", params={"range": word})
        assert answer.status_code == 200


async def test_where_none_are_kept_the_page_says_the_next_step(world: World) -> None:
    async with await opened(world) as client:
        await start(client)
        text = (await client.get("/console/containers/default/train")).text
        assert "no figures over time are kept here" in text
        assert "history.days" in text
        assert (await client.get("/console/")).status_code == 200

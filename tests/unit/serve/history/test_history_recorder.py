"""What a recorder samples, and how it bears clocks, restarts and what does not answer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from fairlead import errors
from fairlead.model.sample import Sample
from fairlead.plan.history import figure, tier
from tests.unit.serve.history.kept import Kept
from tests.unit.serve.world import World


@pytest.fixture
def kept(world: World, tmp_path: Path) -> Kept:
    return Kept(world, tmp_path)


async def start(api: httpx.AsyncClient, name: str, gpus: int) -> None:
    body = {"image": "demo", "name": name, "gpus": gpus, "args": ["sleep", "60"]}
    assert (await api.post("/v1/containers", json=body)).status_code == 201
    await api.get(f"/v1/containers/{name}/wait", params={"state": "started"})


async def test_gpus_and_containers_are_sampled(kept: Kept, world: World, api: httpx.AsyncClient) -> None:
    await start(api, "train", 2)
    kept.load(90, 80, 0, None)
    begin = int(kept.at)
    await kept.tick(3)
    asked = tier.Window(begin=begin, step_s=10, count=3, tier=0)
    loads = [figure.spread(kept.file.read(figure.GPU, f"GPU-{index}", asked), asked, 6) for index in range(4)]
    assert [one[0].means for one in loads] == [(90,) * 3, (80,) * 3, (0,) * 3, (None,) * 3]
    assert [one[5].means[0] for one in loads] == [100, 100, 0, 0]  # held
    uid = (await world.pod("train")).metadata.uid
    found = figure.spread(kept.file.read(figure.CONTAINER, uid, asked), asked, 6)
    assert found[0].means[0] is None  # a rate needs two readings
    assert found[0].means[1] is not None
    assert found[1].means == (1 << 20,) * 3


async def test_the_engine_is_asked_when_containers_change_and_not_again(
    kept: Kept, world: World, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(api, "train", 1)
    asked = []
    listed = world.engine.list_containers

    async def counted(labels: dict[str, str]) -> object:
        asked.append(labels)
        return await listed(labels)

    monkeypatch.setattr(world.engine, "list_containers", counted)
    await kept.tick(5)
    assert len(asked) == 1


async def test_a_clock_that_jumps_ends_an_interval_and_makes_no_negative_one(
    kept: Kept, world: World, api: httpx.AsyncClient
) -> None:
    await start(api, "train", 1)
    await kept.tick(2)
    await kept.tick(1, wall_s=-7200)
    await kept.tick(2)
    uid = (await world.pod("train")).metadata.uid
    kept.file.write_held(kept.recorder.held)
    found = kept.file.read_held(uid=uid)
    assert len(found) == 2
    assert all(one.since < one.until for one in found)
    assert {one.until - one.since for one in found} == {20, 30}


async def test_nothing_is_deleted_by_a_clock_that_has_just_jumped(kept: Kept) -> None:
    kept.load(1, 1, 1, 1)
    begin = int(kept.at)
    await kept.tick(60)
    await kept.tick(2, wall_s=30 * tier.DAY_S)
    assert kept.file.read(figure.GPU, "GPU-0", tier.Window(begin=begin, step_s=600, count=1, tier=2))


async def test_a_restart_goes_on_where_it_was(kept: Kept, world: World, api: httpx.AsyncClient) -> None:
    await start(api, "train", 1)
    kept.load(50, 50, 50, 50)
    begin = int(kept.at)
    await kept.tick(6)
    kept.recorder = kept.opened()  # killed, and started again
    await kept.tick(54 + 6)
    asked = tier.Window(begin=begin, step_s=600, count=1, tier=2)
    (row,) = kept.file.read(figure.GPU, "GPU-0", asked)
    assert (row.weight, row.means[0]) == (60, 50)


async def test_what_does_not_answer_is_a_gap_and_is_said(kept: Kept, world: World) -> None:
    kept.load(10, 10, 10, 10)
    await kept.tick()

    async def broken(*, within_s: float) -> tuple[Sample, ...]:
        raise errors.Unavailable(f"no driver within {within_s}", reason="DriverNotLoaded")

    world.sample = broken  # type: ignore[method-assign]
    await kept.recorder.tick()
    assert "no driver" in kept.history.describe().problem
    del world.sample
    await kept.tick()
    assert not kept.history.describe().problem

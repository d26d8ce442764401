"""What the policy for idle GPUs is told: the samples of a time, of GPUs by their replicas too; no path of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.plan.idle import judge
from fairlead.plan.idle.judge import Window
from fairlead.plan.idle.policy import Policy
from tests.unit.serve.history.kept import ALL, Kept
from tests.unit.serve.world import World

_STOP = Policy(action="stop", below_percent=5, after_s=600, warn_s=60)


async def _verdict(kept: Kept, *devices: str, seconds: float = 600) -> judge.Verdict:
    window = Window(since=kept.at - seconds, until=kept.at)
    return judge.judge(await kept.history.measured("uid", devices, window), window, _STOP)


async def test_samples_are_judged_and_a_restart_keeps_them(world: World, tmp_path: Path) -> None:
    kept = Kept(world, tmp_path)
    kept.load(*[0] * ALL)
    await kept.tick(61)
    assert (await _verdict(kept, "GPU-0", "GPU-1::2")).is_idle
    assert (await _verdict(kept, "GPU-0", seconds=3600)).unknown
    kept.recorder = kept.opened()
    kept.load(90, *[0] * (ALL - 1))
    await kept.tick()
    assert (await _verdict(kept, "GPU-0")).busy == "GPU-0: 90 %"
    assert (await _verdict(kept, "GPU-1")).is_idle


async def test_what_reports_no_load_or_is_not_known_is_not_idle(world: World, tmp_path: Path) -> None:
    kept = Kept(world, tmp_path)
    kept.load(*[None] * ALL)
    await kept.tick(61)
    assert (await _verdict(kept, "GPU-0")).unknown
    assert (await _verdict(kept, "MIG-nowhere")).unknown
    assert (await _verdict(kept)).unknown


async def test_a_long_time_is_judged_by_coarse_figures(world: World, tmp_path: Path) -> None:
    kept = Kept(world, tmp_path)
    kept.load(*[0] * ALL)
    await kept.tick(6 * 181)
    assert (await _verdict(kept, "GPU-0", seconds=3 * 3600)).is_idle


async def test_a_problem_with_the_file_is_said_without_its_path(world: World, tmp_path: Path) -> None:
    kept = Kept(world, tmp_path)
    kept.recorder.problem = f"figures cannot be kept in {tmp_path}"
    with pytest.raises(errors.Unavailable) as caught:
        await _verdict(kept, "GPU-0")
    assert str(tmp_path) not in caught.value.message

"""Who answers questions about figures over time, by the settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors, settings
from fairlead.cli.process.local import history
from fairlead.serve.backend import port
from fairlead.serve.history.file import FILE


def config(folder: Path, **more: Any) -> settings.Settings:
    one = settings.Settings()
    return replace(one, state=replace(one.state, folder=folder), history=replace(one.history, **more))


async def begun(one: settings.Settings) -> object:
    machine: Any = None  # nothing is sampled here
    async with asyncio.TaskGroup() as group:
        return await history.begin(one, group, machine)


@pytest.mark.parametrize(
    "more",
    [
        {"days": -1.0},
        {"days": float("nan")},
        {"days": float("inf")},
        {"megabytes": 0.0},
        {"megabytes": float("nan")},
        {"megabytes": float("inf")},
    ],
)
async def test_bounds_that_are_none_are_refused(tmp_path: Path, more: dict[str, float]) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await begun(config(tmp_path, **more))
    (refusal,) = caught.value.exceptions
    assert isinstance(refusal, errors.Invalid)
    assert "history.days" in refusal.message


async def test_no_days_keep_none(tmp_path: Path) -> None:
    assert await begun(config(tmp_path, days=0.0)) is port.NO_HISTORY
    assert not list(tmp_path.iterdir())


async def test_a_file_that_cannot_be_opened_does_not_keep_the_service_from_its_work(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    found = await begun(config(tmp_path))
    assert isinstance(found, port.Absent)
    assert found.reason == "HistoryUnreachable"
    assert str(tmp_path) in found.message

"""Every option of every command refuses what is hostile in words, or takes it: no traceback, no hang, no raw escape.

The quick ring feeds each option once, some 15 s; the slow ring feeds it one value of ten, some two minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import harness
from tests.fuzz.doors import cli, clioptions


@pytest.mark.timeout(180)
async def test_a_hostile_value_of_an_option_is_refused_or_taken(tmp_path: Path) -> None:
    found = await harness.fuzz(clioptions.DOOR, clioptions.cases(every=False), tmp_path)
    assert not found, harness.report(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # click opened it for a line that it then refused
async def test_no_value_of_any_option_gets_in(tmp_path: Path) -> None:
    found = await harness.fuzz(clioptions.DOOR, clioptions.cases(every=True), tmp_path)
    assert not found, harness.report(found)


def test_what_is_read_and_not_carried_out_is_there() -> None:
    every = {path[:size] for path, _ in clioptions.commands() for size in range(1, 4)}
    assert clioptions.READ_ONLY.keys() <= every


def test_an_option_that_is_read_alone_is_refused_as_it_is_when_carried_out(tmp_path: Path) -> None:
    """The door would be blind if nothing it reads could fail."""
    with pytest.raises(cli.Refused, match="is not a float"):
        clioptions.read(["up", "--history-days=NaN"], {})

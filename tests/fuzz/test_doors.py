"""Every door refuses what is hostile or passes it on as it is: no crash, no hang, no effect on the host.

The quick ring feeds a sample that is the same at every run, each value and each place at least once. The slow ring
feeds every value at every place: `python -m pytest tests/fuzz -m slow -n 2`, some minutes; with `-k NAME` one door.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import harness
from tests.fuzz.doors import (
    accounts,
    answers,
    api,
    archive,
    claims,
    cli,
    engine,
    fabric,
    members,
    passthrough,
    podman,
    scheduling,
    shim,
    text,
)

DOORS = (
    *text.DOORS,
    *claims.DOORS,
    *engine.DOORS,
    *shim.DOORS,
    *api.DOORS,
    *accounts.DOORS,
    *members.DOORS,
    *archive.DOORS,
    *podman.DOORS,
    *answers.DOORS,
    *scheduling.DOORS,
    *cli.DOORS,
    *fabric.DOORS,
    *passthrough.DOORS,
)
_BY_NAME = [pytest.param(door, id=door.name.replace(" ", "-")) for door in DOORS]


@pytest.mark.parametrize("door", _BY_NAME)
async def test_a_hostile_document_is_refused_or_passed_on(door: harness.Door, tmp_path: Path) -> None:
    found = await harness.fuzz(door, harness.sampled(door), tmp_path)
    assert not found, harness.report(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # click opened it for a line that it then refused
@pytest.mark.parametrize("door", _BY_NAME)
async def test_no_value_at_any_place_gets_in(door: harness.Door, tmp_path: Path) -> None:
    found = await harness.fuzz(door, harness.complete(door), tmp_path)
    assert not found, harness.report(found)

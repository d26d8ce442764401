"""Every door refuses what is hostile or passes it on as it is: no crash, no hang, no effect on the host.

The quick ring feeds a sample that is the same at every run, each value and each place at least once; the slow ring
feeds a thousand documents a door. `python -m pytest tests/fuzz -k NAME -m slow` runs one door.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import harness
from tests.fuzz.doors import api, cli, engine, podman, shim, text

DOORS = (*text.DOORS, *engine.DOORS, *shim.DOORS, *api.DOORS, *podman.DOORS, *cli.DOORS)
_THOUSAND = 1000
_BY_NAME = [pytest.param(door, id=door.name.replace(" ", "-")) for door in DOORS]


@pytest.mark.parametrize("door", _BY_NAME)
async def test_a_hostile_document_is_refused_or_passed_on(door: harness.Door, tmp_path: Path) -> None:
    found = await harness.fuzz(door, harness.sampled(door), tmp_path)
    assert not found, harness.report(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("door", _BY_NAME)
async def test_none_of_a_thousand_documents_gets_in(door: harness.Door, tmp_path: Path) -> None:
    found = await harness.fuzz(door, harness.larger(door, _THOUSAND), tmp_path)
    assert not found, harness.report(found)

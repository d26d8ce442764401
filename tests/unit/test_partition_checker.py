"""The checker of NVLink partitions, which the tests of kills and turns believe, sees each contradiction."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests import partitionchecker

PARTITIONS = {1: (1, 2), 2: (3, 4), 3: (2, 3), 11: (1,), 12: (2,)}


def claim(device: str) -> dict[str, str]:
    return {"device": device}


def held(device: str) -> dict[str, Any]:
    return {"state": "Held", "claims": [claim(device)]}


FREE: dict[str, Any] = {"state": "Free", "claims": []}


def place(
    folder: Path,
    rows: dict[int, dict[str, Any]],
    *,
    active: tuple[int, ...] = (),
    shown: tuple[str, ...] = (),
    machines: dict[int, str] | None = None,
    unread: tuple[int, ...] = (),
) -> partitionchecker.Place:
    (folder / "switches").write_text(json.dumps(active))
    (folder / "cdi").mkdir()
    spec = {"kind": "nvidia.com/pgpu", "devices": [{"name": one} for one in shown]}
    (folder / "cdi/slots.json").write_text(json.dumps(spec))
    with sqlite3.connect(folder / "ledger.db") as ledger:
        ledger.execute("CREATE TABLE gpu (key TEXT, document TEXT)")
        ledger.executemany("INSERT INTO gpu VALUES (?, ?)", [(f"g{at}", json.dumps(row)) for at, row in rows.items()])
    ledger.close()
    return partitionchecker.Place(
        switches=folder / "switches",
        ledger=folder / "ledger.db",
        cdi=folder / "cdi",
        partitions=PARTITIONS,
        modules={f"g{module}": module for module in (1, 2, 3, 4)},
        machines=lambda: machines or {},
        is_clean=lambda module: module not in unread,
    )


def test_nothing_is_said_of_a_slot_that_is_held_with_its_partition(tmp_path: Path) -> None:
    rows = {1: held("x2-1.2"), 2: held("x2-1.2"), 3: FREE, 4: FREE}
    where = place(tmp_path, rows, active=(1,), shown=("x2-1.2",), machines={1: "m", 2: "m"})
    assert partitionchecker.find(where) == ([], set())


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ({1: FREE, 2: FREE}, {"active": (1, 3)}, "GPUs [2] are in the active partitions 1 and 3"),
        ({1: FREE}, {"active": (1,)}, "GPU 1 is free in the active partition 1"),
        ({1: FREE}, {"machines": {1: "m"}}, "GPU 1 is free, and m has it"),
        ({1: FREE}, {"unread": (1,)}, "GPU 1 is free, and was not cleaned and read since its last tenant"),
        ({1: {"state": "Dirty", "claims": []}}, {"machines": {1: "m"}}, "GPU 1 is Dirty, and m has it"),
        (
            {1: held("x1-1")},
            {"active": (1,), "machines": {1: "m"}},
            "m has GPU 1 of [[1]] in partition 1 of [1, 2]",
        ),
        ({1: held("x2-1.2"), 2: held("x2-1.2")}, {"shown": ("x2-1.2",)}, "x2-1.2 is shown without its partition"),
        ({1: FREE}, {"shown": ("x1-1",)}, "x1-1 is shown, and GPU 1 is Free"),
    ],
)
def test_each_contradiction_of_switches_ledger_specs_and_machines_is_named(
    rows: dict[int, dict[str, Any]], more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found, _ = partitionchecker.find(place(tmp_path, rows, **more))
    assert any(line.startswith(said) for line in found), found


def test_a_partition_that_is_active_for_nobody_counts_after_its_time(tmp_path: Path) -> None:
    where = place(tmp_path, {1: {"state": "Dirty", "claims": []}, 2: {"state": "Dirty", "claims": []}}, active=(1,))
    assert partitionchecker.find(where) == ([], {1})
    patient, strict = partitionchecker.Watch(where, limit_s=60), partitionchecker.Watch(where, limit_s=-1)
    patient.look()
    strict.look()
    assert patient.violations == []
    assert strict.violations == ["partition 1 is active for nobody, for -1 s"]

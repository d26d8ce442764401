"""Figures over time of a real service: kept across a kill, set aside when damaged, each tenant's own."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Iterator

import pytest
from home import Home, machine_of_tenancies

pytestmark = [pytest.mark.podman, pytest.mark.slow]


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service with a container that holds two GPUs."""
    with machine_of_tenancies(image, FAIRLEAD_NODE_METRICS="none") as home:
        home.up()
        yield home


def _points(machine: Home, name: str) -> dict[tuple[str, str], list[float]]:
    found = json.loads(machine.ok("stats", name, "--since", "10m", "-o", "json").out)
    assert len(found) == 1
    return {
        (one["metric"], one["device"]): [value for value in one["means"] if value is not None]
        for one in found[0]["series"]
    }


def _until_sampled(machine: Home, name: str, least: int) -> dict[tuple[str, str], list[float]]:
    def seen() -> bool:
        found = _points(machine, name)
        return len(found.get(("memory", ""), [])) >= least and len(found.get(("cpu", ""), [])) >= least - 1

    machine.until(seen, what=f"{least} samples of {name}", timeout_s=60)
    return _points(machine, name)


def test_what_a_container_and_its_gpus_did_outlives_a_kill(machine: Home) -> None:
    machine.start("train", "-g", "2", command=("sh", "-c", "while true; do true; done"))
    before = _until_sampled(machine, "train", 3)
    assert min(before["cpu", ""]) > 5  # it is busy; the machine may be as well
    assert min(before["memory", ""]) > 1000
    gpus = {device for metric, device in before if metric == "load"}
    assert len(gpus) == 2
    assert all(len(before["load", device]) >= 2 for device in gpus)
    assert all(before["temperature", device] for device in gpus)

    assert machine.process is not None
    machine.process.send_signal(signal.SIGKILL)
    machine.process.wait(timeout=10)
    machine.up()
    after = _points(machine, "train")
    for key in (("cpu", ""), *(("load", device) for device in gpus)):
        assert after[key][: len(before[key])] == before[key]

    shown = machine.ok("stats", "train", "--since", "10m", "--plot").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "CPU: mean" in shown
    table = machine.ok("stats", "--gpu", "0", "--since", "10m", "-o", "csv").out
    assert table.startswith("time,load (%)")
    machine.rm("train")


def test_a_damaged_file_is_set_aside_and_said_by_status_and_doctor(machine: Home) -> None:
    machine.down()
    file = machine.state / "history.db"
    for name in ("history.db-wal", "history.db-shm"):
        (machine.state / name).unlink(missing_ok=True)
    file.write_bytes(b"\0garbage" * 4096)
    machine.up()
    assert "a damaged file was set aside" in machine.ok("status").out
    found = json.loads(machine("doctor", "-o", "json").out)
    (told,) = (one for one in found if one["check"] == "history")
    assert "history.db.damaged" in told["what"]
    machine.start("again")
    assert _until_sampled(machine, "again", 1)
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as kept, kept:
        assert kept.execute("PRAGMA quick_check").fetchone() == ("ok",)
    kept.close()
    machine.rm("again")


def test_none_are_kept_where_the_setting_says_so(machine: Home) -> None:
    machine.down()
    machine.up(FAIRLEAD_HISTORY_DAYS="0")
    refused = machine("stats", "--gpu", "0", "--since", "1h")
    assert refused.code == 2
    assert "history.days" in refused.err
    assert "no figures over time" in machine.ok("status").out

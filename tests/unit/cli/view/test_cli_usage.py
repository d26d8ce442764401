"""`fairlead usage`: the table, what is said beside it, and the file for accountants."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from fairlead.plan.metering import reconcile
from fairlead.plan.metering.usage import MICROS
from tests.unit.cli.liveservice import Service
from tests.unit.plan.metering.leases import keep, lease


@pytest.fixture
def used(service: Service) -> Service:
    """A service that has given a GPU away for an hour."""
    now = time.time()
    leases = (lease("a", now - 7200, now - 3600), lease("b", now - 5000, now - 3000, of=()))
    asyncio.run_coroutine_threadsafe(keep(service.world.store, *leases), service.loop).result(10)
    return service


def test_the_table_has_hours_and_the_sum_and_what_is_in_doubt_stand_below(used: Service) -> None:
    result = used.fairlead("usage", "--since", "1d", "--by", "namespace")
    assert result.exit_code == 0, result.output
    header, row = result.stdout.splitlines()
    assert header.split("   ") == ["NAMESPACE", "GPU HOURS"]
    assert row.split() == ["lab", "1.000"]
    assert "1.000 GPU hours from " in result.stderr
    assert "0.167 GPU hours more were held by what is not known: charged to no one" in result.stderr
    assert "lease b overlaps a on the same GPU: 1400 s of it are not counted" in result.stderr


def test_a_period_is_an_age_a_date_or_a_time(used: Service) -> None:
    for text in ("1d", "24h", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))):
        shown = used.fairlead("usage", "--since", text, "-o", "json")
        assert round(json.loads(shown.stdout)["total"]["gpu_seconds"]) == 3600, text
    refused = used.fairlead("usage", "--since", "yesterday")
    assert refused.exit_code == 2
    assert '"yesterday" is neither an age' in refused.output


def test_the_export_is_written_once_and_over_nothing(used: Service, tmp_path: Path) -> None:
    target = tmp_path / "usage.csv"
    assert used.fairlead("usage", "--since", "1d", "--focus", str(target)).exit_code == 0
    with target.open() as file:
        assert {row["SubAccountId"] for row in csv.DictReader(file)} == {"lab"}
    again = used.fairlead("usage", "--since", "1d", "--focus", str(target))
    assert (again.exit_code, "cannot write" in again.output) == (2, True)


def test_before_the_first_lease_it_says_that_nothing_was_held(service: Service) -> None:
    result = service.fairlead("usage")
    assert (result.exit_code, "no GPU was held yet" in result.output) == (0, True), result.output


def test_charges_are_checked_against_the_clock(used: Service) -> None:
    result = used.fairlead("usage", "check", "--since", "1d")
    assert result.exit_code == 0, result.output
    header, row = result.stdout.splitlines()
    assert header.split() == ["GPU", "CHARGED", "HOURS", "WALL", "HOURS", "TOO", "MUCH"]
    assert row.split() == ["GPU-1", "1.000", "24.000", "-"]


def test_charges_that_exceed_the_clock_are_an_error(used: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(*_: object, **__: object) -> tuple[reconcile.Reconciled, ...]:
        return (reconcile.Reconciled(gpu="GPU-1", charged=7200 * MICROS, wall=3600 * MICROS, excess=3600 * MICROS),)

    monkeypatch.setattr(reconcile, "reconcile", doubled)
    result = used.fairlead("usage", "check")
    assert result.exit_code == 4
    assert "1 GPUs are charged 3,600 s more than time went by" in result.output


def test_the_parquet_file_has_the_rows_of_the_csv_with_types(used: Service, tmp_path: Path) -> None:
    parquet, target, text = pytest.importorskip("pyarrow.parquet"), tmp_path / "usage.parquet", tmp_path / "usage.csv"
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    period = ("--since", "1d", "--until", until)
    assert used.fairlead("usage", *period, "--focus", str(text)).exit_code == 0
    done = used.fairlead("usage", *period, "--parquet", str(target))
    assert done.exit_code == 0, done.output
    found = parquet.read_table(target)
    with text.open() as file:
        wanted = list(csv.DictReader(file))
    assert found.column_names == list(wanted[0])
    rows = found.to_pylist()
    assert [row["x_LeaseId"] for row in rows] == [row["x_LeaseId"] for row in wanted]
    assert [row["ConsumedQuantity"] for row in rows] == [Decimal(row["ConsumedQuantity"]) for row in wanted]
    assert sum(row["ConsumedQuantity"] for row in rows) == pytest.approx(Decimal(1), abs=Decimal("0.001"))
    assert rows[0]["ChargePeriodStart"].tzinfo is not None


def test_without_the_library_the_extra_is_named_and_no_file_is_made(
    used: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    result = used.fairlead("usage", "--parquet", str(tmp_path / "x"))
    assert result.exit_code == 6
    assert "fairlead[parquet]" in result.output
    assert not (tmp_path / "x").exists()

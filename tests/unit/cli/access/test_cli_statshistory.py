"""What the command line shows of figures over time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.access import statshistory
from fairlead.cli.core import output
from fairlead.serve.history.view import MetricsView, SeriesView


def view(*means: float | None, unit: str = "%", of: str = "train", **more: Any) -> MetricsView:
    series = SeriesView(metric="load", unit=unit, title="GPU load", means=means, peaks=means, **more)
    return MetricsView(
        of=of,
        since="2026-11-01T00:00:00Z",
        until="2026-11-01T01:00:00Z",
        step_s=10,
        times=tuple(range(0, 10 * len(means), 10)),
        series=(series,),
        notes=("kept for 14 days",),
    )


def test_a_picture_has_blanks_where_nothing_is_known() -> None:
    lines = statshistory.bars((100.0, None, 0.0, 50.0), 4, 100.0)
    assert lines == ["█   ", "█   ", "█  █", "█ ▁█"]


def test_a_long_period_is_averaged_into_the_width() -> None:
    lines = statshistory.bars(tuple([0.0] * 50 + [100.0] * 50), 2, 100.0)
    assert lines[0] == " █"


def test_the_table_names_the_gpu_and_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    found = view(10.0, None, 90.0, device="GPU-0123456789", index=3, is_shared=True)
    statshistory.show([found, view(None, of="web")], form="table", plots=False)
    shown = capsys.readouterr()
    assert shown.out.split("\n")[1].split() == [
        "train",
        "GPU",
        "load",
        "GPU",
        "3",
        "(shared)",
        "10%",
        "50%",
        "90%",
        "90%",
    ]
    assert "web: nothing is known" in shown.err
    assert "note: kept for 14 days" in shown.err


def test_a_picture_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    statshistory.show([view(*([5e10] * 360), unit="bytes", device="GPU-1", index=1)], form="table", plots=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "train  GPU load, GPU 1: mean 47 GiB, peak 47 GiB"


def test_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    statshistory.show([view(1.0)], form="json", plots=False)
    assert json.loads(capsys.readouterr().out)[0]["series"][0]["means"] == [1.0]
    statshistory.show([view(1.0, None)], form="csv", plots=False)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "time,load (%)"
    assert out[1].endswith(",1.0")
    assert out[2].endswith(",")
    with pytest.raises(errors.Invalid, match="these are 2"):
        statshistory.show([view(1.0), view(1.0)], form="csv", plots=False)


@pytest.mark.parametrize("columns", [1, 12, 20, 22, 79, 80])
def test_a_narrow_terminal_gets_a_picture_of_40_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(output, "terminal_columns", lambda: columns)
    statshistory.show([view(*([1.0e8] * 360), unit="bytes/s")], form="table", plots=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= max(40, columns)
    assert lines[1].endswith("█")


def test_a_long_label_takes_its_room_from_the_picture(capsys: pytest.CaptureFixture[str]) -> None:
    statshistory.show([view(*([1020.4 * 1024**2] * 360), unit="bytes/s")], form="table", plots=True)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80

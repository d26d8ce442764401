"""Charts of figures over time: gaps break lines, axes are round, words stand in for pictures."""

from __future__ import annotations

from typing import Any

from fairlead.serve.console.draw import lines
from fairlead.serve.history.view import MetricsView, SeriesView


def view(*series: SeriesView, count: int = 4, step_s: int = 10) -> MetricsView:
    return MetricsView(
        of="train",
        since="2023-11-14T22:13:20Z",
        until="2023-11-14T22:14:00Z",
        step_s=step_s,
        times=tuple(range(1_700_000_000, 1_700_000_000 + count * step_s, step_s)),
        series=series,
    )


def one(*means: float | None, metric: str = "load", unit: str = "%", device: str = "GPU-1", **more: Any) -> SeriesView:
    return SeriesView(metric=metric, unit=unit, title="x", device=device, means=means, peaks=means, **more)


def test_a_gap_breaks_the_line_and_is_not_zero() -> None:
    (chart,) = lines.figures(view(one(50.0, 50.0, None, 100.0, index=0)))
    (curve,) = chart.curves
    assert len(curve.paths) == 1
    assert len(curve.paths[0].split()) == 2
    assert [y for _, y in curve.dots] == [12.0]  # the top: 100 %
    assert (curve.title, curve.low, curve.mean, curve.high) == ("GPU 0", "50 %", "67 %", "100 %")


def test_what_is_never_known_has_no_chart() -> None:
    assert lines.figures(view(one(None, None, None, None))) == ()


def test_memory_of_the_container_and_of_its_gpus_are_two_charts() -> None:
    found = lines.figures(
        view(
            one(1e9, 1e9, 1e9, 1e9, metric="memory", unit="bytes", device=""),
            one(6e10, 7e10, 6e10, 6e10, metric="memory", unit="bytes", is_shared=True, index=1),
        )
    )
    assert [(chart.id, chart.title) for chart in found] == [("gpu-memory", "GPU memory"), ("memory", "Memory")]
    assert found[0].curves[0].title == "GPU 1 (shared)"
    assert [line.text for line in found[0].lines] == ["0", "40 GiB", "80 GiB"]


def test_a_figure_that_is_always_zero_is_drawn_at_the_bottom() -> None:
    (chart,) = lines.figures(view(one(0.0, 0.0, 0.0, 0.0, metric="read", unit="bytes/s", device="")))
    assert chart.curves[0].high == "0"
    assert chart.curves[0].paths[0].split()[0].endswith(f",{lines.HEIGHT - 24}")


def test_marks_outside_are_left_out_and_words_say_the_picture() -> None:
    marks = [lines.Mark(at=1_700_000_010, text="Started"), lines.Mark(at=1, text="long ago")]
    (chart,) = lines.figures(view(one(1.0, 2.0, 3.0, 4.0)), marks)
    assert [mark.text for mark in chart.marks] == ["22:13 Started"]
    assert "GPU load from 2023-11-14 22:13:20" in chart.summary
    assert "mean 2 %, peak 4 %" in chart.summary


def test_more_series_than_colours_are_counted() -> None:
    found = lines.figures(view(*(one(1.0, 1.0, 1.0, 1.0, device=f"GPU-{n}", index=n) for n in range(16))))
    assert (len(found[0].curves), found[0].more) == (8, 8)


def test_a_small_chart_says_what_it_shows() -> None:
    assert lines.spark([None] * 60) is None
    found = lines.spark([None, 50.0, 100.0, None, 0.0])
    assert found is not None
    assert len(found.paths) == 2
    assert found.text == "load in the last hour: mean 50 %, peak 100 %"

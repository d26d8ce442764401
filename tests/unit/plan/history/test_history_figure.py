"""Figures are gaps where they are not known, and sums keep means and peaks."""

from __future__ import annotations

from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.sample import Activity, Sample
from fairlead.plan.history import figure
from fairlead.plan.history.figure import Counters, Interval, Row
from fairlead.plan.history.tier import Window


def row(at: int, *means: float | None, weight: int = 1, step_s: int = 10) -> Row:
    return Row(at=at, weight=weight, means=means, peaks=means, step_s=step_s)


def test_what_a_gpu_does_not_say_is_a_gap() -> None:
    found = figure.of_sample(Sample(gpu=GPUUUID("GPU-0"), power_mw=350_500), is_held=True)
    assert found == (None, None, 350.5, None, None, 100.0)


def test_a_mig_devices_load_is_its_engines() -> None:
    active = Activity(graphics_active=0.25)
    one = Sample(gpu=GPUUUID("GPU-0"), mig=MIGUUID("MIG-1"), memory_used_bytes=7, activity=active)
    assert figure.of_sample(one, is_held=False) == (25.0, 7, 0.0)


def test_rates_need_two_readings_and_a_counter_that_went_on() -> None:
    now = Counters(cpu_ns=3_000_000_000, memory_bytes=5, received_bytes=100, sent_bytes=10)
    assert figure.of_use(None, now, 10) == (None, 5, None, None, None, None)
    before = Counters(cpu_ns=1_000_000_000, memory_bytes=9, received_bytes=200, sent_bytes=0)
    assert figure.of_use(before, now, 10) == (20.0, 5, None, 1.0, None, None)
    assert figure.of_use(before, now, 0) == figure.of_use(None, now, 10)


def test_a_group_is_the_sum_of_its_containers() -> None:
    several: list[tuple[figure.Value, ...]] = [(1, None, 3), (1.5, 2, 4)]
    assert figure.added(several) == (2.5, None, 7)


def test_means_are_weighed_and_peaks_kept() -> None:
    found = figure.merged(0, [row(0, 10, None, weight=3), row(10, 50, 4)])
    assert (found.means, found.peaks, found.weight) == ((20, 4), (50, 4), 4)


def test_points_have_gaps_where_nothing_was_measured() -> None:
    window = Window(begin=0, step_s=20, count=3, tier=0)
    (found,) = figure.spread([row(0, 1), row(10, 3), row(40, 7), row(100, 9), row(-10, 9)], window, 1)
    assert list(found.means) == [2, None, 7]
    assert list(found.peaks) == [3, None, 7]


def test_a_bucket_that_somebody_else_shared_is_not_within() -> None:
    mine = figure.joined([Interval(since=60, until=120), Interval(since=0, until=55), Interval(since=110, until=180)])
    assert mine == (Interval(since=0, until=55), Interval(since=60, until=180))
    assert figure.within(row(60, 1, step_s=60), mine)
    assert not figure.within(row(0, 1, step_s=60), mine)
    assert not figure.within(row(50, 1), mine)

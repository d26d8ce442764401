"""The file of figures: sums, restarts, bounds, damage."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.plan.history import figure, tier
from fairlead.serve.history.file import FILE, Held, HistoryFile

BEGIN = 1_700_000_400  # begins ten minutes
GPU = (figure.GPU, "GPU-0")
DAY = tier.DAY_S


def opened(folder: Path, *, days: float = 14, most: int = 64 << 20) -> HistoryFile:
    return HistoryFile(folder / FILE, days=days, most_bytes=most)


def load(value: float | None) -> tuple[float | None, ...]:
    return (value, None, None, None, None, 100.0)


def window(begin: int, step_s: int, count: int, level: int) -> tier.Window:
    return tier.Window(begin=begin, step_s=step_s, count=count, tier=level)


def loads(file: HistoryFile, asked: tier.Window) -> tuple[float | None, ...]:
    rows = file.read(*GPU, asked)
    return figure.spread(rows, asked, 1)[0].means


def test_samples_are_read_as_they_were_written_and_gaps_stay_gaps(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for place, value in enumerate((10.0, None, 30.0)):
        file.write(BEGIN + 10 * place, {GPU: load(value)})
    assert loads(file, window(BEGIN, 10, 4, 0)) == (10, None, 30, None)
    assert file.read(figure.GPU, "GPU-9", window(BEGIN, 10, 4, 0)) == []
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_coarse_buckets_are_summed_up_and_the_newest_part_is_read_from_fine_ones(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for place in range(8):
        file.write(BEGIN + 10 * place, {GPU: load(float(place))})
    file.sum_up(BEGIN + 70)
    asked = window(BEGIN, 60, 2, 1)
    rows = file.read(*GPU, asked)
    assert [(one.at, one.weight, one.step_s) for one in rows] == [
        (BEGIN, 6, 60),
        (BEGIN + 60, 1, 10),
        (BEGIN + 70, 1, 10),
    ]
    assert (rows[0].means[0], rows[0].peaks[0]) == (2.5, 5)
    assert loads(file, asked) == (2.5, 6.5)


def test_a_restart_loses_nothing_that_was_written(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for place in range(60):
        file.write(BEGIN + 10 * place, {GPU: load(50.0)})
    file.close()  # before anything was summed up
    file = opened(tmp_path)
    file.sum_up(BEGIN + 600)
    assert loads(file, window(BEGIN, 600, 1, 2)) == (50,)
    assert [one.step_s for one in file.read(*GPU, window(BEGIN, 600, 1, 2))] == [600]


def test_a_clock_that_was_ahead_stops_nothing(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write(BEGIN + 400 * DAY, {GPU: load(99.0)})
    file.sum_up(BEGIN + 400 * DAY + 600)
    for place in range(7):
        file.write(BEGIN + 10 * place, {GPU: load(20.0)})
    file.sum_up(BEGIN + 70)
    assert loads(file, window(BEGIN, 60, 1, 1)) == (20,)


def test_old_figures_are_forgotten_at_each_resolution(tmp_path: Path) -> None:
    file = opened(tmp_path, days=1)
    held = Held(gpu="GPU-0", device="GPU-0", uid="u", namespace="n", name="c", since=BEGIN, until=BEGIN + 60)
    for place in range(7):
        file.write(BEGIN + 10 * place, {GPU: load(20.0)})
    file.sum_up(BEGIN + 60)
    file.write_held([held])
    file.forget(BEGIN + 3 * 3600)
    assert file.size.rows == 1  # the minute is left
    assert file.read_held(uid="u") == [held]
    file.forget(BEGIN + 2 * DAY)
    assert (file.size.rows, file.size.series, file.read_held(uid="u")) == (0, 0, [])


def test_the_file_stays_below_its_bound(tmp_path: Path) -> None:
    file = opened(tmp_path, most=100_000)
    keys = [(figure.CONTAINER, f"{number:036}") for number in range(50)]
    for place in range(300):
        file.write(BEGIN + 10 * place, {key: (1.0, 2.0, 3.0, 4.0, 5.0, 6.0) for key in keys})
    file.forget(BEGIN + 3000)
    assert 0 < file.size.bytes <= 100_000
    assert file.size.begin is not None
    assert file.size.begin > BEGIN


def test_a_bucket_holds_a_bounded_number_of_series(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write(BEGIN, {(figure.CONTAINER, str(number)): (1.0,) for number in range(5000)})
    file.forget(BEGIN)
    assert file.size.rows == 1024


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    file = opened(tmp_path)
    file.write(BEGIN, {GPU: load(1.0)})
    assert loads(file, window(BEGIN, 10, 1, 0)) == (1,)
    if content:
        assert file.set_aside == tmp_path / f"{FILE}.damaged"
        assert file.set_aside.read_bytes() == content


def test_another_programs_database_is_set_aside(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as other, other:
        other.execute("CREATE TABLE mine (a)")
    other.close()
    assert opened(tmp_path).set_aside is not None


def test_damage_found_later_is_set_aside_and_the_next_sample_is_kept(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write(BEGIN, {GPU: load(1.0)})
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as other, other:
        other.execute("DROP TABLE points")
    other.close()
    with pytest.raises(errors.Unavailable):
        file.guarded(lambda: file.write(BEGIN + 10, {GPU: load(2.0)}))
    assert file.set_aside is not None
    file.guarded(lambda: file.write(BEGIN + 20, {GPU: load(3.0)}))
    assert loads(file, window(BEGIN, 10, 3, 0)) == (None, None, 3)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        HistoryFile(tmp_path / "absent" / FILE, days=1, most_bytes=1 << 20)
    assert caught.value.reason == "HistoryUnreachable"


def test_what_a_clock_that_was_ahead_left_does_not_hold_the_room(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / FILE, days=14, most_bytes=200_000)
    keys = [(figure.GPU, f"GPU-{number}") for number in range(50)]
    rows = dict.fromkeys(keys, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    for place in range(200):
        file.write(BEGIN + 30 * 365 * 86400 + 10 * place, rows)
    for place in range(6):
        file.write(BEGIN + 10 * place, rows)
    file.forget(BEGIN + 60)
    assert 0 < file.size.bytes <= 200_000
    rows_read = file.read(*keys[0], window(BEGIN, 10, 6, 0))
    assert [row.means[0] for row in rows_read] == [1] * 6


@pytest.mark.parametrize(("until", "count"), [(BEGIN - 14 * 86400, 0), (BEGIN + 60, 6), (BEGIN + 20 * 86400, 6)])
def test_a_year_of_which_little_is_kept_costs_little(tmp_path: Path, until: int, count: int) -> None:
    file = opened(tmp_path)
    for place in range(6):
        file.write(BEGIN + 10 * place, {GPU: load(1.0)})
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    file.read(*GPU, window(BEGIN, 10, 6, 0))
    with file._reader() as connection:
        connection.set_progress_handler(step, 1000)
    asked = tier.choose(until - 399 * 86400, until, None, now=float(BEGIN + 60), days=14)
    rows = file.read(*GPU, asked)
    assert len(rows) == count
    assert steps < 100  # 100,000 instructions; three million buckets are 50 times that and more

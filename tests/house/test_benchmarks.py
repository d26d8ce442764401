"""Benchmarks: a row that cannot run says why in the table, and the others run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import frame


def test_a_benchmark_that_breaks_says_why_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Iterator[frame.Row]:
        yield frame.Row(name="before", ours=1, unit="ms")
        raise OSError("no space | left")

    monkeypatch.setattr(
        frame, "REGISTRY", {"broken": broken, "whole": lambda: [frame.Row(name="after", ours=2, unit="ms")]}
    )
    assert program.main(["--write", str(tmp_path / "page.md")]) == 1
    page = (tmp_path / "page.md").read_text()
    assert "| broken | not measured: failed: no space / left | | | | | |" in page
    assert [name in capsys.readouterr().out for name in ("before",)] == [True]
    assert "| after | 2 ms |" in page


def test_what_a_machine_lacks_is_named_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = frame.needs("shim", "no-such-program")
    assert lacking is not None
    assert "no-such-program" in lacking.why
    monkeypatch.setattr(frame, "REGISTRY", {"shim": lambda: [lacking]})
    assert program.main([]) == 0


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ([], ["scheduler", "scheduler-large", "store.informer"]),
        (["scheduler"], ["scheduler"]),
        (["sched"], ["scheduler", "scheduler-large"]),
        (["store", "scheduler-large"], ["scheduler-large", "store.informer"]),
        (["nothing"], []),
    ],
)
def test_an_exact_name_means_itself_and_no_other_a_start_means_all(names: list[str], meant: list[str]) -> None:
    assert frame.choose(names, ["scheduler", "scheduler-large", "store.informer"]) == meant


def test_a_name_that_means_nothing_is_refused_beside_one_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--list", "choose", "nothing"])
    assert "no benchmark is called nothing (there are: " in capsys.readouterr().err

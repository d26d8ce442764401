"""Benchmarks: a row that cannot run says why in the table, and the others run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import frame, page


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


def test_a_run_of_one_renews_its_section_of_the_page_and_says_when(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, figures = tmp_path / "page.md", iter([1.0, 2.0, 3.0])

    def measured(name: str) -> frame.Benchmark:
        return lambda: [frame.Row(name=f"{name}: a figure", ours=next(figures), unit="ms")]

    monkeypatch.setattr(frame, "REGISTRY", {name: measured(name) for name in ("store.list", "node", "vfio")})
    program.main(["store.list", "node", "--write", str(path)])
    before = page.parse(path.read_text())
    assert "## Not measured for this page\n\n- vfio: not run yet\n" in path.read_text()
    path.write_text(path.read_text().replace("not run yet", "needs hardware: none here"))
    monkeypatch.setattr(program, "_measured", lambda: "Measured another day.")
    assert program.main(["node", "--write", str(path)]) == 0
    after = page.parse(path.read_text())
    assert after["store.list"] == before["store.list"]
    assert re.match(r"Measured \d{4}-\d\d-\d\d on \d+ cores \(", before["store.list"])
    assert after["node"].startswith("Measured another day.\n")
    assert "| node: a figure | 3 ms |" in after["node"]
    why = page.reasons(path.read_text())
    assert why == {"vfio": "needs hardware: none here"}
    assert path.read_text() == page.emit(after, list(frame.REGISTRY), why), "a page that is read is written as it was"

    monkeypatch.setattr(frame, "REGISTRY", {"node": lambda: [frame.Row(name="now", ours=4, unit="ms")]})
    program.main(["--write", str(path)])
    assert list(page.parse(path.read_text())) == ["node"]
    assert "left out store.list, since no benchmark is called so" in capsys.readouterr().err


def test_a_file_that_is_no_page_of_benchmarks_is_not_overwritten_by_a_run_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Something else\n")
    monkeypatch.setattr(frame, "REGISTRY", {"node": lambda: [frame.Row(name="now", ours=4, unit="ms")]})
    with pytest.raises(SystemExit):
        program.main(["node", "--write", str(path)])
    assert "README.md is not a page of benchmarks" in capsys.readouterr().err
    assert path.read_text() == "# Something else\n"


def test_the_docs_page_has_sections_of_benchmarks_alone_each_with_its_day() -> None:
    text = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text()
    shown = page.parse(text)
    assert set(shown) <= set(frame.REGISTRY)
    why = page.reasons(text)
    assert why.keys() | shown.keys() == set(frame.REGISTRY)
    assert "not run yet" not in why.values(), "say there why, or measure it: python -m benchmarks NAME --write"
    assert [name for name, text in shown.items() if not re.match(r"Measured \d{4}-\d\d-\d\d on ", text)] == []


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

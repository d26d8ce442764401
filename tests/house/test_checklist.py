"""The checklist and the status page promise no test that is not there, and no security test without its naive way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house import measure

_PAGE = "docs/design/toolkit-checklist.md"
_AGENT = "docs/design/agent-checklist.md"
_SCHEDULER = "docs/design/scheduling-checklist.md"
_FIRST_HOUR = "docs/design/first-hour-checklist.md"
_CLAIMS = "docs/design/claims-checklist.md"
_VFIO = "docs/design/vfio.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_NOT_DONE = "not done"
_PATH = re.compile(r"`(tests/[\w/.*-]+)`")
_PATH_OR_NAME = re.compile(r"`(tests/[\w/.-]+|test_\w+\.py)`")
_STATUS = "docs/status.md"


def _page(root: Path, page: str = _PAGE) -> str:
    return (root / page).read_text()


def _rows(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line for line in lines if "| shown by |" not in line]


@pytest.mark.parametrize(
    ("page", "count"), [(_PAGE, 100), (_AGENT, 50), (_SCHEDULER, 50), (_FIRST_HOUR, 80), (_CLAIMS, 90), (_VFIO, 25)]
)
def test_every_test_that_a_checklist_names_is_there(root: Path, page: str, count: int) -> None:
    named = _NAMED.findall(_page(root, page))
    assert len(named) > count
    assert [f"{path}::{name}" for path, name in named if name not in measure.functions(root / path)] == []


@pytest.mark.parametrize("page", [_SCHEDULER, _CLAIMS])
def test_every_line_of_a_page_names_a_test_or_says_that_it_is_not_done(root: Path, page: str) -> None:
    assert [row for row in _rows(_page(root, page)) if not _NAMED.search(row) and _NOT_DONE not in row] == []


def test_every_line_names_a_test_or_says_that_it_is_not_done(root: Path) -> None:
    bare = [row for row in _rows(_page(root)) if not _NAMED.search(row) and _NOT_DONE not in row.lower()]
    assert bare == ["| LD_PRELOAD, symlink-swap race, hostile roots | the next section |"]


def test_every_advisory_has_a_test_that_shows_the_naive_way_breaking(root: Path) -> None:
    rows = _rows(_page(root).partition("## Security rules")[2])
    named = [_NAMED.findall(row) for row in rows]
    without = [
        f"{path}::{name}"
        for found in named
        for path, name in found
        if "naive" not in measure.functions(root / path)[name]
    ]
    assert without == []
    advisories = set(re.findall(r"(?:CVE-)?\b(20\d\d-\d{4,5})\b", " ".join(rows)))
    assert advisories >= {"2024-0132", "2024-0133", "2024-0134", "2025-23359", "2025-23266", "2025-23267", "2026-24260"}


def test_every_line_of_the_agents_names_a_test(root: Path) -> None:
    assert [row for row in _rows(_page(root, _AGENT)) if not _NAMED.search(row)] == []


@pytest.mark.parametrize("page", [_STATUS, _PAGE, _AGENT])
def test_every_test_file_that_a_page_names_is_there(root: Path, page: str) -> None:
    paths = [path for path in _PATH.findall((root / page).read_text()) if "::" not in path]
    assert [path for path in paths if not list(root.glob(path.rstrip("/")))] == []


def test_a_test_without_a_folder_lies_beside_the_one_named_before_it(root: Path) -> None:
    missing = []
    for row in _rows(_page(root, _STATUS)):
        folder = root
        for name in _PATH_OR_NAME.findall(row):
            path = (root if name.startswith("tests/") else folder) / name
            folder = path if path.is_dir() else path.parent
            if not path.exists():
                missing.append(f"{row[:20]}: {name}")
    assert missing == []

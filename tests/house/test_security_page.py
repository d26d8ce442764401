"""The security page promises no test that is not there, and no finding without one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house import measure

_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_UNTESTED = re.compile(r"\| no test: [^|]{20,} \|$")
"""A row without a test says why."""
_FINDINGS = (
    *(f"S{number}" for number in range(1, 13)),
    *(f"K{number}" for number in range(1, 18)),
    *(f"V{number}" for number in range(1, 18)),
    "C1",
    *(f"D{number}" for number in range(1, 4)),
    *(f"U{number}" for number in range(1, 17)),
    *(f"A{number}" for number in range(1, 47)),
    *(f"N{number}" for number in range(1, 16)),
)
"""Of the trials: security, Kubernetes, the vendor's parts, the CDI reader, Debian 13; of users of one machine; of later
attacks; and what the trials named beside defects."""


def _rows(root: Path) -> list[str]:
    lines = (root / "docs/design/security-findings.md").read_text().splitlines()
    return [line for line in lines if re.match(r"\| [ASKVCDUN]\d+ \|", line)]


def test_every_finding_of_the_trials_has_a_row(root: Path) -> None:
    assert {row.split("|")[1].strip() for row in _rows(root)} == set(_FINDINGS)


def test_every_finding_of_the_security_page_names_tests_that_are_there(root: Path) -> None:
    rows = _rows(root)
    missing = [row[:60] for row in rows if not _NAMED.search(row) and not _UNTESTED.search(row)]
    named = {pair for row in rows for pair in _NAMED.findall(row)}
    missing += [f"{path}::{name}" for path, name in named if name not in measure.functions(root / path)]
    assert missing == []

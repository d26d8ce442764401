"""Reads and writes sets of completion indexes as Kubernetes has them: `0,2-4`. Pure.

Source: kubernetes pkg/controller/job/indexed_job_utils.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def parse(text: str, below: int) -> frozenset[int]:
    """Return the indexes of a text that are below a number; what is not an index is skipped."""
    return frozenset(number for part in text.split(",") for number in _range(part, below))


def _range(part: str, below: int) -> Iterator[int]:
    first, _, last = part.partition("-")
    if first.isdecimal() and (not last or last.isdecimal()):
        yield from range(int(first), min(int(last or first), below - 1) + 1)


def emit(numbers: Iterable[int]) -> str:
    """Return indexes as a text; three in a row or more become a range."""
    found: list[str] = []
    row: list[int] = []
    for number in [*sorted(numbers), -1]:
        if row and number == row[-1] + 1:
            row.append(number)
            continue
        found += [f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row)
        row = [number]
    return ",".join(found)

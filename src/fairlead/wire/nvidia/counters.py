"""Reads dcgm-exporter's list of counters: lines of a DCGM field, a Prometheus type and a help text.

Lines that begin with `#` are remarks. A type is gauge, counter, or label, for a field that is a label of every series;
histogram and summary are Prometheus' and no field of DCGM's has them.
Source: NVIDIA dcgm-exporter, etc/default-counters.csv and internal/pkg/counters.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LARGEST_BYTES: Final = 1 << 20
GAUGE, COUNTER, LABEL = "gauge", "counter", "label"
_KINDS: Final = (GAUGE, COUNTER, LABEL)
_FIELD: Final = re.compile(r"DCGM_(?:FI|EXP)_[A-Z0-9_]{1,120}")
_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One line of the list."""

    field: str
    kind: str
    text: str
    line: int


def is_list(data: bytes) -> bool:
    """Return whether a file is such a list, by its first line that is not a comment."""
    lines = (line.strip() for line in data[:LARGEST_BYTES].decode(errors="replace").splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first.startswith("DCGM_") and "," in first


def read(data: bytes) -> tuple[tuple[Counter, ...], tuple[str, ...]]:
    """Return the counters of a list, and every problem with its line."""
    if len(data) > LARGEST_BYTES:
        return (), (f"it is larger than {LARGEST_BYTES} bytes",)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return (), ("it is not UTF-8 text",)
    found: dict[str, Counter] = {}
    problems: list[str] = []
    for number, row in _rows(text):
        problem = _problem(row, found)
        if problem:
            problems.append(f"line {number}: {problem}")
        else:
            found[row[0]] = Counter(field=row[0], kind=row[1], text=row[2], line=number)
    return tuple(found.values()), tuple(problems)


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            [row] = csv.reader([line], skipinitialspace=True, strict=True)
        except (csv.Error, ValueError):
            row = [line]
        yield number, [column.strip() for column in row]


def _problem(row: list[str], found: dict[str, Counter]) -> str:
    if len(row) != _COLUMNS:
        return f'"{row[0]:.60}" is followed by {len(row) - 1} columns, not a type and a help text ("…" quotes a comma)'
    field, kind, text = row
    if _FIELD.fullmatch(field) is None:
        return f'"{field:.60}" is not the name of a field, as DCGM_FI_DEV_GPU_UTIL is'
    if kind not in _KINDS:
        return f'type "{kind:.30}" of {field} is not one of {", ".join(_KINDS)}'
    if not text.isprintable():
        return f"the help text of {field} has characters that cannot be printed"
    if field in found:
        return f"{field} is on line {found[field].line} already"
    return ""

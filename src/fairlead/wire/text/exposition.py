"""Emits Prometheus' text format.

By hand, because `prometheus_client` ends the names of counters in `_total`, and names that others chose do not.

Source: Prometheus, exposition formats, text-based format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All series of one name."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    text: str
    series: list[tuple[str, float]] = field(default_factory=list)
    """Labels as `labels` writes them, and the value."""


def labels(values: Mapping[str, str]) -> str:
    """Return labels as they stand between a series' name and its value; empty ones are left out, as they mean none."""
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items() if value)
    return f"{{{pairs}}}" if pairs else ""


def emit(families: Iterable[Family]) -> str:
    """Return the text of all families that have a series."""
    return "".join(line for family in families if family.series for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.text.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for pairs, value in family.series:
        yield f"{family.name}{pairs} {_number(value)}\n"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))

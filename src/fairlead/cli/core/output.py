"""Prints listings and values: plain columns for people, JSON, YAML and names for programs.

Columns are as wide as their longest value. Where the terminal is narrower than the table, columns are left out by rank,
then a last column of sentences goes on in further lines, or long values are shortened; a line on standard error says
what was left out. A pipe reads every column, uncut.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import click
import msgspec

from fairlead.cli.core import plaintext

T = TypeVar("T")

FORMS: Final = ("table", "wide", "json", "yaml", "name")
_EVERY_S: Final = 2.0
_GAP: Final = "   "
_NARROWEST: Final = 20
_READABLE: Final = 30
"""Room that a folded column needs beside the others; with less its text stands below them."""
_BELOW: Final = 6
"""How far text below its row is set in."""


@dataclass(frozen=True)  # no slots: typing sets __orig_class__ on generic instances, and 3.11 fails with both
class Column(Generic[T]):
    """One column of a table."""

    title: str
    text: Callable[[T], str]
    is_wide: bool = False
    """Shown with `-o wide` only."""
    rank: int = 0
    """Left out of a narrow terminal, the highest first; 0: always shown."""
    is_folded: bool = False
    """Goes on in further lines where the terminal is too narrow; for sentences, in the last column."""


def show_listing(items: Sequence[T], columns: Sequence[Column[T]], *, form: str, name: Callable[[T], str]) -> None:
    """Print a listing.

    Args:    form: one of `FORMS`.   name: what `-o name` prints of an item, one a line.
    """
    if form in {"json", "yaml"}:
        show_value(items, form=form)
        return
    if form == "name":
        for item in items:
            plaintext.echo(name(item))
        return
    chosen = [column for column in columns if form == "wide" or not column.is_wide]
    rows = [[column.title for column in chosen], *([column.text(item) for column in chosen] for item in items)]
    width = None if form == "wide" else terminal_columns()
    is_folded = width is not None and bool(chosen) and chosen[-1].is_folded
    kept, left_out = fitting(rows, [column.rank for column in chosen], width, is_folded=is_folded)
    shown = [[row[at] for at in kept] for row in rows]
    for line in folded(shown, width) if width is not None and is_folded else lines_of(shown):
        plaintext.echo(line if width is None else shortened(line, width))
    if left_out and sys.stderr.isatty():
        plaintext.echo(f"left out for want of room: {', '.join(left_out)}; `-o wide` shows every column", err=True)


def terminal_columns() -> int | None:
    """Return how wide the terminal is, or COLUMNS says; None: output goes to no terminal and nothing says."""
    from fairlead.cli.core import invocation

    context = click.get_current_context(silent=True)
    named = invocation.current(context).env.get("COLUMNS", "") if context is not None else ""
    if named.isascii() and named.isdecimal() and int(named):
        return max(_NARROWEST, int(named))
    try:
        return max(_NARROWEST, os.get_terminal_size(sys.stdout.fileno()).columns) if sys.stdout.isatty() else None
    except (OSError, ValueError):
        return None


def shortened(line: str, width: int) -> str:
    """Return the line, cut with an ellipsis where it is longer than the terminal is wide."""
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def fitting(
    rows: Sequence[Sequence[str]], ranks: Sequence[int], width: int | None, *, is_folded: bool = False
) -> tuple[list[int], list[str]]:
    """Return which columns fit, and the titles of those left out, the highest rank first.

    Args:    is_folded: the last column goes on in further lines: no other column is left out to make room for it.
    """
    kept, left_out = list(range(len(ranks))), list[str]()
    widths = [max(len(plaintext.cell(row[at])) or 1 for row in rows) for at in kept]
    if is_folded:
        widths[-1] = len(rows[0][-1])
    while width is not None and sum(widths[at] for at in kept) + len(_GAP) * (len(kept) - 1) > width:
        last = max(kept, key=lambda at: (ranks[at], at))
        if not ranks[last]:
            break
        kept.remove(last)
        left_out.append(rows[0][last])
    return kept, left_out


def lines_of(rows: Sequence[Sequence[str]], *, gap: str = _GAP) -> Iterable[str]:
    """Yield rows as lines with aligned columns; an empty value is shown as `-`."""
    filled = [[plaintext.cell(value) or "-" for value in row] for row in rows]
    widths = [max(len(row[index]) for row in filled) for index in range(len(filled[0]))] if filled else []
    for row in filled:
        yield gap.join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()


def wrapped(text: str, *, indent: int) -> list[str]:
    """Return a text in lines that fit beside an indent; a word, such as a path, is never broken."""
    width = terminal_columns()
    if width is None:
        return [text]
    room = max(_NARROWEST, width - indent)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]


def folded(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield rows as lines; the last column, where it is longer than its room, goes on in lines below, in words."""
    lines = tuple(lines_of([row[:-1] for row in rows]))
    left = max(map(len, lines), default=0) + len(_GAP)
    is_beside = width - left >= _READABLE
    for line, row in zip(lines, rows, strict=True):
        text = plaintext.cell(row[-1]) or "-"
        if left + len(text) <= width:
            yield f"{line:<{left}}{text}"
            continue
        if not is_beside:
            yield line
        parts = textwrap.wrap(text, width - (left if is_beside else _BELOW), break_on_hyphens=False)
        for at, part in enumerate(parts):
            before = line if is_beside and not at else ""
            yield f"{before:<{left if is_beside else _BELOW}}{part}"


def show_value(value: Any, *, form: str) -> None:
    """Print one value as JSON or YAML."""
    plain = msgspec.to_builtins(value)
    if form == "yaml":
        import yaml

        # Escapes in YAML need quotes: where one is needed, its emitter writes all but ASCII so.
        plaintext.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=not plaintext.is_hidden(plain)), nl=False)
    else:
        plaintext.echo(plaintext.as_json(plain, indent=2))


def repeat(show: Callable[[], None]) -> None:
    """Call `show` every two seconds until Ctrl-C, which is not an error; a terminal is cleared before each."""
    try:
        while True:
            if sys.stdout.isatty():
                click.clear()
            show()
            sys.stdout.flush()
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return


def utc_time(at: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339, in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(text: str | None, *, now: dt.datetime | None = None) -> str:
    """Return how long ago an RFC 3339 time was, in its two largest units; empty for None."""
    if text is None:
        return ""
    elapsed = (now or dt.datetime.now(dt.UTC)) - dt.datetime.fromisoformat(text)
    return span(max(0.0, elapsed.total_seconds()))


def span(seconds: float) -> str:
    """Return a length of time a person can read, `45s`, `3m10s`, `5h2m`, `12d3h`."""
    whole = int(seconds)
    for large, small, size, unit in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            count, rest = divmod(whole, size)
            return f"{count}{large}{rest // unit}{small}" if rest // unit else f"{count}{large}"
    return f"{whole}s"


def moment(seconds: float) -> str:
    """Return a measured time with three digits that mean something, `0.8 ms`, `12 ms`, `1.25 s`, `2m5s`."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else span(seconds)


def size(count: float) -> str:
    """Return bytes in binary units, `80 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} GiB" if count >= 10 or count == int(count) else f"{count:.1f} GiB"

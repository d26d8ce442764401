"""Declares a finding of `fairlead doctor` and prints it."""

from __future__ import annotations

import textwrap
from typing import Final

import click
import msgspec

from fairlead.cli.core import output, plaintext

_MARK: Final = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red"), "skip": ("skip", "cyan")}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One check and what it found."""

    check: str
    level: str
    """`ok`, `warn` (works, with less), `fail` (keeps a container from its GPUs) or `skip` (not checked)."""
    what: str
    why: str = ""
    fix: str = ""


def show(finding: Finding) -> None:
    """Print a finding: its mark, check and words, then why it matters and how to mend it."""
    mark, color = _MARK[finding.level]
    head = f"{mark:<4}  {finding.check:<12}  "
    first, *more = _lines(finding.what, len(head))
    plaintext.echo(f"{click.style(f'{mark:<4}', fg=color)}{head[4:]}{first}")
    for line in more:
        plaintext.echo(f"{'':{len(head)}}{line}")
    for label, text in (("why", finding.why), ("fix", finding.fix)):
        for at, line in enumerate(_lines(text, len(head) + 5) if text else ()):
            plaintext.echo(f"{'':{len(head)}}{label + ': ' if not at else '     '}{line}")


def _lines(text: str, indent: int) -> list[str]:
    """Return a text in lines that fit beside an indent; a word, such as a path, is never broken."""
    width = output.terminal_columns()
    if width is None:
        return [text]
    room = max(20, width - indent)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]

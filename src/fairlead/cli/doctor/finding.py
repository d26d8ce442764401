"""Declares a finding of `fairlead doctor` and prints it."""

from __future__ import annotations

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
    first, *more = output.wrapped(finding.what, indent=len(head))
    plaintext.echo(f"{click.style(f'{mark:<4}', fg=color)}{head[4:]}{first}")
    for line in more:
        plaintext.echo(f"{'':{len(head)}}{line}")
    for label, text in (("why", finding.why), ("fix", finding.fix)):
        for at, line in enumerate(output.wrapped(text, indent=len(head) + 5) if text else ()):
            plaintext.echo(f"{'':{len(head)}}{label + ': ' if not at else '     '}{line}")

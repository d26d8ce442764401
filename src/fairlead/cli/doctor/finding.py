"""Declares a finding of `fairlead doctor` and prints it."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from fairlead.cli.core import plaintext

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
    plaintext.echo(f"{click.style(f'{mark:<4}', fg=color)}  {finding.check:<12}  {finding.what}")
    for label, text in (("why", finding.why), ("fix", finding.fix)):
        if text:
            plaintext.echo(f"{'':20}{label}: {text}")

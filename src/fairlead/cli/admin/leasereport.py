"""`fairlead lease report` and `fairlead lease baseline`: shows and proves verifications, and approves firmware.

Works on the machine whose ledger it is, with or without a running agent: reports are read from their files, and an
approval is a file that the agent looks at every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from fairlead import errors, settings
from fairlead.cli.core import invocation, options, output, plaintext
from fairlead.cli.core.login import person
from fairlead.cli.core.output import Column
from fairlead.node.lease import baselines, ledgerfile, reports
from fairlead.plan.lease import baseline
from fairlead.plan.lease.row import Row
from fairlead.plan.lease.verification import Reuse
from fairlead.serve.v1.leases.view import BaselineView, baseline_view, baseline_views

_REPORTS: Final = (
    Column[reports.Report]("ID", lambda item: item.id),
    Column[reports.Report]("GPU", lambda item: item.gpu, rank=2),
    Column[reports.Report]("EPOCH", lambda item: str(item.epoch), rank=3),
    Column[reports.Report]("VERDICT", lambda item: item.verdict),
    Column[reports.Report]("SECONDS", lambda item: f"{item.total_s:.1f}"),
    Column[reports.Report]("AT", lambda item: item.at, rank=1),
    Column[reports.Report]("WHY", lambda item: item.message or "-", is_folded=True),
)


def _approved_by(item: BaselineView) -> str:
    return (", ".join(item.approvers) or "nobody") + (", one of two" if item.waits else "")


_BASELINES: Final = (
    Column[BaselineView]("BOARD", lambda item: item.board),
    Column[BaselineView]("APPROVED BY", _approved_by),
    Column[BaselineView]("VBIOS", lambda item: ",".join(item.vbios) or "-", rank=1),
    Column[BaselineView]("INFOROM", lambda item: ",".join(item.inforom) or "-", rank=2),
    Column[BaselineView]("LANES", lambda item: str(item.link_width), rank=3),
    Column[BaselineView]("NOT APPROVED", lambda item: ",".join(item.seen_only) or "-"),
)


@click.command("report")
@click.argument("name", metavar="[ID]", default="")
@click.option("--verify", is_flag=True, help="prove signatures and chain, and that the ledger's reports are there")
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="public key; default: this node's own")
@options.output_option
@options.settings_options("state", hidden=True)
def report(config: settings.Settings, *, name: str, verify: bool, key: Path | None, form: str) -> None:
    """Show one verification of a GPU, or list them all with what each took."""
    folder = config.lease_folder
    found = _verified(folder, key) if verify else reports.read(folder)
    if name:
        chosen = [one for one in found if one.id == name or one.id.endswith(f"-{name}")]
        if not chosen:
            hint = "`fairlead lease report` lists them"
            raise errors.NotFound(f'no report "{name}" in {folder}', reason="ReportUnknown", hint=hint)
        _show(chosen[0], form=form)
        return
    output.show_listing(found, _REPORTS, form=form, name=lambda item: item.id)
    if form == "table":
        for line in prices(found):
            plaintext.echo(line, err=True)


def prices(found: Sequence[reports.Report]) -> list[str]:
    """Return what each reuse policy has cost in seconds between two tenants, one line each."""
    lines = []
    for reuse in Reuse:
        took = sorted(one.total_s for one in found if one.reuse == reuse.value and one.verdict == "pass")
        if took:
            lines.append(
                f"lease.reuse={reuse.value}: {took[len(took) // 2]:.1f} s between two tenants (median of {len(took)}, "
                f"longest {took[-1]:.1f} s)"
            )
    return lines


def _verified(folder: Path, key: Path | None) -> tuple[reports.Report, ...]:
    from fairlead.node.lease import signing  # it loads a large library

    known = signing.Verifier(key or folder / signing.PUBLIC)
    path = folder / ledgerfile.NAME
    rows: Mapping[str, Row] = ledgerfile.read(path)[0] if path.exists() else {}
    found = reports.verify(folder, known, known=reports.named(rows))
    plaintext.echo(f"{len(found)} reports, each signed by key {known.name}, the chain is whole", err=True)
    return found


def _show(one: reports.Report, *, form: str) -> None:
    if form in {"json", "yaml"}:
        output.show_value(one, form=form)
        return
    if form == "name":
        plaintext.echo(one.id)
        return
    took = ", ".join(f"{name} {value:.1f} s" for name, value in one.seconds.items())
    plaintext.echo(f"{one.id}: {one.verdict}{f' ({one.message})' if one.message else ''}")
    plaintext.echo(f"GPU {one.gpu}, epoch {one.epoch}, node {one.node}, boot {one.boot_id}")
    plaintext.echo(f"at {one.at}; {took or 'nothing was done'}")
    for item in one.findings:
        expected = f", expected {item.expected}" if item.expected else ""
        plaintext.echo(f"  {item.check:12} {item.verdict.value:5} {item.message or item.observed}{expected}".rstrip())


@click.group("baseline")
def group() -> None:
    """Approve the firmware that GPUs may have: what was seen allows nothing by itself."""


@group.command("list")
@options.output_option
@options.settings_options("state", hidden=True)
def listing(config: settings.Settings, *, form: str) -> None:
    """List the kinds of boards that were seen here, and what is approved for each."""
    folder = config.lease_folder
    learned, decided = baselines.read_learned(folder), baselines.read_decided(folder)
    found = baseline_views(learned, decided)
    output.show_listing(found, _BASELINES, form=form, name=lambda item: item.board)


@group.command("approve")
@click.argument("board")
@click.option("--by", metavar="NAME", help="who approves, where this machine cannot know (kubectl exec)")
@options.settings_options("state", hidden=True)
def approve(config: settings.Settings, *, board: str, by: str | None) -> None:
    """Allow every firmware that was seen on a kind of board; `list` shows it first.

    Two persons must, unless lease.approvals is 1: the first one proposes, the second one puts it in force.
    """
    folder = config.lease_folder
    call = invocation.current(click.get_current_context())
    learned, who = baselines.read_learned(folder), person.name(call.env, claimed=by or "")
    decided = baselines.decide(folder, lambda known, now: baseline.approve(now, known, board, by=who, at=time.time()))
    found = baseline_view(baseline.standing(board, learned, decided))
    plaintext.echo(
        f"{board}: vbios {', '.join(found.vbios)}; inforom {', '.join(found.inforom)}; {found.link_width} lanes"
    )
    if found.waits:
        plaintext.echo(f"approved by {who}; a second person must, before GPUs of this board are given away", err=True)


@group.command("forget")
@click.argument("board")
@options.settings_options("state", hidden=True)
def forget(config: settings.Settings, *, board: str) -> None:
    """Take an approval back: GPUs of this board are not given away from their next verification on."""
    baselines.decide(config.lease_folder, lambda _, now: baseline.forget(now, board))
    plaintext.echo(f"{board} has no baseline now")

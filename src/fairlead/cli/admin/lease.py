"""`fairlead leases` and `fairlead lease …`: shows who has which GPU by the node's ledger, and keeps GPUs back.

Works on the machine whose ledger it is, with or without a running agent: it reads the file, and sends requests to the
agent's socket.
"""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Final

import click
import msgspec

from fairlead import errors, settings
from fairlead.cli.admin import leasereport
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.output import Column
from fairlead.node.lease import ledgerfile
from fairlead.plan.lease import intent
from fairlead.plan.lease.row import Row, State
from fairlead.serve.v1.leases.view import LeaseView, holders, view_of


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a GPU's history."""

    at: str
    event: str
    before: str
    after: str
    epoch: int
    by: str
    holders: tuple[str, ...]
    message: str


_SHORT: Final = len("GPU-88535201")
"""Characters of a UUID that are shown, as in every table; verbs accept them."""
_COLUMNS: Final = (
    Column[LeaseView]("GPU", lambda item: item.gpu[:_SHORT]),
    Column[LeaseView]("STATE", lambda item: f"{item.state}, condemned" if item.condemned else item.state),
    Column[LeaseView]("SINCE", lambda item: output.age(item.since) if item.since else "-", rank=2),
    Column[LeaseView]("EPOCH", lambda item: str(item.epoch), rank=3),
    Column[LeaseView]("HOLDERS", lambda item: ",".join(item.holders) or "-", rank=1),
    Column[LeaseView]("LEASE", lambda item: str(item.lease) if item.lease else "-", is_wide=True),
    Column[LeaseView]("UUID", lambda item: item.gpu, is_wide=True),
    Column[LeaseView]("VERIFIED BY", lambda item: item.verified_by or "-", is_wide=True),
    Column[LeaseView]("WHY", lambda item: item.message or item.reason or "-", is_folded=True),
)
_HISTORY: Final = (
    Column[EntryView]("AT", lambda item: item.at),
    Column[EntryView]("EPOCH", lambda item: str(item.epoch)),
    Column[EntryView]("EVENT", lambda item: item.event),
    Column[EntryView]("FROM", lambda item: item.before, rank=2),
    Column[EntryView]("TO", lambda item: item.after),
    Column[EntryView]("BY", lambda item: item.by or "-", rank=3),
    Column[EntryView]("HOLDERS", lambda item: ",".join(item.holders) or "-", rank=1),
    Column[EntryView]("WHY", lambda item: item.message or "-", is_folded=True),
)


@click.command("leases")
@options.output_option
@options.settings_options("state", hidden=True)
def leases(config: settings.Settings, *, form: str) -> None:
    """List every GPU of this machine's ledger: its state between tenants, who has it, why it is kept back."""
    rows, _ = ledgerfile.read(config.lease_folder / ledgerfile.NAME)
    found = [view_of(row) for _, row in sorted(rows.items())]
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.gpu)


@click.group("lease")
def group() -> None:
    """Keep GPUs back from tenants, give them back, and read what happened to them."""


group.add_command(leasereport.report)
group.add_command(leasereport.group)


@group.command("quarantine")
@click.argument("gpu")
@click.option("--why", default="", metavar="TEXT", help="why; shown wherever the GPU is")
@options.settings_options("state", hidden=True)
def quarantine(config: settings.Settings, *, gpu: str, why: str) -> None:
    """Give a GPU to no tenant until it is released by hand; one that is held, as soon as it comes back."""
    row = _ask(config.lease_folder, intent.QUARANTINE, gpu, why)
    later = "" if row.state is State.QUARANTINED else f" when it comes back: it is {row.state.value}"
    plaintext.echo(f"{row.key} is in quarantine{later}")


@group.command("release")
@click.argument("gpu")
@click.option("--why", default="", metavar="TEXT", help="why; kept in the history")
@options.settings_options("state", hidden=True)
def release(config: settings.Settings, *, gpu: str, why: str) -> None:
    """Give a GPU back that was kept back: it is cleaned and verified before a tenant gets it."""
    row = _ask(config.lease_folder, intent.RELEASE, gpu, why)
    plaintext.echo(f"{row.key} is {row.state.value}; it is free once it is verified")


@group.command("history")
@click.argument("gpu")
@options.output_option
@options.settings_options("state", hidden=True)
def history(config: settings.Settings, *, gpu: str, form: str) -> None:
    """List what happened to a GPU, oldest first: who had it, who kept it back, when it was verified."""
    rows, entries = ledgerfile.read(config.lease_folder / ledgerfile.NAME)
    is_asked = intent.is_index(gpu)  # only the agent knows indices
    key = (_ask(config.lease_folder, intent.SHOW, gpu, "") if is_asked else intent.find_row(rows, gpu)).key
    found = [_entry(one) for one in entries if one.row.key == key]
    output.show_listing(found, _HISTORY, form=form, name=lambda item: str(item.epoch))


def _entry(one: ledgerfile.Entry) -> EntryView:
    return EntryView(
        at=output.utc_time(one.at),
        event=one.event,
        before=one.before,
        after=one.row.state.value,
        epoch=one.row.epoch,
        by=one.by,
        holders=holders(one.row),
        message=one.row.message,
    )


def _ask(folder: Path, verb: str, gpu: str, why: str) -> Row:
    if not why.isprintable():
        raise errors.Invalid(f"{why!r} holds a control character", reason="TextInvalid", hint="write one plain line")
    from fairlead.node.lease import requestsocket  # it loads asyncio

    return requestsocket.ask(folder, requestsocket.Request(verb=verb, gpu=gpu, by=getpass.getuser(), why=why))

"""`fairlead usage`: says who held GPUs for how long, and what that costs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.view import moment
from fairlead.serve.v1.usage.view import GPUCheck, UsageCheck, UsageReport, UsageRow

_CHECKS: tuple[Column[GPUCheck], ...] = (
    Column("GPU", lambda item: item.gpu),
    Column("CHARGED HOURS", lambda item: _hours(item.charged_seconds)),
    Column("WALL HOURS", lambda item: _hours(item.wall_seconds)),
    Column("TOO MUCH", lambda item: "-" if not item.excess_seconds else f"{item.excess_seconds:,.0f} s"),
)


_SINCE = click.option("--since", callback=moment.parse, help="begin: 7d, 2026-11-01 or a time; default: the month, UTC")
_UNTIL = click.option("--until", callback=moment.parse, help="end, not included; default: now")


@click.group(invoke_without_command=True)
@_SINCE
@_UNTIL
@click.option(
    "--by", default="tenancy,model", show_default=True, help="tenancy, namespace, user, model, gpu, node, lease, day"
)
@click.option("--focus", metavar="FILE", help="write every hour of every lease as CSV of FOCUS 1.2; -: to the output")
@click.option("--parquet", metavar="FILE", help="the same as Parquet (extra fairlead[parquet])")
@options.output_option
@options.cluster_options
@click.pass_context
def usage(ctx: click.Context, /, **asked: Any) -> None:
    """Say who held GPUs for how long, and what that costs; from the node's ledger (lease.ledger=on)."""
    if ctx.invoked_subcommand is None:
        _show(**asked)


@usage.command("check")
@_SINCE
@_UNTIL
@options.output_option
@options.pass_client
def check(client: Client, *, since: str | None, until: str | None, form: str) -> None:
    """Check that tenancies together are charged no more of a GPU than time went by; exit code 4: they are."""
    found = client.call("GET", "/v1/usage/check", UsageCheck, params={"since": since, "until": until})
    output.show_listing(found.items, _CHECKS, form=form, name=lambda item: item.gpu)
    if form in {"table", "wide"}:
        for note in found.notes:
            plaintext.echo(note, err=True)
    if wrong := [one for one in found.items if one.excess_seconds > 0]:
        more = sum(one.excess_seconds for one in wrong)
        message = f"{len(wrong)} GPUs are charged {more:,.0f} s more than time went by, {wrong[0].gpu} among them"
        hint = "the agents' clocks, and leases that overlap: `fairlead leases`"
        raise errors.Conflict(message, reason="UsageExceedsTime", hint=hint)


@options.pass_client
def _show(
    client: Client,
    *,
    since: str | None,
    until: str | None,
    by: str,
    focus: str | None,
    parquet: str | None,
    form: str,
) -> None:
    period = {"since": since, "until": until}
    if focus is not None:
        _export(client, period, focus)
    if parquet is not None:
        _export_parquet(client, period, parquet)
    if focus is not None or parquet is not None:
        return
    found = client.call("GET", "/v1/usage", UsageReport, params={**period, "group_by": by})
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
        return
    columns = (*map(_group_column, found.items[0].group if found.items else ()), *_columns(found))
    output.show_listing(found.items, columns, form=form, name=lambda item: "/".join(item.group.values()))
    if form != "name":
        _close(found)


def _group_column(key: str) -> Column[UsageRow]:
    return Column[UsageRow](key.upper(), lambda item: item.group[key])


def _columns(found: UsageReport) -> tuple[Column[UsageRow], ...]:
    """Return the columns of figures; costs only where there are prices."""
    hours = Column[UsageRow]("GPU HOURS", lambda item: _hours(item.gpu_seconds))
    cost = Column[UsageRow](f"COST {found.currency}", _money)
    return (hours,) if found.total.unpriced_seconds == found.total.gpu_seconds else (hours, cost)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3f}"


def _money(item: UsageRow) -> str:
    return "-" if item.unpriced_seconds == item.gpu_seconds else f"{float(item.cost):,.2f}"


def _close(found: UsageReport) -> None:
    """Say the sum, and what a reader of the table must know."""
    total, is_priced = found.total, found.total.unpriced_seconds < found.total.gpu_seconds
    money = f", {_money(total)} {found.currency}" if is_priced else ""
    plaintext.echo(f"{_hours(total.gpu_seconds)} GPU hours{money} from {found.since} to {found.until}", err=True)
    if total.unpriced_seconds and is_priced:
        text = f"{_hours(total.unpriced_seconds)} of the hours have no price: set metering.prices"
        plaintext.echo(text, err=True)
    if found.unattributed_seconds:
        text = f"{_hours(found.unattributed_seconds)} GPU hours more were held by what is not known: charged to no one"
        plaintext.echo(text, err=True)
    for note in found.notes:
        plaintext.echo(note, err=True)


def _export(client: Client, period: dict[str, Any], target: str) -> None:
    with client.stream("GET", "/v1/usage/focus", params=period) as pieces, _opened(target) as out:
        for piece in pieces:
            out.write(piece)


def _export_parquet(client: Client, period: dict[str, Any], target: str) -> None:
    from fairlead.cli.view import parquet

    parquet.library()  # before a file is made
    with client.stream("GET", "/v1/usage/focus", params=period) as pieces, _opened(target) as out:
        parquet.write(pieces, out)


@contextlib.contextmanager
def _opened(target: str) -> Iterator[BinaryIO]:
    """Give a file that is not there yet, or the output. Raises: RequestError (`FileUnwritable`)."""
    if target == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with Path(target).open("xb") as file:
            yield file
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"cannot write {target}: {reason}"
        raise errors.RequestError(message, reason="FileUnwritable", hint="name a file that is not there") from error

"""`fairlead audit`: shows who changed what by TLS, and who was refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import click

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.view import moment
from fairlead.serve.accounts.audit import AuditList, AuditView

_PAGE: Final = 1000


def _outcome(item: AuditView) -> str:
    if item.status is None:
        return "unknown"
    times = f"{item.count} times" if item.count > 1 else ""
    return " ".join(part for part in (str(item.status), item.reason, times) if part)


_COLUMNS: Final = (
    Column[AuditView]("AT", lambda item: f"{item.at[:19]}Z"),
    Column[AuditView]("ACCOUNT", lambda item: item.account or "-"),
    Column[AuditView]("KEY", lambda item: item.key or "-", is_wide=True),
    Column[AuditView]("FROM", lambda item: item.peer, rank=2),
    Column[AuditView]("ACTION", lambda item: item.action or "-", rank=1),
    Column[AuditView]("TENANCY", lambda item: item.tenancy or "-", rank=3),
    Column[AuditView]("OUTCOME", _outcome),
    Column[AuditView]("REQUEST", lambda item: f"{item.method} {item.object}"),
    Column[AuditView]("ID", lambda item: item.request, is_wide=True),
)


@click.command()
@click.option("--since", callback=moment.parse, help="begin: 12h, 7d, 2026-11-01 or a time; default: the first entry")
@click.option("--until", callback=moment.parse, help="end, not included; default: now")
@click.option("--user", "account", default="", metavar="NAME", help="requests of this account alone")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="the last so many entries"
)
@options.output_option
@options.pass_client
def audit(client: Client, *, since: str | None, until: str | None, account: str, limit: int, form: str) -> None:
    """Show who changed what by TLS and who was refused, oldest first; what root does by the socket is not in it."""
    asked = {"since": since, "until": until, "account": account or None}
    found = tuple(islice(_entries(client, asked, limit), limit))[::-1]
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.request)


def _entries(client: Client, asked: dict[str, Any], limit: int) -> Iterator[AuditView]:
    cursor: str | None = None
    while True:
        params = {**asked, "limit": min(limit, _PAGE), "cursor": cursor}
        page = client.call("GET", "/v1/audit", AuditList, params=params)
        yield from page.items
        if not page.next:
            return
        cursor = page.next

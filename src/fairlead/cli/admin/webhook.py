"""`fairlead webhook`: where events of containers, budgets and GPUs are sent to."""

from __future__ import annotations

from typing import Final

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.serve.v1.webhooks.view import TestView, WebhookList, WebhookRequest
from fairlead.serve.webhooks import port
from fairlead.serve.webhooks.port import DeliveryView, NewWebhook, WebhookDetail, WebhookView


def events(item: WebhookView) -> str:
    """Return kinds of events in a cell."""
    if not item.events:
        return "all"
    return item.events[0] if len(item.events) == 1 else f"{item.events[0]} +{len(item.events) - 1}"


_COLUMNS: tuple[Column[WebhookView], ...] = (
    Column("ID", lambda item: item.id),
    Column("TENANCY", lambda item: item.tenancy or "-"),
    Column("EVENTS", events),
    Column("PENDING", lambda item: str(item.pending)),
    Column("FORM", lambda item: item.format, is_wide=True),
    Column("URL", lambda item: item.url),
)
DELIVERIES: tuple[Column[DeliveryView], ...] = (
    Column("AT", lambda item: item.created_at),
    Column("EVENT", lambda item: item.type),
    Column("STATE", lambda item: item.state),
    Column("TRIES", lambda item: str(item.attempts)),
    Column("ANSWER", lambda item: "-" if item.status is None else str(item.status)),
    Column("ID", lambda item: item.id, is_wide=True),
    Column("ERROR", lambda item: item.error or "-", is_wide=True),
)


_FORMATS: Final = tuple(one for one in port.FORMATS if one != port.MATRIX)
"""A Matrix room needs an account's token, which `fairlead notify add` takes."""


@click.group("webhook")
def webhook() -> None:
    """Have events sent to an address, signed as Standard Webhooks says."""


@webhook.command("create")
@click.argument("url", metavar="URL")
@click.option("--tenancy", "-T", "whose", default="", metavar="NAME", help="whose events  [default: all]")
@click.option("--event", "kinds", multiple=True, metavar="KIND", help="as container.failed or container.*")
@click.option("--format", "form", type=click.Choice(_FORMATS), default=port.FAIRLEAD, help="signed, or for people")
@options.pass_client
def create(client: Client, *, url: str, whose: str, kinds: tuple[str, ...], form: str) -> None:
    """Make a webhook; its secret is printed once, and nothing else."""
    body = WebhookRequest(url=url, tenancy=whose, events=kinds, format=form)
    made = client.call("POST", "/v1/webhooks", NewWebhook, body=body)
    plaintext.echo(made.secret)
    plaintext.echo(f"{made.webhook.id}: the secret is not shown again; `fairlead webhook test` tries it", err=True)


@webhook.command("list")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, form: str) -> None:
    """List webhooks."""
    found = client.call("GET", "/v1/webhooks", WebhookList)
    output.show_listing(found.items, _COLUMNS, form=form, name=lambda item: item.id)


@webhook.command("show")
@click.argument("name", metavar="ID")
@options.output_option
@options.pass_client
def show(client: Client, *, name: str, form: str) -> None:
    """Show the last events on their way to a webhook, and how they went."""
    show_deliveries(client.call("GET", _path(name), WebhookDetail), form)


def show_deliveries(found: WebhookDetail, form: str) -> None:
    """Show what was or is on its way, and why the newest that failed did."""
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
        return
    output.show_listing(found.deliveries, DELIVERIES, form=form, name=lambda item: item.id)
    if form != "name" and (failed := next((item for item in found.deliveries if item.error), None)):
        plaintext.echo(f"{failed.type}: {failed.error}", err=True)


@webhook.command("delete")
@click.argument("name", metavar="ID")
@options.pass_client
def delete(client: Client, *, name: str) -> None:
    """Remove a webhook and what is on its way to it."""
    client.call("DELETE", _path(name), type(None))
    plaintext.echo(f"{name}: deleted")


@webhook.command("test")
@click.argument("name", metavar="ID")
@options.pass_client
def test(client: Client, *, name: str) -> None:
    """Send an event of no meaning; `webhook show` says how it went."""
    made = client.call("POST", f"{_path(name)}:test", TestView)
    plaintext.echo(made.id)


def _path(name: str) -> str:
    return item_path("/v1/webhooks", name)

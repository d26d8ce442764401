"""`fairlead notify`: what you are told of your containers, and where: by e-mail, in a chat, at an address."""

from __future__ import annotations

import sys
import urllib.parse
from pathlib import Path
from typing import Final

import click

from fairlead import errors
from fairlead.cli.admin.webhook import events, show_deliveries
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.serve.v1.webhooks.view import ConfirmRequest, NoticeRequest, TestView, WebhookList
from fairlead.serve.webhooks.port import FORMATS, NewWebhook, WebhookDetail, WebhookView

_MAIL: Final = "mailto:"
_LONGEST: Final = 4096
"""Bytes of a token's file."""


def _reach(item: WebhookView) -> str:
    return item.tenancy or {"own": "yours", "machine": "all"}.get(item.reach, item.reach or "all")


_COLUMNS: tuple[Column[WebhookView], ...] = (
    Column("ID", lambda item: item.id),
    Column("FORM", lambda item: item.format if item.is_confirmed else f"{item.format} (unconfirmed)"),
    Column("OF", _reach),
    Column("EVENTS", events, rank=1),
    Column("PENDING", lambda item: str(item.pending), rank=2),
    Column("PERSON", lambda item: item.person or "-", is_wide=True),
    Column("TO", lambda item: item.url.removeprefix(_MAIL)),
)


@click.group("notify")
def notify() -> None:
    """Be told what becomes of your containers: by e-mail, in a chat, or at an address."""


@notify.command("add")
@click.argument("target", metavar="ADDRESS")
@click.option("--format", "form", type=click.Choice(FORMATS), help="of an address: fairlead, slack or matrix")
@click.option("--room", metavar="ROOM", help="of a Matrix server, whose address is given: !id:server")
@click.option("--token-file", metavar="FILE", help="with a Matrix account's access token; -: standard input")
@click.option("--tenancy", "-T", "whose", default="", metavar="NAME", help="all of its containers  [default: yours]")
@click.option("--machine", is_flag=True, help="everything on the machine, for administrators")
@click.option("--event", "kinds", multiple=True, metavar="KIND", help="as container.failed or container.*")
@options.pass_client
def add(
    client: Client,
    /,
    *,
    target: str,
    form: str | None,
    room: str | None,
    token_file: str | None,
    whose: str,
    machine: bool,
    kinds: tuple[str, ...],
) -> None:
    """Add a notice: an e-mail address, or the https address of a chat's webhook."""
    is_mail = "@" in target and "://" not in target
    form = form or ("email" if is_mail else "matrix" if room else "fairlead")
    url = f"{_MAIL}{target.removeprefix(_MAIL)}" if form == "email" else _room(target, room)
    body = NoticeRequest(
        url=url,
        format=form,
        token=_token(token_file) if token_file else "",
        tenancy=whose,
        machine=machine,
        events=kinds,
    )
    made = client.call("POST", "/v1/notices", NewWebhook, body=body)
    plaintext.echo(made.webhook.id)
    if not made.webhook.is_confirmed:
        said = f"a code is on its way to {target}: `fairlead notify confirm {made.webhook.id} CODE`"
        plaintext.echo(said, err=True)
    elif form == "fairlead":
        plaintext.echo(f"it is signed by {made.secret}, which is not shown again", err=True)


def _room(url: str, room: str | None) -> str:
    """Return the address that a Matrix room's messages are put to; any other address as it is."""
    if room is None:
        return url
    path = f"/_matrix/client/v3/rooms/{urllib.parse.quote(room, safe='')}/send/m.room.message"
    return url.rstrip("/") + path


def _token(name: str) -> str:
    """Return what stands in a file; a token in an argument would be seen by everybody on the machine."""
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            return file.read(_LONGEST).decode().strip()
    except (OSError, ValueError) as error:
        message = f'the token cannot be read from "{name}": {error}'
        raise errors.Invalid(message, reason="FileUnreadable", hint="a file with the token alone") from error


@notify.command("list")
@click.option("--everybody", is_flag=True, help="of all people, for administrators")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, everybody: bool, form: str) -> None:
    """List notices."""
    found = client.call("GET", "/v1/notices", WebhookList, params={"everybody": str(everybody).lower()})
    output.show_listing(found.items, _COLUMNS, form=form, name=lambda item: item.id)


@notify.command("show")
@click.argument("name", metavar="ID")
@options.output_option
@options.pass_client
def show(client: Client, *, name: str, form: str) -> None:
    """Show the last notices on their way, and how they went."""
    show_deliveries(client.call("GET", _path(name), WebhookDetail), form)


@notify.command("confirm")
@click.argument("name", metavar="ID")
@click.argument("code", metavar="CODE")
@options.pass_client
def confirm(client: Client, *, name: str, code: str) -> None:
    """Confirm an e-mail address by the code that was sent there."""
    client.call("POST", f"{_path(name)}:confirm", WebhookView, body=ConfirmRequest(code=code))
    plaintext.echo(f"{name}: confirmed")


@notify.command("test")
@click.argument("name", metavar="ID")
@options.pass_client
def test(client: Client, *, name: str) -> None:
    """Send a notice of no meaning; `notify show` says how it went."""
    plaintext.echo(client.call("POST", f"{_path(name)}:test", TestView).id)


@notify.command("remove")
@click.argument("name", metavar="ID")
@options.pass_client
def remove(client: Client, *, name: str) -> None:
    """Remove a notice and what is on its way."""
    client.call("DELETE", _path(name), type(None))
    plaintext.echo(f"{name}: removed")


def _path(name: str) -> str:
    return item_path("/v1/notices", name)

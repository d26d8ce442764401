"""`fairlead key`: makes, lists, replaces and ends API keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.accounts.port import KeyView, NewKey
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.v1.accounts.view import KeyList, KeyRequest, RotateRequest

_COLUMNS: Final = (
    Column[KeyView]("ID", lambda item: item.id),
    Column[KeyView]("ACCOUNT", lambda item: item.account),
    Column[KeyView]("SCOPES", lambda item: ",".join(item.scopes), rank=1),
    Column[KeyView]("STATE", lambda item: item.state),
    Column[KeyView]("EXPIRES", lambda item: (item.expires_at or "never")[:10], rank=2),
    Column[KeyView]("USED", lambda item: f"{output.age(item.last_used_at)} ago" if item.last_used_at else "never"),
    Column[KeyView]("NOTE", lambda item: item.note or "-", rank=3),
)


class Lifetime(click.ParamType[float | None]):
    """A length of time, `90d`, `12h`; `never` where that is offered."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Return seconds; None: never."""
        if isinstance(value, float):
            return value
        if value == "never":
            return None
        found = options.parse_span(str(value))
        if found is None:
            self.fail(f'"{value}" is not a length of time, such as 90d, 12h or 30m', param, ctx)
        return found


@click.group()
def group() -> None:
    """Make, list, replace and end API keys."""


@group.command(name="create")
@click.option("--user", "account", default="", metavar="NAME", help="account to make a key for  [default: your own]")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="scope of the key; repeat for more  [default: all scopes of yours]",
)
@click.option("--expires", type=Lifetime(), default="90d", show_default=True, metavar="TIME", help="90d, 12h, or never")
@click.option("--note", default="", metavar="TEXT", help="what it is for, for people")
@options.pass_client
def create_verb(client: Client, /, *, account: str, scopes: Sequence[str], expires: float | None, note: str) -> None:
    """Make a key and print it: it is shown this once."""
    request = KeyRequest(account=account, scopes=tuple(scopes), lifetime_s=expires, note=note)
    _show(client.call("POST", "/v1/keys", NewKey, body=request))


@group.command(name="list")
@click.option("--user", "account", default="", metavar="NAME", help="only this account's  [default: all you may see]")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, account: str, form: str) -> None:
    """List keys, when they end and when they were last used."""
    found = client.call("GET", "/v1/keys", KeyList, params={"account": account or None}).items
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.id)


@group.command(name="revoke")
@click.argument("id_", metavar="ID")
@options.pass_client
def revoke_verb(client: Client, *, id_: str) -> None:
    """End a key at once."""
    found = client.call("POST", f"/v1/keys/{_id(id_)}:revoke", KeyView)
    plaintext.echo(f"{found.id}: revoked")


@group.command(name="rotate")
@click.argument("id_", metavar="ID")
@click.option(
    "--overlap",
    type=Lifetime(),
    default="24h",
    show_default=True,
    metavar="TIME",
    help="how long the old one is in force beside it; 0s: it ends at once",
)
@options.pass_client
def rotate_verb(client: Client, *, id_: str, overlap: float | None) -> None:
    """Make a key like an old one and print it; the old one ends after the overlap."""
    if overlap is None:
        message = "an old key does not stay for ever"
        raise errors.Invalid(message, reason="OverlapInvalid", hint="`fairlead key create` makes one beside it")
    _show(client.call("POST", f"/v1/keys/{_id(id_)}:rotate", NewKey, body=RotateRequest(overlap_s=overlap)))


def _show(made: NewKey) -> None:
    """Print a key alone on standard output, so that it can be piped, and what to do with it beside it."""
    plaintext.echo(made.key)
    ends = f"until {made.view.expires_at[:10]}" if made.view.expires_at else "until it is revoked"
    plaintext.echo(
        f"key {made.view.id} of {made.view.account}, good for {', '.join(made.view.scopes)} {ends}; it is not shown "
        "again",
        err=True,
    )


def _id(text: str) -> str:
    """Return the id of a key; a whole key, pasted by mistake, is not sent on. Raises: Invalid (`KeyIdInvalid`)."""
    if not re.fullmatch(r"[0-9a-f]{12}", text, re.ASCII):
        message = "a key is named by the twelve letters after flk_, never by all of it"
        hint = "`fairlead key list` shows them; a key that was typed into a command line is best revoked"
        raise errors.Invalid(message, reason="KeyIdInvalid", hint=hint)
    return text

"""`fairlead ssh-key`: adds, lists and removes the public keys by which accounts enter containers over SSH."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from fairlead import errors
from fairlead.cli.admin.keys.key import Lifetime
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client import calls
from fairlead.serve.accounts.sshkeys import SSHKeyView
from fairlead.serve.v1.accounts.sshkeyview import SSHKeyList, SSHKeyRequest

_COLUMNS: Final = (
    Column[SSHKeyView]("ID", lambda item: item.id),
    Column[SSHKeyView]("ACCOUNT", lambda item: item.account),
    Column[SSHKeyView]("KIND", lambda item: item.kind, rank=2),
    Column[SSHKeyView]("FINGERPRINT", lambda item: item.fingerprint, rank=1),
    Column[SSHKeyView]("EXPIRES", lambda item: (item.expires_at or "never")[:10], rank=2),
    Column[SSHKeyView]("USED", lambda item: f"{output.age(item.last_used_at)} ago" if item.last_used_at else "never"),
    Column[SSHKeyView]("NOTE", lambda item: item.note or "-", rank=3),
)
_LARGEST: Final = 1 << 16


@click.group()
def group() -> None:
    """Add, list and remove the SSH keys of accounts."""


@group.command(name="add")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--user", "account", default="", metavar="NAME", help="account to add it to  [default: your own]")
@click.option(
    "--expires", type=Lifetime(), default="never", metavar="TIME", help="90d, 12h, or never  [default: as your API key]"
)
@click.option("--note", default="", metavar="TEXT", help="for people  [default: the key's comment]")
@options.pass_client
def add_verb(client: Client, *, file: Path, account: str, expires: float | None, note: str) -> None:
    """Add the public key of a file, such as ~/.ssh/id_ed25519.pub; - reads standard input.

    Whoever has its private key enters the account's containers over SSH, until it is removed or its time is over. It
    ends no later than the API key that adds it.
    """
    body = SSHKeyRequest(public_key=_read(file), account=account, lifetime_s=expires, note=note)
    found = client.call("POST", "/v1/sshkeys", SSHKeyView, body=body)
    ends = f", until {found.expires_at[:10]}" if found.expires_at else ""
    plaintext.echo(f"{found.id}: {found.fingerprint} of {found.account}{ends}")


@group.command(name="list")
@click.option("--user", "account", default="", metavar="NAME", help="only this account's  [default: all you may see]")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, account: str, form: str) -> None:
    """List SSH keys, when they end and when they were last used."""
    found = client.call("GET", "/v1/sshkeys", SSHKeyList, params={"account": account or None}).items
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.id)


@group.command(name="remove")
@click.argument("id_", metavar="ID")
@options.pass_client
def remove_verb(client: Client, *, id_: str) -> None:
    """Remove a key at once; nothing more is opened with it."""
    found = client.call("DELETE", calls.item_path("/v1/sshkeys", id_), SSHKeyView)
    plaintext.echo(f"{found.id}: removed")


def _read(file: Path) -> str:
    """Return the text of a file. Raises: Invalid (`FileUnreadable`)."""
    try:
        if str(file) == "-":
            return sys.stdin.read(_LARGEST)
        with file.open("rb") as opened:
            return opened.read(_LARGEST).decode("utf-8", "replace")
    except OSError as error:
        message, hint = f"cannot read {file}: {error.strerror}", "`ssh-keygen -t ed25519` makes a pair of keys"
        raise errors.Invalid(message, reason="FileUnreadable", hint=hint) from error

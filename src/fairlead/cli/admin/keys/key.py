"""`fairlead key`: makes, lists, replaces and ends API keys."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

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


_to_file: Final = click.option(
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="write the key to a new file that you alone may read  [default: print it]",
)


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
@_to_file
@options.pass_client
def create_verb(
    client: Client, /, *, account: str, scopes: Sequence[str], expires: float | None, note: str, file: Path | None
) -> None:
    """Make a key and print it: it is shown this once."""
    request = KeyRequest(account=account, scopes=tuple(scopes), lifetime_s=expires, note=note)
    with _kept(file) as show:
        show(client.call("POST", "/v1/keys", NewKey, body=request))


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
@_to_file
@options.pass_client
def rotate_verb(client: Client, *, id_: str, overlap: float | None, file: Path | None) -> None:
    """Make a key like an old one and print it; the old one ends after the overlap."""
    if overlap is None:
        message = "an old key does not stay for ever"
        raise errors.Invalid(message, reason="OverlapInvalid", hint="`fairlead key create` makes one beside it")
    with _kept(file) as show:
        show(client.call("POST", f"/v1/keys/{_id(id_)}:rotate", NewKey, body=RotateRequest(overlap_s=overlap)))


@contextlib.contextmanager
def _kept(file: Path | None) -> Iterator[Callable[[NewKey], None]]:
    """Give what shows a key, or writes it to a file that is made before the key is: no key is made for nothing.

    Raises: Conflict (`FileExists`); Unavailable (`KeyUnwritable`).
    """
    if file is None:
        yield lambda made: _show(made, plaintext.echo)
        return
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        message = f"{file} is there already"
        raise errors.Conflict(message, reason="FileExists", hint="choose another name, or move it away") from error
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise errors.Unavailable(message, reason="KeyUnwritable", hint="no key was made") from error
    with os.fdopen(handle, "w") as opened, contextlib.ExitStack() as stack:
        stack.callback(file.unlink, missing_ok=True)
        yield lambda made: _show(made, lambda key: _write(opened, key))
        stack.pop_all()


def _write(file: TextIO, key: str) -> None:
    file.write(f"{key}\n")


def _show(made: NewKey, write: Callable[[str], None]) -> None:
    """Write a key alone, on standard output so that it can be piped, and print what to do with it beside it."""
    write(made.key)
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

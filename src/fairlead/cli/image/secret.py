"""`fairlead secrets`: keeps values that containers are given; nothing shows a value again.

A value comes from a file, from standard input or from a prompt, never from the command line: `ps`, the shell's history
and audit logs of the host keep those.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors, files
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client import secret as calls
from fairlead.serve.v1.secrets.view import SecretList, SecretView

_KEY: Final = "value"
_LARGEST_BYTES: Final = 2 << 20
"""Above the service's own limit, so that the service is what refuses a value."""
_COLUMNS = (
    Column[SecretView]("NAME", lambda item: item.name),
    Column[SecretView]("KEYS", lambda item: ",".join(item.digests)),
    Column[SecretView]("DIGESTS", lambda item: ",".join(item.digests.values()), rank=2),
    Column[SecretView]("USED BY", lambda item: ",".join(item.used_by) or "-", rank=1),
    Column[SecretView]("CHANGED", lambda item: output.age(item.updated_at)),
    Column[SecretView]("NAMESPACE", lambda item: item.namespace, is_wide=True),
)


def _known(client: Client) -> Iterator[options.Offer]:
    for item in client.call("GET", "/v1/secrets", SecretList).items:
        yield item.name, ""


_NAMES = click.argument("names", metavar="SECRET...", nargs=-1, required=True, shell_complete=options.asking(_known))


@click.group()
def group() -> None:
    """Store values for containers; no command shows them again.

    `fairlead run --secret NAME` gives a container the file /run/secrets/NAME, `--secret NAME=VARIABLE` a variable.
    """


@group.command("create")
@click.argument("name", metavar="SECRET")
@click.argument("file", required=False, metavar="[FILE|-]")
@click.option("--key", default=_KEY, show_default=True, help="name of the value")
@click.option("--from-file", multiple=True, metavar="[KEY=]FILE", help="one more value; KEY: the file's name")
@click.option("--from-env-file", multiple=True, type=click.Path(path_type=Path), help="file of KEY=VALUE lines")
@click.option("--replace", is_flag=True, help="replace all values of the secret if it exists")
@click.option("--from-literal", "--value", "--body", "-b", "literal", multiple=True, hidden=True)
@options.namespace_option
@options.pass_client
def create(client: Client, /, *, name: str, namespace: str, replace: bool, **given: Any) -> None:
    """Keep the value of a file, of stdin or of a prompt.

    FILE is kept as it is; of standard input (-) the last line break is left out. Without either the value is asked for.
    """
    if given["literal"] or "=" in name:
        raise _on_command_line()
    keep = calls.replace if replace else calls.create
    plaintext.echo(keep(client, name, namespace, _values(**given), SecretView).name)


def _values(
    *, file: str | None, key: str, from_file: Sequence[str], from_env_file: Sequence[Path], literal: Sequence[str]
) -> dict[str, bytes]:
    del literal
    found = {key: value.encode() for key, value in options.environment((), from_env_file, {}).items()}
    for word in from_file:
        named, equals, path = word.partition("=")
        found[named if equals else Path(word).name] = _read(Path(path if equals else word))
    if file == "-" or (file is None and not found):
        found[key] = _typed()
    elif file is not None:
        if not os.path.exists(file):  # noqa: PTH110 Path's own raises for what is too long to be a path, as values are
            raise _on_command_line()
        found[key] = _read(Path(file))
    return found


def _typed() -> bytes:
    """Return what is typed at a prompt, or standard input without its last line break."""
    if sys.stdin.isatty():
        return str(click.prompt("Value", hide_input=True, err=True)).encode()
    data = sys.stdin.buffer.read(_LARGEST_BYTES)
    return data.removesuffix(b"\n").removesuffix(b"\r")


def _read(path: Path) -> bytes:
    try:
        return files.read_bounded(path, limit_bytes=_LARGEST_BYTES)
    except OSError as error:
        message = f'cannot read "{path}": {(error.strerror or str(error)).lower()}'
        raise errors.Invalid(message, reason="SecretFileUnreadable", hint="name a file, or - for stdin") from error


def _on_command_line() -> errors.Invalid:
    """Return the refusal of a value among the words, which is not repeated."""
    message = "there is no such file, and a value does not go on the command line, where ps and the history show it"
    hint = "`fairlead secrets create NAME FILE`, `… NAME -` for stdin, or `… NAME` to be asked for it"
    return errors.Invalid(message, reason="ValueOnCommandLine", hint=hint)


@group.command("list")
@click.option("-n", "--namespace", help="only this namespace  [default: all]")
@options.tenancy_option
@options.output_option
@options.pass_client
def list_secrets(client: Client, /, *, namespace: str | None, form: str) -> None:
    """List secrets: keys, digests, who names them."""
    found = client.call("GET", "/v1/secrets", SecretList, params={"namespace": namespace}).items
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.name)


@group.command("show")
@_NAMES
@options.namespace_option
@options.json_option
@options.pass_client
def show(client: Client, /, *, names: tuple[str, ...], namespace: str, form: str) -> None:
    """Show all of secrets but their values."""
    params = {"namespace": namespace}
    found = [client.call("GET", calls.path(name), SecretView, params=params) for name in names]
    if form != "text":
        output.show_value(found, form=form)
        return
    for item in found:
        plaintext.echo(f"name        {item.name}")
        plaintext.echo(f"namespace   {item.namespace}")
        for key, digest in item.digests.items():
            size = f"{item.sizes[key]} bytes, " if key in item.sizes else ""
            plaintext.echo(f"key         {key} ({size}digest {digest or 'not known'})")
        plaintext.echo(f"used by     {', '.join(item.used_by) or 'no container'}")
        plaintext.echo(f"changed     {output.age(item.updated_at)} ago")


@group.command("delete")
@_NAMES
@options.namespace_option
@click.option("-f", "--force", is_flag=True, help="secrets that are not there are not errors")
@options.pass_client
def delete(client: Client, /, *, names: tuple[str, ...], namespace: str, force: bool) -> None:
    """Delete secrets; what runs keeps its values."""
    for name in names:
        try:
            client.call("DELETE", calls.path(name), type(None), params={"namespace": namespace})
        except errors.NotFound:
            if not force:
                raise
        else:
            plaintext.echo(name)

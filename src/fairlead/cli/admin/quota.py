"""`fairlead quota`: sets, shows and removes how much the containers of a namespace may ask for together."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Final

import click
import msgspec

from fairlead import errors, files
from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.plan.pod import userrule
from fairlead.serve.v1.quotas.view import QuotaList, QuotaView


def _uses(item: QuotaView) -> str:
    return ", ".join(f"{name} {item.used.get(name, '?')}/{limit}" for name, limit in item.hard.items())


_COLUMNS: Final = (
    Column[QuotaView]("NAMESPACE", lambda item: item.namespace),
    Column[QuotaView]("NAME", lambda item: item.name),
    Column[QuotaView]("USED/LIMIT", _uses),
)


@click.group()
def group() -> None:
    """Limit what a namespace's containers ask for together."""


@group.command(name="apply")
@click.option(
    "-f", "--file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="manifest of ResourceQuotas"
)
@options.output_option
@options.pass_client
def apply_verb(client: Client, *, file: Path, form: str) -> None:
    """Make or change the ResourceQuotas of a Kubernetes manifest."""
    try:
        content = files.read_bounded(file)
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise errors.RequestError(message, reason="FileUnreadable", hint="name a readable manifest") from error
    _show(client.call("PUT", "/v1/quotas", QuotaList, content=content), form)


@group.command(name="set")
@click.option("-u", "--user", help="whose containers: a user of this machine, by name or number")
@options.namespace_option
@click.option("--gpus", type=click.IntRange(min=0), required=True, help="how many they may ask for together")
@options.output_option
@options.pass_client
def set_verb(client: Client, *, user: str | None, namespace: str, gpus: int, form: str) -> None:
    """Limit the GPUs of one user, or of a namespace."""
    item = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": namespace if user is None else userrule.namespace(_uid(user))},
        "spec": {"hard": {f"requests.{client.status().resource}": str(gpus)}},
    }
    _show(client.call("PUT", "/v1/quotas", QuotaList, content=msgspec.json.encode(item)), form)


def _uid(user: str) -> int:
    if user.isascii() and user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError) as error:
        message = f'this machine has no user "{user}"'
        raise errors.NotFound(message, reason="UserUnknown", hint="`getent passwd` lists them") from error


@group.command(name="list")
@click.option("-n", "--namespace", help="only this namespace")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, namespace: str | None, form: str) -> None:
    """List quotas and what is used of them."""
    _show(client.call("GET", "/v1/quotas", QuotaList, params={"namespace": namespace}), form)


@group.command(name="rm")
@click.argument("name")
@options.namespace_option
@options.pass_client
def rm_verb(client: Client, *, name: str, namespace: str) -> None:
    """Remove a quota."""
    client.call("DELETE", item_path("/v1/quotas", name), type(None), params={"namespace": namespace})


def _show(found: QuotaList, form: str) -> None:
    output.show_listing(found.items, _COLUMNS, form=form, name=lambda item: item.name)

"""`fairlead volume`: lists, makes, shows and removes named volumes, in docker's words."""

from __future__ import annotations

from collections.abc import Iterator

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.image import prune
from fairlead.client.calls import item_path
from fairlead.serve.v1.volumes.view import PrunedVolumes, VolumeList, VolumeRequest, VolumeView

_COLUMNS = (
    Column[VolumeView]("NAME", lambda item: item.name),
    Column[VolumeView]("USED BY", lambda item: ",".join(item.used_by), rank=1),
    Column[VolumeView]("STATE", lambda item: item.state, rank=2),
    Column[VolumeView]("AGE", lambda item: output.age(item.created_at)),
    Column[VolumeView]("NAMESPACE", lambda item: item.namespace, is_wide=True),
    Column[VolumeView]("SIZE", lambda item: item.size, is_wide=True),
    Column[VolumeView]("CLASS", lambda item: item.storage_class, is_wide=True),
    Column[VolumeView]("PATH", lambda item: item.path, is_wide=True),
)


def _known(client: Client) -> Iterator[options.Offer]:
    for item in client.call("GET", "/v1/volumes", VolumeList).items:
        yield item.name, ""


_NAMES = click.argument("names", metavar="VOLUME...", nargs=-1, required=True, shell_complete=options.asking(_known))


@click.group()
def group() -> None:
    """List, make and remove named volumes.

    `fairlead run -v NAME:/PATH` makes and mounts one. It stays when its containers are removed.
    """


@group.command("ls")
@click.option("-q", "--quiet", is_flag=True, help="names only")
@click.option("-n", "--namespace", help="only this namespace  [default: all]")
@options.output_option
@options.pass_client
def list_volumes(client: Client, *, quiet: bool, namespace: str | None, form: str) -> None:
    """List named volumes."""
    found = client.call("GET", "/v1/volumes", VolumeList, params={"namespace": namespace}).items
    output.show_listing(found, _COLUMNS, form="name" if quiet else form, name=lambda item: item.name)


@group.command("create")
@click.argument("name")
@options.namespace_option
@click.option("-l", "--label", multiple=True, metavar="KEY=VALUE", help="label")
@click.option("--size", default="", help="how much a cluster is to give, 10Gi; one machine takes no size")
@options.pass_client
def create(client: Client, *, name: str, namespace: str, label: tuple[str, ...], size: str) -> None:
    """Make a named volume; one of that name stays as it is."""
    asked = VolumeRequest(name=name, namespace=namespace, labels=options.pairs(label, "--label"), size=size)
    plaintext.echo(client.call("POST", "/v1/volumes", VolumeView, body=asked).name)


@group.command("inspect")
@_NAMES
@options.namespace_option
@options.pass_client
def inspect(client: Client, *, names: tuple[str, ...], namespace: str) -> None:
    """Print all that is known of named volumes, as JSON."""
    params = {"namespace": namespace}
    output.show_value([client.call("GET", _path(name), VolumeView, params=params) for name in names], form="json")


@group.command("rm")
@_NAMES
@options.namespace_option
@click.option("-f", "--force", is_flag=True, help="volumes that are not there are not errors")
@options.pass_client
def remove(client: Client, *, names: tuple[str, ...], namespace: str, force: bool) -> None:
    """Remove named volumes with their files; one that a container mounts is refused."""
    for name in names:
        try:
            client.call("DELETE", _path(name), type(None), params={"namespace": namespace}, timeout_s=None)
        except errors.NotFound:
            if not force:
                raise
        else:
            plaintext.echo(name)


@group.command("prune")
@click.option("-a", "--all", "_all", is_flag=True, help="accepted and without meaning: every volume here has a name")
@click.option("-f", "--force", is_flag=True, help="do not ask")
@click.option("-n", "--namespace", help="only this namespace  [default: all]")
@options.pass_client
def prune_volumes(client: Client, *, force: bool, namespace: str | None, _all: bool) -> None:
    """Remove named volumes that no container mounts, with their files; asks first."""
    prune.ask("This removes every named volume that no container mounts, with its files.", force=force)
    params = {"namespace": namespace}
    for name in client.call("POST", "/v1/volumes:prune", PrunedVolumes, params=params, timeout_s=None).names:
        plaintext.echo(name)


def _path(name: str) -> str:
    return item_path("/v1/volumes", name)

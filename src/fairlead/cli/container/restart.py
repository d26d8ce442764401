"""`fairlead restart` and `start` run containers once more, as they were started; `rename` gives them other names."""

from __future__ import annotations

import click

from fairlead.cli.core import client as api
from fairlead.cli.core import options, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.debug.request import RenameRequest
from fairlead.serve.v1.containers.view import ContainerView


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@click.option(
    "-t",
    "--time",
    "grace",
    type=options.Duration(),
    help="between SIGTERM and SIGKILL  [default: the container's own]",
)
@options.pass_client
def restart(client: Client, *, names: tuple[str, ...], namespace: str, grace: int | None) -> None:
    """Stop containers and start them anew.

    Each begins from its image again, under its name, and asks for its GPUs anew; volumes stay.
    """
    for name in client.named(names, namespace):
        _again(client, name, namespace, grace, doing="restarting")
        plaintext.echo(name)


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@options.pass_client
def start(client: Client, *, names: tuple[str, ...], namespace: str) -> None:
    """Start ended containers again; those that run are left alone."""
    for name in client.named(names, namespace):
        if client.container(name, namespace).state in view.ENDED:
            _again(client, name, namespace, None, doing="starting")
        plaintext.echo(name)


@click.command()
@options.container_argument("old")
@click.argument("new")
@options.namespace_option
@options.pass_client
def rename(client: Client, *, old: str, new: str, namespace: str) -> None:
    """Give a container that does not run another name; its record, output and usage stay.

    Stop one that runs first: its process, and the ledger of GPUs, know it by its name.
    """
    path, asked = f"{api.container_path(old)}:rename", RenameRequest(name=new)
    client.call("POST", path, ContainerView, params={"namespace": namespace}, body=asked)
    plaintext.echo(new)


def _again(client: Client, name: str, namespace: str, grace: int | None, *, doing: str) -> None:
    with progress.Progress() as waiting:
        waiting.show(f"{doing} {name}")
        params = {"namespace": namespace, "grace": grace}
        path = f"{api.container_path(name)}:restart"
        client.call("POST", path, ContainerView, params=params, timeout_s=None)

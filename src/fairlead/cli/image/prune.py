"""`fairlead prune`: removes records of containers that have ended, and images that nothing needs; asks first."""

from __future__ import annotations

import sys

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.images.view import PrunedImages

_YES = click.option("-f", "--force", is_flag=True, help="do not ask")
_ALL = click.option("-a", "--all", "every", is_flag=True, help="also images with a name that no container is made from")


@click.command("prune")
@_ALL
@_YES
@click.option("-n", "--namespace", default=None, help="containers of this namespace only  [default: all]")
@options.pass_client
def prune(client: Client, *, every: bool, force: bool, namespace: str | None) -> None:
    """Remove ended containers and images that nothing needs; asks first."""
    ended = [one for one in client.list_containers(show_ended=True, namespace=namespace) if one.state in view.ENDED]
    images = "every image that no container is made from" if every else "images without a name"
    ask(f"This removes {len(ended)} ended containers with their output, and {images}.", force=force)
    for one in ended:
        client.delete(one.name, one.namespace)
        plaintext.echo(one.name)
    if not client.cluster:
        remove_images(client, every=every)


@click.command("prune")
@_ALL
@_YES
@options.pass_client
def prune_images(client: Client, *, every: bool, force: bool) -> None:
    """Remove images without a name, with -a also those that no container is made from; asks first."""
    images = "every image that no container is made from" if every else "images without a name"
    ask(f"This removes {images}.", force=force)
    remove_images(client, every=every)


def ask(what: str, *, force: bool) -> None:
    """Return where the answer is yes. Raises: Abort; RequestError (`AnswerNeeded`): there is no terminal to ask on."""
    if force:
        return
    if not sys.stdin.isatty():
        message = f"{what} Nobody is here to be asked: standard input is not a terminal"
        raise errors.RequestError(message, reason="AnswerNeeded", hint="--force does it without asking")
    plaintext.echo(what, err=True)
    click.confirm("Go on?", abort=True, err=True)


def remove_images(client: Client, *, every: bool) -> None:
    """Remove images and print their ids."""
    params = {"all": str(every).lower()}
    for identity in client.call("POST", "/v1/images:prune", PrunedImages, params=params, timeout_s=None).ids:
        plaintext.echo(identity)

"""`fairlead port`: prints which ports of the host lead into a container."""

from __future__ import annotations

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting

_PROTOCOL = "tcp"


@click.command("port")
@options.container_argument()
@click.argument("wanted", required=False, metavar="[PORT[/PROTOCOL]]")
@options.namespace_option
@options.pass_client
def port(client: Client, *, name: str, wanted: str | None, namespace: str) -> None:
    """Print the ports of the host that lead into a container."""
    starting.await_running(client, name, namespace)
    rows = [_parts(text) for text in client.container(name, namespace).ports]
    if wanted is None:
        for inner, outer in rows:
            plaintext.echo(f"{inner} -> {outer}")
        return
    asked = wanted if "/" in wanted else f"{wanted}/{_PROTOCOL}"
    found = [outer for inner, outer in rows if inner == asked]
    if not found:
        message = f'no port of the host leads to {asked} of "{name}"'
        hint = f"fairlead port {name} lists them; they are given at the start: fairlead run -p 8080:80"
        raise errors.NotFound(message, reason="PortNotFound", hint=hint)
    for outer in found:
        plaintext.echo(outer)


def _parts(text: str) -> tuple[str, str]:
    """Return container's and host's side of `[ADDRESS:]HOST->CONTAINER/tcp`."""
    outer, _, inner = text.partition("->")
    return inner, outer if ":" in outer else f"0.0.0.0:{outer}"

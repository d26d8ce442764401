"""`fairlead inspect`: prints all that is known of containers."""

from __future__ import annotations

import click

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(("json", "yaml")),
    default="json",
    show_default=True,
    help="how to show it",
)
@options.pass_client
def inspect(client: Client, *, names: tuple[str, ...], namespace: str, form: str) -> None:
    """Print all that is known of containers, as JSON."""
    output.show_value([client.container(name, namespace) for name in names], form=form)

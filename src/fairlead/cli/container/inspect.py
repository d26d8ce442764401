"""`fairlead inspect`: prints all that is known of containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import gotemplate
from fairlead.serve.v1.containers.view import ContainerView


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
@click.option("-f", "--format", "template", help="a Go template: '{{.State.Status}}'")
@options.pass_client
def inspect(client: Client, *, names: tuple[str, ...], namespace: str, form: str, template: str | None) -> None:
    """Print all that is known of containers, as JSON."""
    found = [client.container(name, namespace) for name in client.named(names, namespace)]
    if template is None:
        output.show_value(found, form=form)
    else:
        gotemplate.show([fields(item) for item in found], template)


def fields(item: ContainerView) -> Mapping[str, Any]:
    """Return a container's values under the names of docker's `inspect`, and under our own of the JSON."""
    own = msgspec.to_builtins(item)
    return {
        **own,
        "Id": item.uid,
        "Name": item.name,
        "Created": item.created_at or "",
        "Image": item.image,
        "RestartCount": item.restarts,
        "State": {
            "Status": item.state,
            "Running": item.state == "running",
            "ExitCode": 0 if item.exit_code is None else item.exit_code,
            "Error": item.message,
            "OOMKilled": any(part.reason == "OOMKilled" for part in item.containers),
            "StartedAt": item.started_at or "",
            "FinishedAt": item.finished_at or "",
        },
        "Config": {"Image": item.image, "Labels": dict(item.labels), "Hostname": item.name},
        "NetworkSettings": {"Ports": list(item.ports)},
    }

"""`fairlead open`: has the service lead a browser to a container's port, on a host of its own."""

from __future__ import annotations

import webbrowser

import click

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting
from fairlead.serve.admission.sessiontemplate import LABEL, TemplateList
from fairlead.serve.v1.containers.access.view import DoorRequest, DoorView
from fairlead.serve.v1.containers.view import ContainerView

_LARGEST = 65535


@click.command("open")
@options.container_argument()
@click.argument("port", required=False, type=click.IntRange(1, _LARGEST))
@options.namespace_option
@click.option("--path", default="", metavar="/PATH", help="page to begin with  [default: its template's, or /]")
@click.option("--browser", is_flag=True, help="open the address in a browser of this machine")
@options.pass_client
def open_port(client: Client, *, name: str, port: int | None, namespace: str, path: str, browser: bool) -> None:
    """Print the address that opens a container's port in a browser.

    It is good once, within a minute, and leads to a server on the container's own loopback, under a name of its own.
    Without PORT it is the page of a session, or the one port that is published. It ends with your login.
    """
    starting.await_running(client, name, namespace)
    number = port or _only_port(client, client.container(name, namespace))
    where = f"{api.container_path(name)}/ports/{number}/door"
    found = client.call("POST", where, DoorView, params={"namespace": namespace}, body=DoorRequest(path=path))
    if browser and webbrowser.open(found.address):
        plaintext.echo(f"opened at {found.origin}")
        return
    plaintext.echo(found.address)


def _only_port(client: Client, shown: ContainerView) -> int:
    """Return the port that is meant where none is named. Raises: Invalid (`PortRequired`)."""
    wanted = shown.labels.get(LABEL, "")
    if wanted:
        items = client.call("GET", "/v1/templates", TemplateList).items
        for one in items:
            if one.name == wanted and one.port:
                return one.port
    inner = {text.partition("->")[2].removesuffix("/tcp") for text in shown.ports if text.endswith("/tcp")}
    if len(inner) == 1:
        return int(inner.pop())
    told = f"it publishes {', '.join(sorted(inner))}" if inner else "it publishes none"
    message = f'which port of "{shown.name}" is not known: {told}'
    raise errors.Invalid(message, reason="PortRequired", hint=f"fairlead open {shown.name} 8888")

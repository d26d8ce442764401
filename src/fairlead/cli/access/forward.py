"""`fairlead port-forward`: leads ports of this machine to servers in a container, until Ctrl-C, as kubectl does."""

from __future__ import annotations

import contextlib
import threading

import click

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting
from fairlead.client.session import forward

_LARGEST = 65535


@click.command("port-forward")
@options.container_argument()
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...")
@options.namespace_option
@click.option("--address", default="127.0.0.1", show_default=True, help="address of this machine to listen on")
@options.pass_client
def port_forward(client: Client, *, name: str, ports: tuple[str, ...], namespace: str, address: str) -> None:
    """Forward ports of this machine to a container's, until Ctrl-C.

    8888 means 8888 on both sides, 9000:8888 port 9000 here, :8888 any free port here. A server in the container may
    listen on its loopback alone: who may enter the container reaches it, and nothing is published.
    """
    pairs = [parse(text) for text in ports]
    starting.await_running(client, name, namespace)
    with contextlib.ExitStack() as stack:
        for local, inner in pairs:
            path = f"{api.container_path(name)}/ports/{inner}"
            found = forward.Forward(
                client, path, {"namespace": namespace}, address=address, local=local, report=_report
            )
            stack.enter_context(found)
            plaintext.echo(f"Forwarding from {found.address} -> {inner}")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def parse(text: str) -> tuple[int, int]:
    """Return local port and the container's. Raises: Invalid (`PortInvalid`)."""
    local, colon, inner = text.rpartition(":")
    numbers = [local or "0", inner] if colon else [inner, inner]
    if all(one.isascii() and one.isdecimal() and len(one) < 6 and int(one) <= _LARGEST for one in numbers):
        here, there = map(int, numbers)
        if there:
            return here, there
    message = f'"{text}" is not [LOCAL:]PORT, with ports from 1 to {_LARGEST}'
    raise errors.Invalid(message, reason="PortInvalid", hint="8888, 9000:8888, or :8888 for any free port here")


def _report(error: errors.FairleadError) -> None:
    plaintext.echo(f"warning: a connection was not carried: {errors.sentence(error)}", err=True)

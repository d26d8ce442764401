"""`fairlead update`: changes the CPU and memory of running containers, in docker's words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click

from fairlead import errors
from fairlead.cli.container.start import runflags
from fairlead.cli.core import client as api
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.model.container import isolation
from fairlead.serve.v1.containers.debug.request import ResizeRequest
from fairlead.serve.v1.containers.view import ContainerView

_PATIENCE_S: Final = 5.0
"""How long it is waited for the node to carry it out."""
_POLL_S: Final = 0.1
_NEVER: Final = "Infeasible"


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@click.option("--cpus", help="CPUs at most, 1.5 or 500m")
@click.option("-m", "--memory", metavar="SIZE", help="memory at most, 512m or 4Gi")
@click.option("-c", "--container", "part", default="", metavar="NAME", help="one of a group  [default: the first]")
@options.pass_client
@click.pass_context
def update(
    ctx: click.Context,
    client: Client,
    /,
    *,
    names: Sequence[str],
    namespace: str,
    cpus: str | None,
    memory: str | None,
    part: str,
) -> None:
    """Change the CPU and memory of running containers, without a restart.

    A manifest's resizePolicy may ask for one. GPUs stay as they are: attach and detach change those.
    """
    if cpus is None and memory is None:
        raise click.UsageError("give --cpus, --memory or both", ctx=ctx)
    asked = ResizeRequest(
        container=part,
        cpu=runflags.amount(cpus, "--cpus", "1.5"),
        memory=runflags.amount(runflags.memory(memory), "--memory", "512m or 4Gi"),
    )
    for name in client.named(names, namespace):
        path = f"{api.container_path(name)}/resize"
        client.call("PATCH", path, ContainerView, params={"namespace": namespace}, body=asked)
        _settle(client, name, namespace, has_memory=memory is not None)
        plaintext.echo(name)


def _settle(client: Client, name: str, namespace: str, *, has_memory: bool) -> None:
    """Wait until the node has carried it out, or says why not.

    Raises: Insufficient: it never will; Unavailable: the service went away before it was said.
    """
    until = time.monotonic() + _PATIENCE_S
    while (shown := _look(client, name, namespace, until)).resize and time.monotonic() < until:
        if shown.resize.startswith(_NEVER):
            message = f"{name} keeps its size: {shown.resize}"
            hint = (
                "ask for less than the machine has" if "capacity" in shown.resize else "start it again with this size"
            )
            raise errors.Insufficient(message, reason="ResizeInfeasible", hint=hint)
        if ":" in shown.resize:
            break  # deferred, or refused by the kernel: it is tried again, and that may take long
        time.sleep(_POLL_S)
    if shown.resize:
        plaintext.echo(f"note: {name} keeps its size for now: {shown.resize}", err=True)
    elif has_memory and shown.isolation == isolation.GVISOR:
        words = "the memory it was started with; the machine holds it to the new limit"
        plaintext.echo(f"note: {name} is on gVisor, whose programs read {words}", err=True)


def _look(client: Client, name: str, namespace: str, until: float) -> ContainerView:
    """Return a container; a service that is away is waited for no longer than for the node."""
    while True:
        try:
            with client.impatient():
                return client.container(name, namespace)
        except errors.Unavailable as error:
            if time.monotonic() >= until:
                message = f"the new size of {name} is stored, and its node has not said that it has it: {error.message}"
                raise errors.Unavailable(message, reason=error.reason, hint=error.hint) from error
        time.sleep(_POLL_S)

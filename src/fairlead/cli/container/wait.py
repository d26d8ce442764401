"""`fairlead wait`: returns once a container is in a state, with its exit code."""

from __future__ import annotations

import re
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerView

_REFUSED: Final = 125
_CANNOT_START: Final = "StartError"
"""The kubelet's reason for a container that its runtime could not start; its exit code is always 128."""
_NOT_FOUND: Final = re.compile("executable file not found|command that was not found|is the command in the image", re.I)
_NOT_EXECUTABLE: Final = re.compile("permission denied|exec format error", re.I)


@click.command()
@options.container_argument()
@options.namespace_option
@click.option(
    "--state",
    type=click.Choice(("started", "ended", "gone")),
    default="ended",
    show_default=True,
    help="what to wait for",
)
@click.option("--timeout", type=click.FloatRange(min=0), help="seconds at most; then the exit code is 5")
@options.pass_client
@click.pass_context
def wait(ctx: click.Context, client: Client, *, name: str, namespace: str, state: str, timeout: float | None) -> None:
    """Wait for a container and exit with its code."""
    if timeout is None:
        shown = client.wait_until(name, namespace, state=state)
    else:
        shown = client.wait(name, namespace, state=state, timeout_s=timeout)
        reached = {"started": view.STARTED, "ended": view.ENDED, "gone": frozenset({"gone"})}[state]
        if shown.state not in reached:
            message = f"{name} is {shown.state} after {timeout:g} s, not {state}"
            raise errors.Insufficient(message, reason="WaitTimedOut", hint=f"`fairlead explain {name}` says why")
    plaintext.echo(shown.state)
    ctx.exit(exit_code_of(shown) if state == "ended" else 0)


def exit_code_of(shown: ContainerView) -> int:
    """Return what a shell should see of an ended container: its own code, else docker's for one that never ran.

    A program that is not in the image is 127, one that cannot be executed 126, everything else that was refused 125.
    Source: docker run reference, "Exit status".
    """
    if shown.exit_code is not None and shown.reason != _CANNOT_START:
        return shown.exit_code
    if shown.state == "succeeded":
        return 0
    if _NOT_FOUND.search(shown.message):
        return 127
    return 126 if _NOT_EXECUTABLE.search(shown.message) else _REFUSED

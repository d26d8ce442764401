"""`fairlead wait`: returns once containers are in a state, with their exit code."""

from __future__ import annotations

import math
import re
import sys
import time
from typing import Final

import click

from fairlead import errors
from fairlead.cli.container import explain
from fairlead.cli.core import options, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerView

_REFUSED: Final = 125
_LOOK_S: Final = 1.0
_ASK_S: Final = 30.0
_REACHED: Final = {"started": view.STARTED, "ended": view.ENDED, "gone": frozenset({"gone"})}
_CANNOT_START: Final = "StartError"
"""The kubelet's reason for a container that its runtime could not start; its exit code is always 128."""
_NOT_FOUND: Final = re.compile("executable file not found|command that was not found|is the command in the image", re.I)
_NOT_EXECUTABLE: Final = re.compile("permission denied|exec format error", re.I)


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@click.option(
    "--state",
    type=click.Choice(("started", "ended", "gone")),
    default="ended",
    show_default=True,
    help="what to wait for",
)
@click.option(
    "--timeout", type=options.Duration(is_whole=False), help="the longest, as 30, 10m; then the exit code is 5"
)
@options.pass_client
@click.pass_context
def wait(
    ctx: click.Context, client: Client, *, names: tuple[str, ...], namespace: str, state: str, timeout: float | None
) -> None:
    """Wait for containers and exit with the first code that is not 0; a terminal shows meanwhile why one waits."""
    end, code, every = math.inf if timeout is None else time.monotonic() + timeout, 0, client.named(names, namespace)
    for name in every:
        shown = _await(client, name, namespace, state, end)
        if timeout is not None and shown.state not in _REACHED[state] and shown.state != "gone":
            message = f"{name} is {shown.state} after {timeout:g} s, not {state}"
            raise errors.Insufficient(message, reason="WaitTimedOut", hint=f"`fairlead explain {name}` says why")
        plaintext.echo(shown.state if len(every) == 1 else f"{name} {shown.state}")
        code = code or (exit_code_of(shown) if state == "ended" else 0)
    ctx.exit(code)


def is_watched() -> bool:
    """Return whether standard error is a terminal, where progress is shown."""
    return sys.stderr.isatty()


def _await(client: Client, name: str, namespace: str, state: str, end: float) -> ContainerView:
    """Return the container once it is in the state or gone, or as it is when the time is over."""
    is_seen = is_watched()
    with progress.Progress() as waiting:
        while True:
            left = max(0.0, end - time.monotonic())
            shown = client.wait(name, namespace, state=state, timeout_s=min(left, _LOOK_S if is_seen else _ASK_S))
            if shown.state in _REACHED[state] or shown.state == "gone" or time.monotonic() >= end:
                return shown
            if is_seen:
                is_over = shown.state in view.STARTED
                why = "" if is_over else client.explain(name, namespace).summary
                waiting.show(explain.waiting_line(shown, why), short=why)


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

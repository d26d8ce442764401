"""`fairlead debug`: has an ephemeral container join one that runs, in kubectl's words."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container.start import runflags
from fairlead.cli.core import client as api
from fairlead.cli.core import invocation, options, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting, streams
from fairlead.serve.v1.containers.debug.request import DebugRequest
from fairlead.serve.v1.containers.view import ContainerPart

_TRIES_AGAIN: Final = "it is tried again; `fairlead explain` says more"


@click.command(context_settings={"allow_interspersed_args": False})
@options.container_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND]...")
@options.namespace_option
@click.option("--image", default="", help="image to use  [default: the container's own]")
@click.option("--target", default="", metavar="NAME", help="see the processes of this container of the group")
@click.option("-c", "--container", "called", default="", metavar="NAME", help="name of the new one  [default: made up]")
@click.option("-i", "--stdin", "--interactive", "stdin", is_flag=True, help="pass standard input on")
@click.option("-t", "--tty", "terminal", is_flag=True, help="give the process a terminal")
@click.option("-e", "--env", multiple=True, metavar="KEY[=VALUE]", help="environment variable; KEY: as it is here")
@click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path), help="file of KEY=VALUE lines")
@click.option("-w", "--workdir", default="", metavar="PATH", help="working folder  [default: the image's]")
@click.option(
    "--image-pull-policy",
    "--pull",
    "pull",
    type=click.Choice(("", *runflags.PULLS), case_sensitive=False),
    default="",
    metavar="WHEN",
    help="always, missing or never  [default: missing]",
)
@click.option("-q", "--quiet", is_flag=True, help="do not print the name of the new one")
@options.pass_client
@click.pass_context
def debug(
    ctx: click.Context,
    client: Client,
    /,
    *,
    name: str,
    namespace: str,
    terminal: bool,
    quiet: bool,
    **asked: Any,
) -> None:
    """Join a running container with another one, to look into it.

    It shares network, host name and shared memory; with --target it sees that container's processes too. It has no
    GPUs, is not started again, and ends with the container. Without -i its output is in `fairlead logs -c NAME`.
    """
    starting.await_running(client, name, namespace)
    body = _body(asked, invocation.current(ctx).env, tty=terminal)
    path, params = api.container_path(name), {"namespace": namespace}
    made = client.call("POST", f"{path}/ephemeralcontainers", ContainerPart, params=params, body=body)
    if not body.name and not quiet:
        plaintext.echo(f"Defaulting debug container name to {made.name}.", err=True)
    starting.await_running(client, name, namespace, made.name)
    part = next(one for one in client.container(name, namespace).containers if one.name == made.name)
    if part.state == "waiting":
        message = f'"{made.name}" does not start: {part.message or part.reason or "its node has not said why"}'
        raise errors.Conflict(message, reason=part.reason or "ContainerNotRunning", hint=_TRIES_AGAIN)
    if not body.stdin:
        return
    if terminal and sys.stdin.isatty() and not quiet:
        plaintext.echo("If you don't see a command prompt, try pressing enter.", err=True)
    query = [("namespace", namespace), ("container", made.name), ("stdin", "true"), ("replay", "true")]
    with (
        client.connect(f"{path}/attach", [*query, ("split", "true")]) as connection,
        contextlib.suppress(streams.Detached),
    ):
        ctx.exit(streams.carry(streams.Session(connection), stdin=True, terminal=terminal, detaches=sys.stdin.isatty()))
    plaintext.echo(f"{made.name} goes on; `fairlead attach -c {made.name} {name}` joins it again", err=True)


def _body(asked: Mapping[str, Any], here: Mapping[str, str], *, tty: bool) -> DebugRequest:
    """Return the request of what is typed. Args: here: this program's own variables."""
    return DebugRequest(
        image=asked["image"],
        name=asked["called"],
        target=asked["target"],
        command=options.words(asked["command"]),
        env=options.environment(asked["env"], asked["env_files"], here),
        workdir=asked["workdir"],
        pull=runflags.pull(asked["pull"]),
        stdin=asked["stdin"],
        tty=tty,
    )

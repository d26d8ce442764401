"""`fairlead exec`: runs one more process in a container and carries its streams."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.core import client as api
from fairlead.cli.core import invocation, options
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting, streams
from fairlead.client.session.standstill import Standstill


@click.command("exec", context_settings={"allow_interspersed_args": False})
@options.container_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[--] COMMAND...")
@options.namespace_option
@click.option("-i", "--stdin", "--interactive", "stdin", is_flag=True, help="pass standard input on")
@click.option("-t", "--tty", "terminal", is_flag=True, help="give the process a terminal")
@click.option("-e", "--env", multiple=True, metavar="KEY[=VALUE]", help="environment variable; KEY: as it is here")
@click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path), help="file of KEY=VALUE lines")
@click.option("-u", "--user", default="", metavar="USER[:GROUP]", help="by number, or by name in the image")
@click.option("-w", "--workdir", default="", metavar="PATH", help="working folder in the container")
@click.option("-c", "--container", default="", help="which container of a group  [default: the first]")
@options.pass_client
@click.pass_context
def execute(
    ctx: click.Context,
    client: Client,
    /,
    *,
    name: str,
    command: tuple[str, ...],
    stdin: bool,
    terminal: bool,
    env: tuple[str, ...],
    env_files: tuple[Path, ...],
    **where: str,
) -> None:
    """Run one more process in a container.

    On a cluster -e and -w are carried out by the image's own sh, and -u is refused.
    """
    flags = {"tty": terminal, "stdin": stdin, "split": True}
    params = [("command", word) for word in options.words(command)]
    params += [(key, str(value).lower()) for key, value in flags.items()]
    variables = options.environment(env, env_files, invocation.current(ctx).env)
    params += [("env", f"{key}={value}") for key, value in variables.items()]
    params += [(key, value) for key, value in where.items() if value]
    starting.await_running(client, name, where["namespace"], where["container"])
    with client.connect(f"{api.container_path(name)}/exec", params) as connection:
        still = Standstill(streams.warn_of_standstill(client)) if stdin and not terminal else None
        code = streams.carry(streams.Session(connection, still=still), stdin=stdin, terminal=terminal)
    if not stdin:
        streams.warn_of_unread_input()
    ctx.exit(code)

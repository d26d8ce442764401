"""`fairlead cp`: copies files into a container and out of it.

A colon distinguishes the two ends: `NAME:PATH` is in a container, anything with a slash before the colon is not.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Final

import click

from fairlead.cli.core import options
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting, streams, unbuffered
from fairlead.client.session import copying

_STDIO: Final = "-"


def parse(text: str) -> copying.End:
    """Return which end a word names: `NAME:PATH`, else a path of this machine."""
    name, colon, path = text.partition(":")
    if not colon or "/" in name or name in {"", ".", ".."}:
        return copying.End(path=text)
    return copying.End(path=copying.rooted(path), container=name)


@click.command("cp")
@click.argument("source", metavar="[CONTAINER:]SOURCE")
@click.argument("target", metavar="[CONTAINER:]TARGET")
@options.namespace_option
@click.option("-c", "--container", default="", help="which container of a group  [default: the first]")
@click.option("-a", "--archive", is_flag=True, help="keep owners of what is copied in  [default: root]")
@options.pass_client
def copy(client: Client, *, source: str, target: str, namespace: str, container: str, archive: bool) -> None:
    """Copy files into a container, or out of it.

    One of SOURCE and TARGET is CONTAINER:PATH, the other a path of this machine, or - for a tar on standard input or
    output. As with cp(1), a folder that is there already receives the source; one that is not becomes it.
    """
    one, other = parse(source), parse(target)
    if bool(one.container) == bool(other.container):
        raise click.UsageError("one of SOURCE and TARGET is CONTAINER:PATH, the other a path of this machine")
    where = {"namespace": namespace, "container": container}
    starting.await_running(client, one.container or other.container, namespace, container)
    if one.container:
        end = dataclasses.replace(one, where=where)
        copying.copy_out(client, end, sys.stdout.buffer if other.path == _STDIO else Path(other.path))
    else:
        end = dataclasses.replace(other, where=where)
        what, stands = (
            unbuffered.standard_input() if one.path == _STDIO else one.path,
            streams.warn_of_standstill(client),
        )
        copying.copy_in(client, what, end, keeps_owners=archive, stands=stands)

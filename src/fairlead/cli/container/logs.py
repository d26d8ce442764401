"""`fairlead logs`: copies what a container wrote to standard output, byte by byte."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import options
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers import view


@click.command()
@options.container_argument()
@options.namespace_option
@click.option("-f", "--follow", is_flag=True, help="wait for the start and go on to the end")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="only the last N lines; also -n N")
@click.option("-t", "--timestamps", is_flag=True, help="put the time before each line")
@click.option("-c", "--container", default="", help="which container of a group  [default: the first]")
@options.pass_client
def logs(
    client: Client, *, name: str, namespace: str, follow: bool, tail: int | None, timestamps: bool, container: str
) -> None:
    """Show what a container wrote."""
    if tail is None and namespace.isdecimal():  # docker's -n is a number of lines, ours the namespace
        tail, namespace = int(namespace), client.namespace
    params = {
        "namespace": namespace,
        "follow": str(follow).lower(),
        "tail": tail,
        "timestamps": str(timestamps).lower(),
        "container": container or None,
    }
    with client.stream("GET", f"{api.container_path(name)}/logs", params=params) as pieces:
        count = copy(pieces)
    if follow and not count:
        _explain_silence(client, name, namespace)


def copy(pieces: Iterator[bytes]) -> int:
    """Write pieces to standard output as they come; return how many bytes they were."""
    target = sys.stdout.buffer
    count = 0
    for piece in pieces:
        target.write(piece)
        target.flush()
        count += len(piece)
    return count


def _explain_silence(client: Client, name: str, namespace: str) -> None:
    """Raise where a followed container ended without ever having started; a silent one is not an error."""
    shown = client.container(name, namespace)
    if shown.state in view.ENDED and shown.started_at is None:
        why = ": ".join(part for part in (shown.reason, shown.message) if part) or shown.state
        raise errors.Conflict(f"{name} never started ({why})", reason="ContainerNotStarted")

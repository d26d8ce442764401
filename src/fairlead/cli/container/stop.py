"""`fairlead stop` and `rm`: end containers, keeping their records or not."""

from __future__ import annotations

import contextlib

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext, progress
from fairlead.cli.core.client import Client

_GRACE = click.option("--grace", type=click.IntRange(min=0), help="seconds between SIGTERM and SIGKILL")
_NO_WAIT = click.option("--no-wait", is_flag=True, help="return at once")


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@_GRACE
@_NO_WAIT
@options.pass_client
def stop(client: Client, *, names: tuple[str, ...], namespace: str, grace: int | None, no_wait: bool) -> None:
    """Stop containers and keep their records.

    On a cluster a stop is an eviction, which a disruption budget may forbid, and no record stays.
    """
    for name in names:
        client.stop(name, namespace, grace_s=grace)
    with progress.Progress() as waiting:
        for name in names:
            if not no_wait:
                waiting.show(f"stopping {name}")
                client.wait_for_end(name, namespace)
                waiting.clear()
                if client.cluster:
                    plaintext.echo(
                        f"{name} is removed as well: a cluster keeps no record of what was stopped", err=True
                    )
            plaintext.echo(name)


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@_GRACE
@_NO_WAIT
@options.pass_client
def rm(client: Client, *, names: tuple[str, ...], namespace: str, grace: int | None, no_wait: bool) -> None:
    """Stop and remove containers."""
    for name in names:
        client.delete(name, namespace, grace_s=grace)
    with progress.Progress() as waiting:
        for name in names:
            if not no_wait:
                waiting.show(f"removing {name}")
                await_gone(client, name, namespace)
                waiting.clear()
            plaintext.echo(name)


def await_gone(client: Client, name: str, namespace: str) -> None:
    """Return once the container's object is removed; one that is removed already is not an error."""
    with contextlib.suppress(errors.NotFound):
        client.wait_until(name, namespace, state="gone")

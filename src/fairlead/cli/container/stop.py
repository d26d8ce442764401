"""`fairlead stop` and `rm`: end containers, keeping their records or not.

`rm` removes a running container only with `--force`, so that a mistyped name costs nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerView

_GRACE = click.option(
    "-t",
    "--time",
    "--grace",
    "grace",
    type=options.Duration(),
    help="between SIGTERM and SIGKILL  [default: the container's own]",
)
_RUNNING: Final = frozenset({"creating", "running", "crashed", "stopping"})
_NO_WAIT = click.option("--no-wait", is_flag=True, help="return at once")
F = TypeVar("F", bound=Callable[..., Any])


def _ending(*, required: bool) -> Callable[[F], F]:
    """Add what `stop` and `rm` have in common: the containers' names and namespace, the grace, whether to wait."""

    def decorate(function: F) -> F:
        shared = (options.container_argument("names", many=True, required=required), options.namespace_option, _GRACE)
        for option in (_NO_WAIT, *reversed(shared)):
            function = option(function)
        return function

    return decorate


@click.command()
@_ending(required=True)
@options.pass_client
def stop(client: Client, *, names: tuple[str, ...], namespace: str, grace: int | None, no_wait: bool) -> None:
    """Stop containers and keep their records.

    On a cluster a stop is an eviction, which a disruption budget may forbid, and no record stays.
    """
    names = tuple(client.named(names, namespace))
    for name in names:
        client.stop(name, namespace, grace_s=grace)
    with progress.Progress() as waiting:
        for name in names:
            if not no_wait:
                await_end(client, name, namespace, grace, waiting)
                waiting.clear()
                if client.cluster:
                    plaintext.echo(
                        f"{name} is removed as well: a cluster keeps no record of what was stopped", err=True
                    )
            plaintext.echo(name)


def await_end(client: Client, name: str, namespace: str, grace_s: int | None, waiting: progress.Progress) -> str:
    """Return the state of a stopped container once it has ended; `gone` where no record of it stays.

    Meanwhile it counts down to the moment at which the container is killed.
    Args: grace_s: what was asked for; None: the container's own.
    """
    started = time.monotonic()
    with contextlib.suppress(errors.NotFound):
        while True:
            shown = client.wait(name, namespace, state="ended", timeout_s=0.5)
            if shown.state in view.ENDED:
                return shown.state
            waiting.show(f"stopping {name}", live=_countdown(shown, grace_s, started))
    return "gone"


def _countdown(shown: ContainerView, grace_s: int | None, started: float) -> str:
    """Say how long a container that is asked to end still has; nothing where it runs no longer, or is killed."""
    left = (shown.grace_s if grace_s is None else grace_s) - (time.monotonic() - started)
    return f", killed in {left:.0f} s" if left > 0 and shown.state in _RUNNING else ""


@click.command()
@_ending(required=False)
@click.option("-f", "--force", is_flag=True, help="also those that run: killed at once, or -t later")
@click.option("-a", "--all", "all_ended", is_flag=True, help="all of the namespace that have ended")
@options.pass_client
def rm(
    client: Client,
    *,
    names: tuple[str, ...],
    namespace: str,
    force: bool,
    all_ended: bool,
    grace: int | None,
    no_wait: bool,
) -> None:
    """Remove containers; -f: running ones too."""
    if bool(names) == all_ended:
        raise click.UsageError("give names of containers or --all, one of them")
    client.check_change()
    if all_ended:
        every = client.list_containers(show_ended=True, namespace=namespace)
        found = [item for item in every if force or item.state in view.ENDED]
    else:
        found = [client.container(name, namespace) for name in client.named(names, namespace)]
    if not force:
        _check_ended(found)
    names = tuple(item.name for item in found)
    for item in found:
        # A pending one may start just before the removal: it has done nothing yet that a grace period would save. On a
        # cluster no grace is a removal by force, which leaves processes behind the record.
        is_killed = item.state == "pending" or (force and not client.cluster)
        client.delete(item.name, namespace, grace_s=0 if grace is None and is_killed else grace)
    for name in names:
        if not no_wait:
            with progress.Progress() as waiting:  # a timer for each container
                await_gone(client, name, namespace, grace, waiting)
        plaintext.echo(name)


def _check_ended(found: Sequence[ContainerView]) -> None:
    """Refuse all where one runs, so that a wrong name costs nothing. Raises: Conflict."""
    for item in found:
        if item.state in _RUNNING:
            message = f"{item.name} is {item.state}; nothing was removed"
            hint = f"`fairlead rm -f {' '.join(one.name for one in found)}` stops it first"
            raise errors.Conflict(message, reason="ContainerNotEnded", hint=hint)


def await_gone(client: Client, name: str, namespace: str, grace_s: int | None, waiting: progress.Progress) -> None:
    """Return once the container's object is removed; one that is removed already is not an error."""
    started = time.monotonic()
    with contextlib.suppress(errors.NotFound):
        while (shown := client.wait(name, namespace, state="gone", timeout_s=0.5)).state != "gone":
            waiting.show(f"removing {name}", live=_countdown(shown, grace_s, started))

"""Verbs over containers that exist: list, stop, remove, wait, explain."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, progress
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.v1 import view
from fairlead.serve.v1.view import ContainerView, Explanation


def _gpus(item: ContainerView) -> str:
    granted = sum(len(ids) for ids in item.devices.values())
    return str(item.gpus) if granted in {0, item.gpus} else f"{granted}/{item.gpus}"


def _state(item: ContainerView) -> str:
    if item.state == "failed" and item.exit_code:
        return f"failed ({item.exit_code})"
    return item.state


def _devices(item: ContainerView) -> str:
    return ",".join(device for ids in item.devices.values() for device in ids)


_NAMESPACE: Final = Column[ContainerView]("NAMESPACE", lambda item: item.namespace, is_wide=True)
_COLUMNS: Final = (
    Column[ContainerView]("NAME", lambda item: item.name),
    _NAMESPACE,
    Column[ContainerView]("STATE", _state),
    Column[ContainerView]("REASON", lambda item: item.reason),
    Column[ContainerView]("GPUS", _gpus),
    Column[ContainerView]("NODE", lambda item: item.node),
    Column[ContainerView]("RESTARTS", lambda item: str(item.restarts)),
    Column[ContainerView]("AGE", lambda item: output.age(item.created_at)),
    Column[ContainerView]("IMAGE", lambda item: item.image),
    Column[ContainerView]("DEVICES", _devices, is_wide=True),
    Column[ContainerView]("MESSAGE", lambda item: item.message, is_wide=True),
)


@click.command()
@click.option("-a", "--all", "show_ended", is_flag=True, help="ended ones too")
@click.option("-l", "--label", "labels", multiple=True, metavar="KEY=VALUE", help="only those with this label")
@click.option("-n", "--namespace", default=None, help="only this namespace  [default: all]")
@options.output_option
@options.pass_client
def ps(client: Client, *, show_ended: bool, labels: tuple[str, ...], namespace: str | None, form: str) -> None:
    """List containers."""
    found = client.list_containers(show_ended=show_ended, labels=labels, namespace=namespace)
    columns: tuple[Column[ContainerView], ...] = _COLUMNS
    if len({item.namespace for item in found}) > 1:  # names alone would not say which is meant
        shown = dataclasses.replace(_NAMESPACE, is_wide=False)
        columns = tuple(shown if column is _NAMESPACE else column for column in _COLUMNS)
    output.show_listing(found, columns, form=form, name=lambda item: item.name)


_GRACE = click.option("--grace", type=click.IntRange(min=0), help="seconds between SIGTERM and SIGKILL")
_NO_WAIT = click.option("--no-wait", is_flag=True, help="return at once")


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@_GRACE
@_NO_WAIT
@options.pass_client
def stop(client: Client, *, names: tuple[str, ...], namespace: str, grace: int | None, no_wait: bool) -> None:
    """Stop containers and keep their records."""
    for name in names:
        client.stop(name, namespace, grace_s=grace)
    with progress.Progress() as waiting:
        for name in names:
            if not no_wait:
                waiting.show(f"stopping {name}")
                client.wait_until(name, namespace, state="ended")
                waiting.clear()
            click.echo(name)


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
            click.echo(name)


def await_gone(client: Client, name: str, namespace: str) -> None:
    """Return once the container's object is removed; one that is removed already is no error."""
    with contextlib.suppress(errors.NotFound):
        client.wait_until(name, namespace, state="gone")


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
    click.echo(shown.state)
    ctx.exit(exit_code_of(shown) if state == "ended" else 0)


def exit_code_of(shown: ContainerView) -> int:
    """Return what a shell should see of an ended container: its own code, else 1 where it never ran or was removed."""
    if shown.exit_code is not None:
        return shown.exit_code
    return 0 if shown.state == "succeeded" else 1


@click.command()
@options.container_argument()
@options.namespace_option
@options.json_option
@options.pass_client
def explain(client: Client, *, name: str, namespace: str, form: str) -> None:
    """Say why a container waits, failed or runs where it does."""
    found = client.explain(name, namespace)
    if form != "text":
        output.show_value(found, form=form)
        return
    for line in explanation_lines(found):
        click.echo(line)


def explanation_lines(found: Explanation) -> list[str]:
    """Return an explanation as lines: the state and why, then each node and why it did or did not fit."""
    lines = [f"{found.name} is {found.state}: {found.summary}"]
    nodes = found.facts.get("nodes")
    if isinstance(nodes, list):
        rows = [node_row(node) for node in nodes if isinstance(node, dict)]
        lines += [f"  {line}" for line in output.lines_of(rows)]
    return lines


def node_row(node: dict[str, object]) -> list[str]:
    """Return one node of a scheduler's step as columns: name, whether it fits, score, why."""
    why = node.get("why")
    reasons = "; ".join(str(item) for item in why) if isinstance(why, (list, tuple)) else str(why or "")
    score = node.get("score")
    return [
        str(node.get("name", "?")),
        "fits" if node.get("fits") else "does not fit",
        f"score {score:g}" if isinstance(score, int | float) else "",
        reasons,
    ]

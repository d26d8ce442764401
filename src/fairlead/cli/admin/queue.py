"""`fairlead queue`: makes, shows, changes and removes queues, which share GPUs among teams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.serve.v1.queues.view import IdleRequest, QueueList, QueueRequest, QueueView
from fairlead.settings.control import POLICIES
from fairlead.settings.idling import ACTIONS


def _amounts(amounts: Mapping[str, str], *, main: str = "") -> str:
    """Return amounts in a cell; those of the resource `gpu` as a plain number."""
    told = [
        value if name == main or name.endswith("/gpu") else f"{value} {name}"
        for name, value in sorted(amounts.items(), key=lambda pair: (not pair[0].endswith("/gpu"), pair[0]))
    ]
    return ", ".join(told) or "-"


def _idle(item: QueueView) -> str:
    """Return what its spec says of idle GPUs; what is its parent's stands as a dash."""
    idle = item.spec.idle
    if idle is None or not any((idle.action, idle.below_percent, idle.after_seconds, idle.warn_seconds, idle.exempt)):
        return "-"
    parts = [idle.action or "-", f"<{idle.below_percent:g}%" if idle.below_percent else ""]
    parts += [output.span(one) for one in (idle.after_seconds, idle.warn_seconds) if one]
    parts.append(f"not {', '.join(idle.exempt)}" if idle.exempt else "")
    return " ".join(filter(None, parts))


def _devices(amounts: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in amounts.items() if "/" in name}


_COLUMNS: Final = (
    Column[QueueView]("NAME", lambda item: item.name),
    Column[QueueView]("PARENT", lambda item: item.spec.parent or "-", rank=2),
    Column[QueueView]("WEIGHT", lambda item: str(item.spec.weight), rank=3),
    Column[QueueView]("GUARANTEE", lambda item: _amounts(item.spec.guarantee)),
    Column[QueueView]("DESERVED", lambda item: _amounts(item.spec.deserved)),
    Column[QueueView]("LIMIT", lambda item: _amounts(item.spec.limit)),
    Column[QueueView]("HAS", lambda item: _amounts(_devices(item.status.allocated))),
    Column[QueueView]("DUE", lambda item: _amounts(_devices(item.status.share))),
    Column[QueueView]("RUN/WAIT", lambda item: f"{item.status.running_pods}/{item.status.pending_pods}"),
    Column[QueueView]("POLICY", lambda item: item.spec.policy or "-", is_wide=True),
    Column[QueueView]("IDLE", _idle, is_wide=True),
    Column[QueueView]("NAMESPACES", lambda item: ", ".join(item.spec.namespaces) or "-", is_wide=True),
    Column[QueueView]("PROBLEM", lambda item: item.problem or "-", is_wide=True),
)


@click.group()
def group() -> None:
    """Share GPUs among teams: what each is due, may borrow, and has to give back."""


def _spec_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of a queue."""

    @click.option("--parent", metavar="QUEUE", help='queue whose share it has a part of; "": the whole cluster')
    @click.option(
        "--weight",
        type=click.IntRange(0, 65535),
        help="share of capacity that no queue has as --deserved  [default: 1]",
    )
    @click.option("--guarantee", multiple=True, metavar="N|RESOURCE=N", help="reserved for the queue, also while idle")
    @click.option(
        "--deserved", multiple=True, metavar="N|RESOURCE=N", help="own share: lent while idle, reclaimed when needed"
    )
    @click.option("--limit", multiple=True, metavar="N|RESOURCE=N", help="the most it may have, borrowed or not")
    @click.option("-n", "--namespace", "namespaces", multiple=True, help="whose containers are in it")
    @click.option("--min-runtime", type=options.Duration(), help="no preemption before this run time")
    @click.option(
        "--policy", type=click.Choice(("", *POLICIES)), metavar="POLICY", help='where they go; "": as its parent has it'
    )
    @click.option(
        "--idle",
        "idle_action",
        type=click.Choice(("", *ACTIONS)),
        metavar="ACTION",
        help='of idle GPUs: off, warn, stop or requeue; "": as its parent has it',
    )
    @click.option("--idle-below", type=click.FloatRange(0, 100), metavar="PERCENT", help="load of a GPU that is idle")
    @click.option("--idle-after", type=options.Duration(), help="idle for so long: its owner is warned")
    @click.option("--idle-warning", type=options.Duration(), help="from the warning to the end")
    @click.option("--idle-cpu", type=click.FloatRange(0), metavar="PERCENT", help="who uses so much of a CPU is busy")
    @click.option("--idle-io", type=click.IntRange(0), metavar="BYTES", help="who moves so many a second is busy")
    @click.option("--idle-exempt", multiple=True, metavar="NAME", help='what is left alone; "": nothing')
    @functools.wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return given


@group.command(name="create")
@click.argument("name")
@_spec_options
@options.output_option
@options.pass_client
def create_verb(client: Client, /, *, name: str, form: str, **given: Any) -> None:
    """Make a queue."""
    _show(_put(client, name, given, create=True), form)


@group.command(name="set")
@click.argument("name")
@_spec_options
@options.output_option
@options.pass_client
def set_verb(client: Client, /, *, name: str, form: str, **given: Any) -> None:
    """Change a queue; what is not named stays as it is."""
    _show(_put(client, name, given, create=False), form)


@group.command(name="ls")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, form: str) -> None:
    """List queues and how they stand: what they have and are due, in GPUs, and how many containers run and wait."""
    found = client.call("GET", "/v1/queues", QueueList)
    output.show_listing(found.items, _COLUMNS, form=form, name=lambda item: item.name)


@group.command(name="rm")
@click.argument("names", nargs=-1, required=True)
@options.pass_client
def rm_verb(client: Client, *, names: Sequence[str]) -> None:
    """Remove queues; their containers go on in the default one."""
    for name in names:
        client.call("DELETE", _path(name), type(None))


def _put(client: Client, name: str, given: dict[str, Any], *, create: bool) -> QueueView:
    request = QueueRequest(
        parent=given["parent"],
        weight=given["weight"],
        guarantee=_parsed(given["guarantee"], "--guarantee", client),
        deserved=_parsed(given["deserved"], "--deserved", client),
        limit=_parsed(given["limit"], "--limit", client),
        namespaces=given["namespaces"] or None,
        min_runtime_seconds=given["min_runtime"],
        policy=given["policy"],
        idle=_idle_request(given),
    )
    return client.call("PUT", _path(name), QueueView, body=request, params={"create": str(create).lower()})


def _idle_request(given: Mapping[str, Any]) -> IdleRequest | None:
    """Return what is asked of idle GPUs; None: nothing."""
    wanted = {field: given[option] for option, field in _IDLE.items() if given[option] is not None}
    if given["idle_exempt"]:
        wanted["exempt"] = tuple(filter(None, given["idle_exempt"]))
    return IdleRequest(**wanted) if wanted else None


_IDLE: Final = {
    "idle_action": "action",
    "idle_below": "below_percent",
    "idle_after": "after_seconds",
    "idle_warning": "warn_seconds",
    "idle_cpu": "cpu_percent",
    "idle_io": "io_bytes",
}
"""Options, and what they are in a request."""


def _parsed(values: Sequence[str], flag: str, client: Client) -> Mapping[str, str] | None:
    """Return amounts by resource; a plain number is of GPUs. Raises: Invalid."""
    if not values:
        return None
    found: dict[str, str] = {}
    for text in values:
        resource, equals, amount = text.rpartition("=")
        if not amount or (equals and not resource):
            message = f'{flag} "{text}" is not of the form N or RESOURCE=N'
            raise errors.Invalid(message, reason="AmountInvalid", hint=f"{flag} 8, {flag} memory=64Gi")
        found[resource if equals else client.status().resource] = amount
    return found


def _path(name: str) -> str:
    return item_path("/v1/queues", name)


def _show(found: QueueView, form: str) -> None:
    output.show_listing((found,), _COLUMNS, form=form, name=lambda item: item.name)

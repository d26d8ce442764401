"""`fairlead reserve`: reserves GPUs for a time to come, once or again and again, and shows what is reserved."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.plan.reservation import calendar
from fairlead.serve.v1.reservations.view import ReservationList, ReservationRequest, ReservationView, TakenView
from fairlead.wire.fairlead.reservation import REPEATS
from fairlead.wire.kubernetes import meta

_PATH: Final = "/v1/reservations"


def _time(text: str, zone: str) -> str:
    at = meta.timestamp(text)
    return "-" if at is None else calendar.says(at, zone)


def _length(seconds: float) -> str:
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours}h{rest:02}m" if hours and rest else f"{hours}h" if hours else f"{rest}m"


_COLUMNS: Final = (
    Column[ReservationView]("NAME", lambda item: item.name),
    Column[ReservationView]("NAMESPACE", lambda item: item.namespace, rank=2),
    Column[ReservationView]("GPUS", lambda item: str(item.gpus)),
    Column[ReservationView]("STATE", lambda item: item.state, rank=1),
    Column[ReservationView]("FROM", lambda item: _time(item.start, item.zone)),
    Column[ReservationView]("FOR", lambda item: _length(item.duration_seconds)),
    Column[ReservationView]("REPEAT", lambda item: item.repeat or "-", rank=3),
    Column[ReservationView]("UNTIL", lambda item: item.until or "-", is_wide=True),
    Column[ReservationView]("GPU-HOURS", lambda item: f"{item.gpu_hours:g}", is_wide=True),
    Column[ReservationView]("ZONE", lambda item: item.zone, is_wide=True),
)


@options.pass_client
def _reserve(client: Client, /, *, length: float | None, form: str, **given: Any) -> None:
    asked = {"--gpus": given["gpus"], "--from": given["start"], "--for": length}
    lacking = [flag for flag, value in asked.items() if not value]
    if lacking or length is None:
        message = f"{', '.join(lacking)}: not given, so nothing is reserved"
        hint = 'for example `fairlead reserve -g 4 --from "tomorrow 9:00" --for 3h`; `reserve list` shows what is'
        raise errors.RequestError(message, reason="OptionMissing", hint=hint)
    body = ReservationRequest(duration_seconds=int(length), **{**given, "repeat": given["repeat"] or ""})
    made = client.call("POST", _PATH, ReservationView, body=body)
    if form != "table":
        output.show_listing((made,), _COLUMNS, form=form, name=lambda item: item.name)
        return
    until = f", {made.repeat} until {made.until}" if made.repeat else ""
    when = f"from {_time(made.start, made.zone)} for {_length(made.duration_seconds)}{until}"
    plaintext.echo(f"{made.name}: {made.gpus} {'GPU' if made.gpus == 1 else 'GPUs'} {when}")


@click.group("reserve", invoke_without_command=True)
@click.option("-g", "--gpus", type=click.IntRange(1, 1_000_000), metavar="N", help="whole GPUs")
@click.option(
    "--from", "start", default="", metavar="TIME", help='"tomorrow 9:00", "mon 18:30", "2026-12-01 9:00", now'
)
@click.option("--for", "length", type=options.Duration(least_s=60), help="how long, such as 3h")
@click.option("--repeat", type=click.Choice(REPEATS[1:]), help="again each day, Monday to Friday, or each week")
@click.option("--until", default="", metavar="DAY", help="last day of one that repeats, 2026-12-31")
@click.option("--zone", default="", metavar="ZONE", help="time zone of --from, Europe/Berlin  [default: the service's]")
@click.option("--name", default="", help="name of the reservation  [default: one is made up]")
@options.namespace_option
@options.output_option
@options.cluster_options
@click.pass_context
def group(ctx: click.Context, /, **given: Any) -> None:
    """Reserve GPUs for a time to come.

    What would still hold them by then is not started, and what does is ended after a warning (`reserve.overrun`). In
    its time only containers of its namespace get them.
    """
    if ctx.invoked_subcommand is None:
        _reserve(**given)
    elif any(value for name, value in given.items() if name != "form"):
        message = f"options of a new reservation stand before {ctx.invoked_subcommand}"
        hint = f"put them behind it: `fairlead reserve {ctx.invoked_subcommand} --help`"
        raise errors.RequestError(message, reason="OptionMisplaced", hint=hint)


@group.command("list")
@click.option("-n", "--namespace", help="only this namespace  [default: all]")
@options.tenancy_option
@click.option("--ics", is_flag=True, help="print an iCalendar file, as calendar programs read it")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, namespace: str | None, ics: bool, form: str) -> None:
    """List reservations, and when others have GPUs reserved."""
    where = {"namespace": namespace or None}
    if ics:
        with client.stream("GET", f"{_PATH}.ics", params=where) as pieces:
            sys.stdout.write(b"".join(pieces).decode())
        return
    found = client.call("GET", _PATH, ReservationList, params=where)
    output.show_listing(found.items, _COLUMNS, form=form, name=lambda item: item.name)
    if form == "table":
        for one in found.taken[:_LISTED]:
            plaintext.echo(_taken(one), err=True)


_LISTED: Final = 10


def _taken(one: TakenView) -> str:
    be = "GPU is" if one.gpus == 1 else "GPUs are"
    return f"{one.gpus} {be} reserved by others from {_time(one.start, 'UTC')} to {_time(one.end, 'UTC')}"


def _known(client: Client) -> Any:
    for item in client.call("GET", _PATH, ReservationList).items:
        yield item.name, ""


_NAME = click.argument("name", metavar="RESERVATION", shell_complete=options.asking(_known))


@group.command("show")
@_NAME
@options.namespace_option
@options.pass_client
def show_verb(client: Client, *, name: str, namespace: str) -> None:
    """Print all that is known of a reservation, as JSON, with its next windows."""
    found = client.call("GET", item_path(_PATH, name), ReservationView, params={"namespace": namespace})
    output.show_value(found, form="json")


@group.command("delete")
@click.argument("names", metavar="RESERVATION...", nargs=-1, required=True, shell_complete=options.asking(_known))
@options.namespace_option
@options.pass_client
def delete_verb(client: Client, *, names: tuple[str, ...], namespace: str) -> None:
    """Give reserved GPUs back; containers that run go on."""
    for name in names:
        client.call("DELETE", item_path(_PATH, name), type(None), params={"namespace": namespace})
        plaintext.echo(name)

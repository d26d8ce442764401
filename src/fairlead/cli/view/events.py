"""`fairlead events`: lists or follows what happened, in a person's words; `-o json` has the messages as they are."""

from __future__ import annotations

import datetime as dt
from typing import Final

import click
import msgspec

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.view import moment
from fairlead.plan.pod import personwords
from fairlead.serve.v1.events.view import EventList, EventView
from fairlead.wire.text import timestamp

_EVENT_COLUMNS: Final = (
    Column[EventView]("AGE", lambda item: output.age(item.at)),
    Column[EventView]("TYPE", lambda item: item.type),
    Column[EventView]("REASON", lambda item: item.reason),
    Column[EventView]("OBJECT", lambda item: item.object),
    Column[EventView]("SOURCE", lambda item: item.source, is_wide=True),
    Column[EventView]("MESSAGE", lambda item: personwords.message(item.message), is_folded=True),
)


@click.command()
@click.argument("object_", metavar="[KIND/NAME]", default="")
@click.option("-f", "--follow", is_flag=True, help="go on until interrupted")
@click.option(
    "--since", callback=moment.parse, metavar="TIME", help="only what happened since: 10m, 2h, a date or a time"
)
@options.output_option
@options.pass_client
def events(client: Client, *, object_: str, follow: bool, since: str | None, form: str) -> None:
    """List or follow what happened."""
    params = {"object": object_ or None, "follow": str(follow).lower()}
    if not follow:
        found = client.call("GET", "/v1/events", EventList, params=params).items
        found = tuple(item for item in found if since is None or _is_since(item, since))
        output.show_listing(found, _EVENT_COLUMNS, form=form, name=lambda item: item.object)
        return
    for line in client.followed("/v1/events", params=params):
        item = msgspec.convert(line, EventView)
        if since is None or _is_since(item, since):
            _show_event(item, form)


def _is_since(item: EventView, since: str) -> bool:
    at, least = timestamp.parse(item.at or ""), timestamp.parse(since)
    return at is not None and least is not None and at >= least


def _show_event(item: EventView, form: str) -> None:
    if form in {"json", "yaml"}:
        plaintext.echo(plaintext.as_json(msgspec.to_builtins(item)))
        return
    at = dt.datetime.fromisoformat(item.at).astimezone().strftime("%H:%M:%S.%f")[:-3] if item.at else "-"
    why = personwords.message(item.message)
    plaintext.echo(item.object if form == "name" else f"{at}  {item.type:<7}  {item.reason}  {item.object}  {why}")

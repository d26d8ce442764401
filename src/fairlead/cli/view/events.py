"""`fairlead events`: lists or follows what happened, in a person's words; `-o json` has the messages as they are."""

from __future__ import annotations

import datetime as dt
from typing import Final

import click
import msgspec

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.plan.pod import personwords
from fairlead.serve.v1.events.view import EventList, EventView

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
@options.output_option
@options.pass_client
def events(client: Client, *, object_: str, follow: bool, form: str) -> None:
    """List or follow what happened."""
    params = {"object": object_ or None, "follow": str(follow).lower()}
    if not follow:
        found = client.call("GET", "/v1/events", EventList, params=params).items
        output.show_listing(found, _EVENT_COLUMNS, form=form, name=lambda item: item.object)
        return
    for line in client.followed("/v1/events", params=params):
        _show_event(msgspec.convert(line, EventView), form)


def _show_event(item: EventView, form: str) -> None:
    if form in {"json", "yaml"}:
        plaintext.echo(plaintext.as_json(msgspec.to_builtins(item)))
        return
    at = dt.datetime.fromisoformat(item.at).astimezone().strftime("%H:%M:%S.%f")[:-3] if item.at else "-"
    why = personwords.message(item.message)
    plaintext.echo(item.object if form == "name" else f"{at}  {item.type:<7}  {item.reason}  {item.object}  {why}")

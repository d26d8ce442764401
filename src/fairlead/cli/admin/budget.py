"""`fairlead budget`: what tenancies may spend in a month, and what happens when it is used up."""

from __future__ import annotations

from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.plan.metering.budget import ACTIONS
from fairlead.serve.v1.budgets.view import BudgetList, BudgetRequest, BudgetView

_DIGITS: Final = 9
"""Most digits of a percentage that are parsed; the service checks the range."""
_COLUMNS: Final = (
    Column[BudgetView]("TENANCY", lambda item: item.tenancy),
    Column[BudgetView]("MONTH", lambda item: item.period),
    Column[BudgetView]("SPENT", lambda item: f"{_money(item.spent)} {item.currency}"),
    Column[BudgetView]("BUDGET", lambda item: _money(item.amount)),
    Column[BudgetView]("USED", lambda item: f"{item.percent:.0f} %"),
    Column[BudgetView]("ACTION", lambda item: item.action),
    Column[BudgetView]("STATE", lambda item: item.state),
    Column[BudgetView]("STOPS AT", lambda item: item.stops_at or "-", is_wide=True),
)


def _money(text: str) -> str:
    """Return an amount to the cent, which a table has room for; JSON has all of it."""
    return f"{float(text):.2f}"


@click.group("budget")
def group() -> None:
    """Limit what a tenancy's GPUs cost in a month, by the prices of `metering.prices`."""


def _percentages(_context: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    parts = [one.strip() for one in text.split(",") if one.strip()]
    if any(not (one.isascii() and one.isdecimal() and len(one) <= _DIGITS) for one in parts):
        raise errors.Invalid(
            f'--notify-percent "{text}" is not percentages', reason="BudgetInvalid", hint="as 50,80,100"
        )
    return tuple(map(int, parts))


@group.command("set")
@click.argument("name", metavar="TENANCY")
@click.argument("amount", metavar="AMOUNT")
@click.option(
    "--action",
    type=click.Choice(ACTIONS),
    default=ACTIONS[0],
    show_default=True,
    help="once it is used up: tell webhooks; refuse what is new as well; also stop what holds GPUs",
)
@click.option("--grace", type=float, default=3600, show_default=True, metavar="SECONDS", help="wait before the stop")
@click.option(
    "--notify-percent",
    default="50,80,100",
    show_default=True,
    metavar="PERCENTS",
    callback=_percentages,
    help="shares of the budget at which webhooks are sent an event, each once a month",
)
@options.pass_client
def set_verb(
    client: Client, *, name: str, amount: str, action: str, grace: float, notify_percent: tuple[int, ...]
) -> None:
    """Set what a tenancy may spend in a month of the calendar (UTC)."""
    body = BudgetRequest(amount=amount, action=action, grace_s=grace, notify_percent=notify_percent)
    made = client.call("PUT", _path(name), BudgetView, body=body)
    plaintext.echo(f"{made.tenancy}: {_money(made.amount)} {made.currency} a month, then {made.action}")


@group.command("list")
@options.output_option
@options.pass_client
def list_verb(client: Client, *, form: str) -> None:
    """List budgets and what is spent of them."""
    found = client.call("GET", "/v1/budgets", BudgetList)
    output.show_listing(found.items, _COLUMNS, form=form, name=lambda item: item.tenancy)


@group.command("show")
@click.argument("name", metavar="TENANCY")
@options.output_option
@options.pass_client
def show(client: Client, *, name: str, form: str) -> None:
    """Show a tenancy's budget."""
    found = client.call("GET", _path(name), BudgetView)
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
    else:
        output.show_listing([found], _COLUMNS, form=form, name=lambda item: item.tenancy)


@group.command("remove")
@click.argument("name", metavar="TENANCY")
@options.pass_client
def remove(client: Client, *, name: str) -> None:
    """Remove a tenancy's budget: what it refused is accepted again."""
    client.call("DELETE", _path(name), type(None))
    plaintext.echo(f"{name}: no budget")


def _path(name: str) -> str:
    return item_path("/v1/tenancies", name) + "/budget"

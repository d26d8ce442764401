"""`fairlead simulate`: breaks and mends the running service's simulated silicon, and lists what can be simulated."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.v1.faultview import FaultDone, FaultRequest
from fairlead.silicon.sim import fault as faults
from fairlead.silicon.sim import profile as profiles


@click.group()
def simulate() -> None:
    """Break simulated GPUs, list faults and profiles."""


class ProfileView(msgspec.Struct, frozen=True, kw_only=True):
    """One profile of simulated silicon."""

    name: str
    gpus: int
    boards: str
    driver: str


@simulate.command()
@click.argument("fault")
@click.argument("value", required=False)
@click.option("-g", "--gpu", type=click.IntRange(min=0), metavar="INDEX", help="which GPU  [default: the machine]")
@options.pass_client
def fault(client: Client, *, fault: str, value: str | None, gpu: int | None) -> None:
    """Break something, for example `fairlead simulate fault xid 79 -g 3`; an unknown FAULT lists those there are."""
    request = FaultRequest(fault=fault, gpu=gpu, value=value)
    click.echo(client.call("POST", "/v1/faults", FaultDone, body=request).message)


_PROFILE_COLUMNS: Final = (
    Column[ProfileView]("PROFILE", lambda item: item.name),
    Column[ProfileView]("GPUS", lambda item: str(item.gpus)),
    Column[ProfileView]("BOARDS", lambda item: item.boards),
    Column[ProfileView]("DRIVER", lambda item: item.driver),
)


class FaultView(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that can be made to happen."""

    name: str
    value: str
    default: str
    text: str


_FAULT_COLUMNS: Final = (
    Column[FaultView]("FAULT", lambda item: item.name),
    Column[FaultView]("VALUE", lambda item: item.value or "-"),
    Column[FaultView]("DEFAULT", lambda item: item.default or "-"),
    Column[FaultView]("WHAT HAPPENS", lambda item: item.text),
)


@simulate.command("faults")
@options.output_option
def list_faults(*, form: str) -> None:
    """List what can be broken on command."""
    found = [
        FaultView(name=name, value=item.value, default=item.default, text=item.text)
        for name, item in faults.FAULTS.items()
    ]
    output.show_listing(found, _FAULT_COLUMNS, form=form, name=lambda item: item.name)


@simulate.command("profiles")
@options.output_option
def list_profiles(*, form: str) -> None:
    """List the machines that can be simulated."""
    found = [_view(profiles.load(name)) for name in profiles.list_names()]
    output.show_listing(found, _PROFILE_COLUMNS, form=form, name=lambda item: item.name)


def _view(profile: profiles.Profile) -> ProfileView:
    counts: dict[str, int] = {}
    for board in profile.boards:
        counts[board.part.name] = counts.get(board.part.name, 0) + 1
    boards = ", ".join(f"{count} x {name}" for name, count in counts.items())
    return ProfileView(name=profile.name, gpus=len(profile.boards), boards=boards, driver=profile.driver)

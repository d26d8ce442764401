"""`fairlead simulate`: breaks and mends the running service's simulated silicon, and lists what can be simulated."""

from __future__ import annotations

import dataclasses
from typing import Final

import click
import msgspec

from fairlead.cli.core import connection, invocation, options, output, plaintext, target
from fairlead.cli.core.output import Column
from fairlead.serve.v1.gpus.faultview import FaultDone, FaultRequest
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
@click.argument("fault", shell_complete=options.complete_faults)
@click.argument("value", required=False)
@click.option(
    "-g",
    "--gpu",
    type=click.IntRange(min=0),
    metavar="INDEX",
    shell_complete=options.complete_gpus,
    help="which GPU  [default: the machine]",
)
@click.option("--node", metavar="NODE", help="whose GPU, on a cluster  [default: the only node that has any]")
@options.cluster_options
@click.pass_context
def fault(ctx: click.Context, *, fault: str, value: str | None, gpu: int | None, node: str | None) -> None:
    """Break something, for example `fairlead simulate fault xid 79 -g 3`; an unknown FAULT lists those there are.

    On a cluster it reaches the agent of NODE by the API server's exec, so it takes the right to create pods/exec there.
    """
    request = FaultRequest(fault=fault, gpu=gpu, value=value, node=node)
    with connection.opened(_meant(invocation.current(ctx))) as client:
        plaintext.echo(client.call("POST", "/v1/faults", FaultDone, body=request).message)


def _meant(call: invocation.Invocation) -> invocation.Invocation:
    """Return the call, aimed at this machine's agent where one takes faults and nothing else was named.

    In an agent's container everything else would mean the cluster, which is what sent us here.
    """
    is_named = call.url or call.kubeconfig or call.context or call.env.get("FAIRLEAD_URL")
    door = call.settings().fault_socket
    if is_named or invocation.is_served(call.settings().api_socket) or not invocation.is_served(door):
        return call
    return dataclasses.replace(call, url=f"{target.LOCAL}{door}")


_PROFILE_COLUMNS: Final = (
    Column[ProfileView]("PROFILE", lambda item: item.name),
    Column[ProfileView]("GPUS", lambda item: str(item.gpus)),
    Column[ProfileView]("DRIVER", lambda item: item.driver),
    Column[ProfileView]("BOARDS", lambda item: item.boards, is_folded=True),
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
    Column[FaultView]("DEFAULT", lambda item: item.default or "-", rank=1),
    Column[FaultView]("WHAT HAPPENS", lambda item: item.text, is_folded=True),
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

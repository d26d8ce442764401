"""`fairlead capacity`: says how many devices are free, and what of that fits."""

from __future__ import annotations

from typing import Final

import click

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.v1.nodes.view import CapacityList, CapacityView


def _fits(item: CapacityView) -> str:
    return ", ".join(f"{pods} of {size}" for size, pods in item.fits.items() if pods) or "none"


_COLUMNS: Final = (
    Column[CapacityView]("RESOURCE", lambda item: item.resource),
    Column[CapacityView]("MODEL", lambda item: item.model or "-", rank=2),
    Column[CapacityView]("OFFERED", lambda item: str(item.offered)),
    Column[CapacityView]("FREE", lambda item: str(item.free)),
    Column[CapacityView]("LARGEST", lambda item: str(item.largest)),
    Column[CapacityView]("PODS THAT FIT", _fits),
    Column[CapacityView](
        "FRAGMENTED", lambda item: "-" if item.fragmented is None else f"{item.fragmented:.1f}", rank=3
    ),
)


@click.command()
@options.output_option
@options.pass_client
def capacity(client: Client, *, form: str) -> None:
    """Say how many devices are free, and what of that fits: the largest pod, and how many of each size."""
    found = client.call("GET", "/v1/capacity", CapacityList).items
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.resource)

"""`fairlead ps`: lists containers."""

from __future__ import annotations

import dataclasses
from typing import Final

import click

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.v1.containers.view import ContainerView


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

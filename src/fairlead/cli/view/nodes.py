"""`fairlead nodes`: lists nodes, what they have and what is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.serve.v1.nodes.view import NodeList, NodeView
from fairlead.wire.kubernetes import quantity


def device_counts(resources: Mapping[str, str]) -> str:
    """Return the extended resources among a node's as one text, by name."""
    return ",".join(f"{name}={count}" for name, count in sorted(resources.items()) if "/" in name)


_NODE_COLUMNS: Final = (
    Column[NodeView]("NAME", lambda item: item.name),
    Column[NodeView]("STATE", lambda item: item.state),
    Column[NodeView]("DEVICES", lambda item: device_counts(item.allocatable)),
    Column[NodeView]("TAKEN", lambda item: device_counts(item.used)),
    Column[NodeView]("CPU", lambda item: item.allocatable.get("cpu", "")),
    Column[NodeView]("MEMORY", lambda item: _memory(item.allocatable.get("memory", ""))),
    Column[NodeView]("TAINTS", lambda item: ",".join(item.taints), is_wide=True),
    Column[NodeView]("ENGINE", lambda item: item.engine, is_wide=True),
    Column[NodeView]("KERNEL", lambda item: item.kernel, is_wide=True),
)


def _memory(text: str) -> str:
    """Return a quantity of memory as people read it; one that is none, as it is."""
    try:
        return output.size(quantity.parse_whole(text)) if text else ""
    except errors.FairleadError:
        return text


@click.command()
@options.output_option
@options.pass_client
def nodes(client: Client, *, form: str) -> None:
    """List nodes, what they have and what is taken."""
    found = client.call("GET", "/v1/nodes", NodeList).items
    output.show_listing(found, _NODE_COLUMNS, form=form, name=lambda item: item.name)

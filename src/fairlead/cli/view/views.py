"""Verbs that look at machines: GPUs, topology, nodes, events, status."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final

import click
import msgspec

from fairlead.cli.core import options, output
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.model.gpu import GPU, LinkKind, UnreadableGPU
from fairlead.serve.v1.machineview import (
    ClusterView,
    EngineView,
    GPUListing,
    GPUView,
    Holder,
    Status,
    Topology,
    TopologyList,
)
from fairlead.serve.v1.view import EventList, EventView, NodeList, NodeView


def _holders(item: GPUView) -> str:
    return ",".join(dict.fromkeys(_holder(holder) for holder in item.holders))


def _holder(holder: Holder) -> str:
    return holder.container if holder.namespace == "default" else f"{holder.namespace}/{holder.container}"


def _health(item: GPUView) -> str:
    return f"{item.health} ({item.reason})" if item.reason else item.health


def _mig(item: GPUView) -> str:
    if not item.gpu.mig_enabled:
        return "off" if item.gpu.mig_capable else ""
    return ",".join(device.profile for device in item.gpu.mig_devices) or "on"


def _temperature(item: GPUView) -> str:
    value = item.gpu.health.temperature_c
    return "" if value is None else f"{value} C"


_GPU_COLUMNS: Final = (
    Column[GPUView]("NODE", lambda item: item.node),
    Column[GPUView]("GPU", lambda item: str(item.gpu.index)),
    Column[GPUView]("NAME", lambda item: item.gpu.name),
    Column[GPUView]("MEMORY", lambda item: output.size(item.gpu.memory_bytes)),
    Column[GPUView]("PCI", lambda item: item.gpu.pci_bus_id),
    Column[GPUView]("NUMA", lambda item: "" if item.gpu.numa_node is None else str(item.gpu.numa_node), is_wide=True),
    Column[GPUView]("MIG", _mig),
    Column[GPUView]("TEMP", _temperature, is_wide=True),
    Column[GPUView]("HEALTH", _health),
    Column[GPUView]("HOLDER", _holders),
    Column[GPUView]("UUID", lambda item: item.gpu.uuid),
    Column[GPUView]("NODES", lambda item: ",".join(item.gpu.device_nodes), is_wide=True),
    Column[GPUView]("SERIAL", lambda item: item.gpu.serial or "", is_wide=True),
    Column[GPUView]("WHY", lambda item: item.message, is_wide=True),
)


@click.command()
@options.output_option
@options.pass_client
def gpus(client: Client, *, form: str) -> None:
    """List GPUs and who holds them."""
    found = client.call("GET", "/v1/gpus", GPUListing)
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
        return
    output.show_listing(found.gpus, _GPU_COLUMNS, form=form, name=lambda item: item.gpu.uuid)
    for lost in found.unreadable:
        click.echo(_lost(lost), err=True)
    if found.is_simulated and form != "name":
        click.echo("these GPUs are SIMULATED", err=True)
    if not found.gpus and form == "table":
        click.echo(_NO_GPU if client.cluster else "no GPU answers; `fairlead doctor` says more", err=True)


_NO_GPU: Final = "no node publishes GPUs; `fairlead doctor` says whether the agent runs"


def _lost(item: UnreadableGPU) -> str:
    return f"GPU {item.index} ({item.pci_bus_id or 'address unknown'}) is {item.reason.lower()}: {item.message}"


@click.command()
@options.output_option
@options.pass_client
def topology(client: Client, *, form: str) -> None:
    """Show how GPUs are linked."""
    found = client.call("GET", "/v1/topology", TopologyList)
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
        return
    if form == "name":
        for gpu in (gpu for node in found.items for gpu in node.gpus):
            click.echo(gpu.uuid)
        return
    for node in found.items:
        if client.cluster:
            click.secho(node.node, bold=True)
        for line in output.lines_of(matrix(node) if node.links is not None else places(node)):
            click.echo(line)
    kinds = dict.fromkeys(link.kind for node in found.items for link in node.links or ())
    for kind in kinds:
        click.echo(f"{kind.value}: {_LEGEND[kind]}")
    if any(node.links is None for node in found.items):
        click.echo("links between GPUs are not published to the cluster; on a node `nvidia-smi topo -m` shows them")


_LEGEND: Final = {
    LinkKind.NVLINK: "NVLink, with the number of links",
    LinkKind.NVSWITCH: "NVLink through the NVSwitch fabric, with the number of links",
    LinkKind.XGMI: "AMD's direct link",
    LinkKind.SAME_BOARD: "one board",
    LinkKind.SINGLE_SWITCH: "one PCIe switch",
    LinkKind.MULTI_SWITCH: "several PCIe switches below one host bridge",
    LinkKind.HOST_BRIDGE: "through a PCIe host bridge",
    LinkKind.SAME_NODE: "through several host bridges of one NUMA node",
    LinkKind.SYSTEM: "across the sockets",
}


def matrix(found: Topology) -> list[list[str]]:
    """Return the links as rows of a square table, one row and column a GPU, its NUMA node last."""
    shown: dict[tuple[str, str], str] = {
        (link.a, link.b): f"{link.kind.value}{link.lanes or ''}" for link in found.links or ()
    }
    shown |= {(b, a): text for (a, b), text in shown.items()}
    names = [f"GPU{gpu.index}" for gpu in found.gpus]
    rows = [["", *names, "NUMA"]]
    rows[0][0] = " "
    for name, gpu in zip(names, found.gpus, strict=True):
        rows.append([name, *(_cell(gpu, other, shown) for other in found.gpus), _numa(gpu)])
    return rows


def places(found: Topology) -> list[list[str]]:
    """Return where the GPUs are as rows, for a node whose links nobody tells."""
    return [["GPU", "PCI", "NUMA"], *([f"GPU{gpu.index}", gpu.pci_bus_id, _numa(gpu)] for gpu in found.gpus)]


def _cell(gpu: GPU, other: GPU, shown: dict[tuple[str, str], str]) -> str:
    return "X" if gpu.uuid == other.uuid else shown.get((gpu.uuid, other.uuid), "?")


def _numa(gpu: GPU) -> str:
    return "" if gpu.numa_node is None else str(gpu.numa_node)


def _devices(values: Sequence[tuple[str, str]]) -> str:
    return ",".join(f"{name}={count}" for name, count in values if "/" in name)


_NODE_COLUMNS: Final = (
    Column[NodeView]("NAME", lambda item: item.name),
    Column[NodeView]("STATE", lambda item: item.state),
    Column[NodeView]("DEVICES", lambda item: _devices(sorted(item.allocatable.items()))),
    Column[NodeView]("TAKEN", lambda item: _devices(sorted(item.used.items()))),
    Column[NodeView]("CPU", lambda item: item.allocatable.get("cpu", "")),
    Column[NodeView]("MEMORY", lambda item: item.allocatable.get("memory", "")),
    Column[NodeView]("TAINTS", lambda item: ",".join(item.taints), is_wide=True),
    Column[NodeView]("ENGINE", lambda item: item.engine, is_wide=True),
    Column[NodeView]("KERNEL", lambda item: item.kernel, is_wide=True),
)


@click.command()
@options.output_option
@options.pass_client
def nodes(client: Client, *, form: str) -> None:
    """List nodes, what they have and what is taken."""
    found = client.call("GET", "/v1/nodes", NodeList).items
    output.show_listing(found, _NODE_COLUMNS, form=form, name=lambda item: item.name)


_EVENT_COLUMNS: Final = (
    Column[EventView]("AGE", lambda item: output.age(item.at)),
    Column[EventView]("TYPE", lambda item: item.type),
    Column[EventView]("REASON", lambda item: item.reason),
    Column[EventView]("OBJECT", lambda item: item.object),
    Column[EventView]("SOURCE", lambda item: item.source, is_wide=True),
    Column[EventView]("MESSAGE", lambda item: item.message),
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
    for line in client.lines("GET", "/v1/events", params=params):
        _show_event(msgspec.convert(line, EventView), form)


def _show_event(item: EventView, form: str) -> None:
    if form in {"json", "yaml"}:
        click.echo(msgspec.json.encode(item).decode())
        return
    at = dt.datetime.fromisoformat(item.at).astimezone().strftime("%H:%M:%S.%f")[:-3] if item.at else "-"
    click.echo(item.object if form == "name" else f"{at}  {item.type:<7}  {item.reason}  {item.object}  {item.message}")


@click.command()
@options.json_option
@options.pass_client
def status(client: Client, *, form: str) -> None:
    """Show how the service is."""
    found = client.status()
    if form != "text":
        output.show_value(found, form=form)
        return
    for line in output.lines_of(status_rows(found)):
        click.echo(line)
    for problem in found.problems:
        click.secho(f"! {problem}", fg="yellow")


def status_rows(found: Status) -> list[list[str]]:
    """Return the status as rows of name and value."""
    if found.cluster is not None:
        return _cluster_rows(found, found.cluster)
    engine = found.engine or EngineView()
    running = output.span(max(0.0, dt.datetime.now(dt.UTC).timestamp() - found.started_at))
    simulated = f", SIMULATED ({found.profile})" if found.is_simulated else ""
    lost = f", {found.gpus['unreadable']} unreadable" if found.gpus.get("unreadable") else ""
    devices = [f"{node.name} {node.state}: " + _devices(sorted(node.allocatable.items())) for node in found.nodes]
    runtime = f"{engine.name} {engine.version} with {engine.runtime}, reads CDI up to {engine.cdi_ceiling}"
    return [
        ["service", f"fairlead {found.version} on {found.node}, up {running}"],
        ["socket", found.socket],
        ["state", found.state_folder],
        ["cdi", found.cdi_folder],
        ["engine", engine.problem or runtime],
        ["gpus", f"{found.gpus.get('found', 0)} found{lost}{simulated}"],
        *(["node", text] for text in devices),
        ["containers", _counted(found.containers)],
    ]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if count) or "none"


def _cluster_rows(found: Status, cluster: ClusterView) -> list[list[str]]:
    simulated = ", SIMULATED" if found.is_simulated else ""
    health = {name: count for name, count in found.gpus.items() if name[0].isupper()}
    ready = sum(node.state == "ready" for node in found.nodes)
    with_gpus = [node for node in found.nodes if found.resource in node.allocatable]
    offered = [
        [
            "node",
            f"{node.name} {node.state}: {node.allocatable[found.resource]} of {node.capacity.get(found.resource, '?')} "
            f"{found.resource} offered, {node.used.get(found.resource, '0')} taken",
        ]
        for node in with_gpus
    ]
    return [
        ["cluster", f"{cluster.server}, Kubernetes {cluster.version or 'of unknown version'}"],
        ["client", f"fairlead {found.version}"],
        ["nodes", f"{len(found.nodes)}, {ready} ready, {len(with_gpus)} with {found.resource}"],
        ["gpus", f"{found.gpus.get('found', 0)} published ({_counted(health)}){simulated}"],
        *offered,
        ["containers", _counted(found.containers)],
    ]

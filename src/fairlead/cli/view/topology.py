"""`fairlead topology`: shows how GPUs are linked."""

from __future__ import annotations

from typing import Final

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.model.gpu import GPU, LinkKind
from fairlead.serve.backend.hardware import Topology, TopologyList


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
            plaintext.echo(gpu.uuid)
        return
    for node in found.items:
        if client.cluster:
            plaintext.echo(node.node, bold=True)
        for line in output.lines_of(matrix(node) if node.links is not None else places(node)):
            plaintext.echo(line)
    kinds = dict.fromkeys(link.kind for node in found.items for link in node.links or ())
    for kind in kinds:
        plaintext.echo(f"{kind.value}: {_LEGEND[kind]}")
    if any(node.links is None for node in found.items):
        plaintext.echo("links between GPUs are not published to the cluster; on a node `nvidia-smi topo -m` shows them")


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
    """Return where the GPUs are as rows, for a node whose links are not known."""
    return [["GPU", "PCI", "NUMA"], *([f"GPU{gpu.index}", gpu.pci_bus_id, _numa(gpu)] for gpu in found.gpus)]


def _cell(gpu: GPU, other: GPU, shown: dict[tuple[str, str], str]) -> str:
    return "X" if gpu.uuid == other.uuid else shown.get((gpu.uuid, other.uuid), "?")


def _numa(gpu: GPU) -> str:
    return "" if gpu.numa_node is None else str(gpu.numa_node)

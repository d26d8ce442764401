"""`fairlead gpus`: lists GPUs and who holds them."""

from __future__ import annotations

from typing import Final

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.model.gpu import UnreadableGPU
from fairlead.serve.backend.hardware import GPUListing, GPUView, Holder


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
        plaintext.echo(_lost(lost), err=True)
    if found.is_simulated and form != "name":
        plaintext.echo("these GPUs are SIMULATED", err=True)
    if not found.gpus and form == "table":
        plaintext.echo(_NO_GPU if client.cluster else "no GPU answers; `fairlead doctor` says more", err=True)


_NO_GPU: Final = "no node publishes GPUs; `fairlead doctor` says whether the agent runs"


def _lost(item: UnreadableGPU) -> str:
    return f"GPU {item.index} ({item.pci_bus_id or 'address unknown'}) is {item.reason.lower()}: {item.message}"

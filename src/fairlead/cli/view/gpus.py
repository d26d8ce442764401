"""`fairlead gpus`: lists GPUs and who holds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.view import foreign
from fairlead.model.gpu import GPU, UnreadableGPU
from fairlead.model.ids import GPUUUID
from fairlead.serve.backend.hardware import ANOTHER, GPUListing, GPUView, Holder, PassthroughView, VGPUView


def _holders(item: GPUView) -> str:
    return ",".join(dict.fromkeys(_holder(holder) for holder in item.holders))


def _holder(holder: Holder) -> str:
    where = () if holder.namespace == "default" else (holder.namespace,)
    name = "/".join((*where, *((holder.container,) if holder.container else ())))
    return f"{name or ANOTHER} ({output.age(holder.since)})" if holder.since else name or ANOTHER


def _health(item: GPUView) -> str:
    return f"{item.health} ({item.reason})" if item.reason else item.health


def _mig(item: GPUView) -> str:
    if not item.gpu.mig_enabled:
        return "off" if item.gpu.mig_capable else ""
    return ",".join(device.profile for device in item.gpu.mig_devices) or "on"


def _temperature(item: GPUView) -> str:
    value = item.gpu.health.temperature_c
    return "" if value is None else f"{value} C"


def _utilization(item: GPUView) -> str:
    value = item.gpu.health.utilization_percent
    return "" if value is None else f"{value}%"


def _memory(item: GPUView) -> str:
    """Return how much is used of how much, in the unit of the whole."""
    total, used = item.gpu.memory_bytes, item.gpu.health.memory_used_bytes
    if not total:
        return ""
    return output.size(total) if used is None else f"{used / (1 << 30):.0f}/{output.size(total)}"


def _power(item: GPUView) -> str:
    value = item.gpu.health.power_mw
    return "" if value is None else f"{value / 1000:.0f} W"


def _shared(item: GPUView) -> str:
    """Return how many of its replicas are held; empty: it is not shared."""
    return f"{len({one.device for one in item.holders})}/{item.replicas}" if item.sharing else ""


def _claims(item: GPUView) -> str:
    """Return the claims that have it or parts of it, each with what holds its programs to their share."""
    found = {one.claim: one.enforced_by for one in item.holders if one.claim}
    return "; ".join(f"{claim} (share held by: {by})" if by else claim for claim, by in found.items())


def _name(item: GPUView) -> str:
    return item.gpu.name.removeprefix("NVIDIA ")


_NODE: Final = Column[GPUView]("NODE", lambda item: item.node, is_wide=True)
_LEASE: Final = Column[GPUView]("LEASE", lambda item: item.lease, rank=6)
_SHARED: Final = Column[GPUView]("SHARED", _shared, rank=5)
_GPU_COLUMNS: Final = (
    _NODE,
    Column[GPUView]("GPU", lambda item: str(item.gpu.index)),
    Column[GPUView]("NAME", _name, rank=2),
    Column[GPUView]("UTIL", _utilization),
    Column[GPUView]("MEMORY", _memory, rank=1),
    Column[GPUView]("POWER", _power, rank=3),
    Column[GPUView]("TEMP", _temperature, rank=4),
    Column[GPUView]("MIG", _mig, rank=6),
    _SHARED,
    _LEASE,
    Column[GPUView]("HEALTH", _health),
    Column[GPUView]("HOLDER", _holders),
    Column[GPUView]("PCI", lambda item: item.gpu.pci_bus_id, rank=7),
    Column[GPUView]("UUID", lambda item: item.gpu.uuid, rank=8),
    Column[GPUView]("NUMA", lambda item: "" if item.gpu.numa_node is None else str(item.gpu.numa_node), is_wide=True),
    Column[GPUView]("NODES", lambda item: ",".join(item.gpu.device_nodes), is_wide=True),
    Column[GPUView]("SERIAL", lambda item: item.gpu.serial or "", is_wide=True),
    Column[GPUView]("CLAIM", _claims, is_wide=True),
    Column[GPUView]("WHY", lambda item: item.message, is_wide=True),
)


def _vgpu_health(item: VGPUView) -> str:
    return f"{item.health} ({item.reason})" if item.reason else item.health or "not offered"


def _vgpu_columns(places: Mapping[str, str]) -> tuple[Column[VGPUView], ...]:
    """Return the columns of vGPUs. Args: places: indices of GPUs by PCI address."""
    return (
        Column("VGPU", lambda item: item.id),
        Column("GPU", lambda item: places.get(item.parent, item.parent)),
        Column("TYPE", lambda item: item.type or "unknown", rank=1),
        Column("HEALTH", _vgpu_health),
        Column("HOLDER", lambda item: ",".join(map(_holder, item.holders))),
        Column("RESOURCE", lambda item: item.resource, rank=2),
        Column("WHY", lambda item: item.message, is_wide=True),
    )


_PASSTHROUGH_COLUMNS: Final = (
    Column[PassthroughView]("PASSED THROUGH", lambda item: item.address),
    Column[PassthroughView]("MODEL", lambda item: item.model or item.vendor, rank=1),
    Column[PassthroughView]("MODULE", lambda item: "" if item.module is None else str(item.module), rank=4),
    Column[PassthroughView]("GROUP", lambda item: item.group, rank=3),
    Column[PassthroughView]("DRIVER", lambda item: item.driver, rank=2),
    Column[PassthroughView]("LEASE", lambda item: item.lease, rank=6),
    Column[PassthroughView]("HOLDER", lambda item: ",".join(map(_holder, item.holders))),
    Column[PassthroughView]("DEVICE", lambda item: item.device, is_wide=True),
    Column[PassthroughView]("NUMA", lambda item: "" if item.numa_node is None else str(item.numa_node), is_wide=True),
    Column[PassthroughView]("NODES", lambda item: ",".join(item.nodes), is_wide=True),
    Column[PassthroughView]("KEY", lambda item: item.key, rank=5),
    Column[PassthroughView]("IN THE WAY", lambda item: item.message, is_folded=True),
)


@click.command()
@click.argument("gpu", nargs=-1)
@click.option("-w", "--watch", is_flag=True, help="show it anew until Ctrl-C")
@click.option(
    "--kill-foreign",
    is_flag=True,
    help="end the programs that Fairlead did not start and that keep these GPUs, or any: asks first; root's",
)
@click.option("-y", "--yes", is_flag=True, help="with --kill-foreign: do not ask")
@options.output_option
@options.pass_client
def gpus(client: Client, *, gpu: tuple[str, ...], watch: bool, kill_foreign: bool, yes: bool, form: str) -> None:
    """List GPUs, what they do now, and who holds them since when.

    With --kill-foreign GPU is an index, a UUID, the beginning of one or a PCI address.
    """
    if kill_foreign:
        foreign.end(client, gpu, yes=yes, form=form)
        return
    if gpu or yes:
        raise errors.RequestError(
            "GPU and --yes belong to --kill-foreign", reason="OptionInvalid", hint="`fairlead gpus` lists all GPUs"
        )

    def show() -> None:
        _show(client, client.call("GET", "/v1/gpus", GPUListing), form=form)

    if watch:
        output.repeat(show)
    else:
        show()


def _show(client: Client, found: GPUListing, *, form: str) -> None:
    if form in {"json", "yaml"}:
        output.show_value(found, form=form)
        return
    node = found.gpus[0].node if found.gpus else ""  # only one machine lists what does not answer
    lost_rows = (_lost(item, node) for item in found.unreadable)
    rows = sorted((*found.gpus, *lost_rows), key=lambda item: (item.node, item.gpu.index))
    is_any_shared = any(item.sharing for item in found.gpus)
    left_out = {
        *(() if is_any_shared else (_SHARED.title,)),
        *(() if any(item.lease for item in found.gpus) else (_LEASE.title,)),
    }
    columns = tuple(column for column in _GPU_COLUMNS if column.title not in left_out)
    if len({item.node for item in found.gpus}) > 1:  # indices alone would not say which is meant
        shown = dataclasses.replace(_NODE, is_wide=False)
        columns = tuple(shown if column is _NODE else column for column in columns)
    output.show_listing(rows, columns, form=form, name=lambda item: item.gpu.uuid)
    if found.vgpus and form in {"table", "wide"}:
        plaintext.echo("")
        places = {view.gpu.pci_bus_id: str(view.gpu.index) for view in found.gpus}
        output.show_listing(found.vgpus, _vgpu_columns(places), form=form, name=lambda item: item.id)
    if found.passthrough and form in {"table", "wide"}:
        plaintext.echo("")
        output.show_listing(found.passthrough, _PASSTHROUGH_COLUMNS, form=form, name=lambda item: item.key)
    foreign.show(found, form=form)
    for lost in found.unreadable if form != "name" else ():
        plaintext.echo(f"GPU {lost.index} is {lost.reason.lower()}: {lost.message}", err=True)
    if found.is_simulated and form != "name":
        plaintext.echo("these GPUs are SIMULATED", err=True)
    if not rows and not found.passthrough and form == "table":
        plaintext.echo(_NO_GPU if client.cluster else "no GPU answers; `fairlead doctor` says more", err=True)


def _lost(item: UnreadableGPU, node: str) -> GPUView:
    """Return the row of a GPU that does not answer: all that is known is where it is, and why."""
    gpu = GPU(
        uuid=item.uuid or GPUUUID(item.pci_bus_id or f"GPU {item.index}"),
        index=item.index,
        minor=item.index,
        pci_bus_id=item.pci_bus_id or "",
        name="",
        memory_bytes=0,
    )
    return GPUView(gpu=gpu, node=node, holders=(), health=item.reason, message=item.message)


_NO_GPU: Final = "no node publishes GPUs; `fairlead doctor` says whether the agent runs"

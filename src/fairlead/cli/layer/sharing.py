"""`fairlead sharing`: lists who shares which GPU, by which means, with which limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.model import replica
from fairlead.plan.sharing import fraction
from fairlead.serve.backend.hardware import GPUListing, GPUView, Holder
from fairlead.wire.nvidia.pluginconfig import MPS_CORE, MPS_MEMORY

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One container's part of a GPU."""

    namespace: str
    container: str
    replicas: tuple[str, ...]
    """Ids of the devices by which it has it."""
    limits: str
    """What it may use of the GPU, in words."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device of a divided GPU, held or free."""

    uuid: str
    profile: str
    memory_mib: int
    holder: str
    """NAMESPACE/CONTAINER; empty: it is free."""


class SharedGPU(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU and who shares it."""

    node: str
    gpu: int
    uuid: str
    resource: str
    means: str
    replicas: int
    used: int
    limits: str
    """Of one replica."""
    holders: tuple[Share, ...]
    instances: tuple[Instance, ...] = ()
    """Of a GPU that MIG divides."""


_COLUMNS: Final = (
    Column[SharedGPU]("NODE", lambda item: item.node),
    Column[SharedGPU]("GPU", lambda item: str(item.gpu)),
    Column[SharedGPU]("RESOURCE", lambda item: item.resource or item.limits.replace(" or ", ", ")),
    Column[SharedGPU]("BY", lambda item: item.means),
    Column[SharedGPU]("USED", lambda item: f"{item.used}/{item.replicas}"),
    Column[SharedGPU]("HOLDERS", lambda item: ",".join(_holder(one, item) for one in item.holders)),
    Column[SharedGPU]("LIMITS", lambda item: item.limits, is_wide=True),
    Column[SharedGPU]("INSTANCES", lambda item: ",".join(map(_instance, item.instances)), is_wide=True),
    Column[SharedGPU]("UUID", lambda item: item.uuid, is_wide=True),
)


@click.command()
@options.output_option
@options.pass_client
def sharing(client: Client, *, form: str) -> None:
    """List who shares which GPU, and by which means: who has how many replicas, and with which limits."""
    found = tuple(shared(client.call("GET", "/v1/gpus", GPUListing)))
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.uuid)
    if not found and form in {"table", "wide"}:
        plaintext.echo("no GPU is shared; `fairlead agent check FILE` says what a configuration would do", err=True)


def shared(found: GPUListing) -> Iterator[SharedGPU]:
    """Yield the GPUs that are shared: by replicas, by amounts, or divided into MIG devices."""
    for item in found.gpus:
        if item.gpu.mig_enabled and not item.sharing:
            yield _divided(item)
        elif item.sharing:
            holders = _shares(item)
            yield SharedGPU(
                node=item.node,
                gpu=item.gpu.index,
                uuid=item.gpu.uuid,
                resource=item.resource,
                means=item.sharing,
                replicas=item.replicas,
                used=sum(one.resource != MPS_MEMORY for one in item.holders),
                limits=_limits(item),
                holders=holders,
            )


def _divided(item: GPUView) -> SharedGPU:
    """Describe a GPU in MIG mode: each holder has its device's memory, which the hardware keeps apart."""
    profiles = Counter(mig.profile for mig in item.gpu.mig_devices)
    sizes = {str(mig.uuid): f"{mig.profile}, {mig.memory_bytes // _MIB} MiB" for mig in item.gpu.mig_devices}
    names = {one.resource for one in item.holders if one.resource}
    who = {replica.origin(one.device): f"{one.namespace}/{one.container}" for one in item.holders}
    return SharedGPU(
        node=item.node,
        gpu=item.gpu.index,
        uuid=item.gpu.uuid,
        resource=names.pop() if len(names) == 1 else item.resource,
        means=fraction.MIG,
        replicas=len(item.gpu.mig_devices),
        used=len(item.holders),
        limits=" or ".join(f"{count} x {name}" for name, count in sorted(profiles.items())) or "no MIG devices",
        holders=tuple(
            Share(
                namespace=one.namespace,
                container=one.container,
                replicas=(one.device,),
                limits=sizes.get(replica.origin(one.device), "its MIG device's"),
            )
            for one in item.holders
        ),
        instances=tuple(
            Instance(
                uuid=mig.uuid, profile=mig.profile, memory_mib=mig.memory_bytes // _MIB, holder=who.get(mig.uuid, "")
            )
            for mig in item.gpu.mig_devices
        ),
    )


def _limits(item: GPUView) -> str:
    """Return what one replica may use, in words."""
    if item.resource == MPS_CORE:
        memory = f"{item.gpu.memory_bytes // _GIB} GiB and " if item.gpu.memory_bytes else ""
        return f"as asked for, of {memory}100% of the threads"
    return _of_share(item, 1)


def _of_share(item: GPUView, count: int) -> str:
    if item.sharing != "mps" or not item.replicas:
        return "none: neither memory nor time is limited"
    threads = f"{100 // item.replicas * count}% of the threads"
    if not item.gpu.memory_bytes:
        return f"{threads}; memory is not limited: the driver does not tell how much there is"
    return f"{item.gpu.memory_bytes // item.replicas // _MIB * count} MiB, {threads}"


def _shares(item: GPUView) -> tuple[Share, ...]:
    by_holder: dict[tuple[str, str], list[Holder]] = {}
    for one in item.holders:
        by_holder.setdefault((one.namespace, one.container), []).append(one)
    return tuple(
        Share(
            namespace=namespace,
            container=container,
            replicas=tuple(dict.fromkeys(one.device for one in held)),
            limits=_limits_of(item, held),
        )
        for (namespace, container), held in by_holder.items()
    )


def _limits_of(item: GPUView, held: list[Holder]) -> str:
    """Return what one container may use: its amounts where the GPU is given by amounts, else its shares."""
    if item.resource != MPS_CORE:
        return _of_share(item, len(held))
    memory = sum(one.resource == MPS_MEMORY for one in held)
    return f"{memory} GiB, {len(held) - memory}% of the threads"


def _instance(one: Instance) -> str:
    return f"{one.profile} {one.holder.removeprefix('default/') or 'free'}"


def _holder(one: Share, item: SharedGPU) -> str:
    name = one.container if one.namespace == "default" else f"{one.namespace}/{one.container}"
    if item.means == fraction.MIG:
        return f"{name} ({one.limits.partition(',')[0]})"
    if item.resource == MPS_CORE:
        return f"{name} ({one.limits.replace(' of the threads', '')})"
    return name if len(one.replicas) == 1 else f"{name} x{len(one.replicas)}"

"""Decides which devices a node offers, by resource, from inventory and verdicts. Pure.

One resource for each vendor's whole GPUs, for Intel's one for each kernel driver, for NVIDIA's several where the
configuration names them by model. A GPU that was known and no longer answers stays listed, Unhealthy and with its
reason, so that the kubelet keeps its capacity and operators see where it went. A GPU in MIG mode cannot be given whole;
how its MIG devices are offered is `migoffer`'s. Whatever lives on a GPU shares its verdict.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.offer import migoffer
from fairlead.wire.nvidia.pluginconfig import NamingRule

AMD_RESOURCE: Final = "amd.com/gpu"
INTEL_RESOURCES: Final = {"i915": "gpu.intel.com/i915", "xe": "gpu.intel.com/xe"}
"""By kernel driver, as Intel's plugin names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MPSClient:
    """What a container gets with each replica of a GPU that is shared by MPS."""

    memory_mib: int | None
    """None: this resource says nothing of memory."""
    percent: int | None
    """Of the GPU's threads; None: this resource says nothing of them."""
    pipe: str
    """Folder of the control daemon's pipes, on the node."""
    shm: str
    """Folder that is /dev/shm for the daemon and all its clients, on the node."""
    least: int = 0
    """Fewest replicas that one container may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRule:
    """How the replicas of one resource are given away."""

    means: str = ""
    """`time-slicing` or `mps`; empty: nothing is shared."""
    fails_above_one: bool = False
    """Whether more than one replica for one container is refused."""
    packs: bool = False
    """Whether the GPU with most replicas in use gives the next one, else the one with fewest."""
    needs_different_gpus: bool = False
    """Whether replicas for one container must be of different GPUs."""
    amount_of: str = ""
    """`threads` or `memory` where each replica is a unit of it and a container needs both; empty: it is a share."""
    needs_one_gpu: bool = False
    """Whether they must be of one GPU: a client of MPS has one daemon."""


UNSHARED: Final = SharingRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of NVIDIA's devices by model: the first rule that matches counts, what none matches has its usual name."""

    gpus: Sequence[NamingRule] = ()
    mig: Sequence[NamingRule] = ()


USUAL: Final = Names()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertisement:
    """All devices of one extended resource."""

    resource: str
    vendor: Vendor
    """Who made the devices."""
    devices: tuple[Device, ...]
    rule: SharingRule = UNSHARED
    clients: Mapping[GPUUUID, MPSClient] = field(default_factory=dict)
    """By GPU; where replicas are shared by MPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How one GPU is offered: whole, or as replicas."""

    resource: str
    means: str = ""
    """By which its replicas share it; empty: it is not shared."""
    replicas: int = 0
    """0: it is not shared."""


def offers_of(advertised: Iterable[Advertisement]) -> dict[GPUUUID, Offer]:
    """Return how each GPU is offered; those that are offered as MIG devices alone are left out."""
    found: dict[GPUUUID, Offer] = {}
    for ad in advertised:
        for device in ad.devices if ad.rule.amount_of != "memory" else ():
            if device.part is None:
                is_replica = device.replica_of is not None
                before = found.get(device.gpu)
                count = before.replicas if before is not None else 0
                means = ad.rule.means if is_replica else ""
                found[device.gpu] = Offer(resource=ad.resource, means=means, replicas=count + is_replica)
    return found


def mig_resources(advertised: Iterable[Advertisement]) -> dict[MIGUUID, str]:
    """Return the resource under which each MIG device is offered whole."""
    return {
        device.mig: ad.resource
        for ad in advertised
        for device in ad.devices
        if device.mig is not None and device.replica_of is None
    }


def plan_advertisements(
    inventory: Inventory,
    *,
    nvidia_resource: str,
    verdicts: Mapping[GPUUUID, health.Verdict],
    known: Mapping[GPUUUID, GPU],
    mig: migoffer.MIGOffer = migoffer.NOT_OFFERED,
    names: Names = USUAL,
) -> tuple[Advertisement, ...]:
    """List the devices of every resource that has any.

    Args:    verdicts: by GPU; a readable GPU without one is healthy.   known: every GPU read so far, for those that
             do not answer now.   mig: how MIG devices are offered, and their own verdicts.
             names: of NVIDIA's devices by model.
    Returns: one value a resource, devices in index order.
    """
    found: list[Advertisement] = []
    nvidia = _nvidia_gpus(inventory, verdicts, known)
    misfit = migoffer.find_misfit(tuple(gpu for gpu, _ in nvidia)) if mig.strategy == migoffer.SINGLE else ""
    parts = _mig_parts(nvidia, nvidia_resource, mig, misfit, names)
    usual = {Vendor.NVIDIA: (nvidia_resource,), Vendor.AMD: (AMD_RESOURCE,), Vendor.INTEL: INTEL_RESOURCES.values()}
    for vendor, resources in usual.items():
        is_nvidia = vendor is Vendor.NVIDIA
        devices: dict[str, list[tuple[int, Device]]] = {name: [] for name in resources}
        for gpu in inventory.gpus:
            if gpu.vendor is vendor and (name := resource_of(gpu, nvidia_resource=nvidia_resource, names=names)):
                devices.setdefault(name, []).append((gpu.index, _device(gpu, verdicts)))
        for gone in inventory.unreadable:
            if name := _former_resource(gone, vendor, known, nvidia_resource=nvidia_resource, names=names):
                devices.setdefault(name, []).append((gone.index, _absent(gone, vendor, verdicts, known)))
        for resource, whole in devices.items():
            kept_back = [(place, _misfit(device) if is_nvidia and misfit else device) for place, device in whole]
            items = [*kept_back, *(parts.pop(resource, ()) if is_nvidia else ())]
            if items:
                # GPUs by id where one index is reported twice; MIG devices stay in their GPU's order.
                items.sort(key=lambda item: (item[0], "" if item[1].mig else item[1].id))
                ordered = tuple(device for _, device in items)
                found.append(Advertisement(resource=resource, vendor=vendor, devices=ordered))
    for resource, rest in sorted(parts.items()):
        ordered = tuple(device for _, device in rest)
        found.append(Advertisement(resource=resource, vendor=Vendor.NVIDIA, devices=ordered))
    return tuple(found)


def _misfit(device: Device) -> Device:
    """Keep a whole GPU back where the strategy single finds GPUs of both modes."""
    if not device.is_healthy:
        return device
    return dataclasses.replace(device, is_healthy=False, reason=migoffer.NOT_UNIFORM)


def _nvidia_gpus(
    inventory: Inventory, verdicts: Mapping[GPUUUID, health.Verdict], known: Mapping[GPUUUID, GPU]
) -> list[tuple[GPU, health.Verdict]]:
    """Return NVIDIA's GPUs in index order, as last read where they do not answer, each with its verdict."""
    gpus = [(gpu, verdicts.get(gpu.uuid, health.Verdict())) for gpu in inventory.gpus if gpu.vendor is Vendor.NVIDIA]
    gpus += [
        (known[gone.uuid], migoffer.lost(gone.reason, verdicts, gone.uuid))
        for gone in inventory.unreadable
        if gone.uuid is not None and gone.uuid in known and known[gone.uuid].vendor is Vendor.NVIDIA
    ]
    return sorted(gpus, key=lambda pair: pair[0].index)


def _mig_parts(
    gpus: Sequence[tuple[GPU, health.Verdict]],
    nvidia_resource: str,
    offer: migoffer.MIGOffer,
    misfit: str,
    names: Names,
) -> dict[str, list[tuple[int, Device]]]:
    """Return the MIG devices of each resource with their GPUs' indexes, in order; under `none` there are none."""
    found: dict[str, list[tuple[int, Device]]] = {}
    prefix = nvidia_resource.partition("/")[0]
    for gpu, verdict in gpus if offer.strategy != migoffer.NONE else ():
        for part, device in migoffer.plan_devices(gpu, offer, verdict, misfit=misfit):
            is_single = offer.strategy == migoffer.SINGLE
            usual = nvidia_resource if is_single else migoffer.resource_name(part.profile, prefix)
            name = _named(part.profile, names.mig, usual)
            found.setdefault(name, []).append((gpu.index, device))
    return found


def resource_of(gpu: GPU, *, nvidia_resource: str, names: Names = USUAL) -> str:
    """Return the resource under which a GPU is offered whole, before it is shared; empty: it is not.

    Intel's are offered where they have memory of their own: those of processors belong to the machine's screen.
    """
    if gpu.vendor is Vendor.INTEL:
        return INTEL_RESOURCES.get(gpu.kernel_driver, "") if gpu.memory_bytes else ""
    if gpu.mig_enabled:
        return ""
    return _named(gpu.name, names.gpus, nvidia_resource) if gpu.vendor is Vendor.NVIDIA else AMD_RESOURCE


def _named(model: str, rules: Sequence[NamingRule], usual: str) -> str:
    return next((rule.name for rule in rules if matches(rule.pattern, model)), usual)


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern is the whole of a product's or profile's name; `*` alone stands for other text."""
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatch.fnmatchcase(name, literal)


def _former_resource(
    gone: UnreadableGPU, vendor: Vendor, known: Mapping[GPUUUID, GPU], *, nvidia_resource: str, names: Names
) -> str:
    """Return the resource under which a vendor's GPU that does not answer was offered; empty: under none."""
    if gone.uuid is None:
        return ""  # never read since this process began: without an id it cannot be listed
    earlier = known.get(gone.uuid)
    if earlier is None:
        return nvidia_resource if vendor is Vendor.NVIDIA else ""
    return resource_of(earlier, nvidia_resource=nvidia_resource, names=names) if earlier.vendor is vendor else ""


def _device(gpu: GPU, verdicts: Mapping[GPUUUID, health.Verdict]) -> Device:
    verdict = verdicts.get(gpu.uuid, health.Verdict())
    reason = "" if verdict.is_healthy else verdict.reason
    return Device(
        id=DeviceID(gpu.uuid),
        cdi_name=_cdi_name(gpu.vendor, gpu.uuid),
        gpu=gpu.uuid,
        is_healthy=verdict.is_healthy,
        reason=reason,
        numa_node=gpu.numa_node,
        index=str(gpu.index),
        nodes=gpu.device_nodes,
    )


def _cdi_name(vendor: Vendor, name: str) -> str:
    return cdikind.qualified(cdikind.ALLOCATED[vendor.value], name)


def _absent(
    gone: UnreadableGPU, vendor: Vendor, verdicts: Mapping[GPUUUID, health.Verdict], known: Mapping[GPUUUID, GPU]
) -> Device:
    uuid = gone.uuid or GPUUUID("")
    verdict = verdicts.get(uuid)
    earlier = known.get(uuid)
    return Device(
        id=DeviceID(uuid),
        cdi_name=_cdi_name(vendor, uuid),
        gpu=uuid,
        is_healthy=False,
        reason=verdict.reason if verdict is not None and not verdict.is_healthy else gone.reason,
        numa_node=earlier.numa_node if earlier else None,
        index=str(gone.index),
        nodes=earlier.device_nodes if earlier else (),
    )

"""Decides which GPUDevice objects a node has, from what its agent knows, and what their statuses say. Pure.

A GPU that answers gives its spec from the reading and its health from the verdict. One that does not answer keeps the
spec it had, from an earlier reading or from its own object, and is Lost. An object whose GPU is in neither list is
wanted no more, but only where the driver of its vendor answers and every silent GPU is accounted for: a driver that is
unloaded or a GPU without a UUID removes no object: it becomes Lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import msgspec

from fairlead.model.gpu import GPU, Inventory, LinkKind, UnreadableGPU
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.gpu import health as rules
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.kubernetes import core, gpudevice, meta, quantity
from fairlead.wire.kubernetes.gpudevice import GPUDevice, GPUDeviceSpec, GPULink, MIGSlice

_LONGEST_WHY: Final = 256
SILENT_REASON: Final = "DriverNotAnswering"
NODE_NOT_READY: Final = "NodeNotReady"
AGENT_GONE: Final = "AgentGone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One object as it should be."""

    spec: GPUDeviceSpec
    health: str
    reason: str = ""
    message: str = ""


_NO_RESOURCES: Final[Mapping[MIGUUID, str]] = {}


def plan_devices(  # noqa: PLR0913 (what is known of a node's GPUs, by name)
    node: str,
    inventory: Inventory,
    *,
    verdicts: Mapping[GPUUUID, rules.Verdict],
    known: Mapping[GPUUUID, GPU],
    problem: str,
    kept: Iterable[GPUDevice],
    nvidia_resource: str = "",
    offers: Mapping[GPUUUID, advertise.Offer] | None = None,
    mig: Mapping[MIGUUID, str] = _NO_RESOURCES,
) -> dict[str, Wanted]:
    """Return the objects that the node should have, by name.

    Args:    known: the last good reading of GPUs, for those that do not answer now.
             problem: why no driver answers; empty while one does.   kept: the node's objects as they are.
             nvidia_resource: under which NVIDIA's GPUs are offered.   offers: how GPUs are, where that is known.
             mig: under which resource MIG devices are.
    """
    wanted: dict[str, Wanted] = {}

    def planned(gpu: GPU) -> GPUDeviceSpec:
        spec = plan_spec(node, gpu, inventory, nvidia_resource, mig)
        offer = (offers or {}).get(gpu.uuid)
        if offer is None:
            return spec
        return msgspec.structs.replace(spec, resource=offer.resource, sharing=offer.means, replicas=offer.replicas)

    for gpu in inventory.gpus:
        spec = planned(gpu)
        wanted[_name(spec)] = _judged(spec, verdicts.get(gpu.uuid, rules.Verdict()))
    specs = {one.metadata.name: own_spec(one) for one in kept}
    unplaced = []
    for gone in inventory.unreadable:
        earlier = known.get(gone.uuid) if gone.uuid is not None else None
        found = planned(earlier) if earlier is not None else _find(gone, specs.values())
        if found is None:
            unplaced.append(gone)
        else:
            wanted[_name(found)] = _lost(found, gone, verdicts)
    for name, spec in specs.items():
        if name not in wanted and not _is_gone(spec, inventory, problem, unplaced):
            wanted[name] = Wanted(
                spec=spec,
                health=gpudevice.LOST,
                reason=SILENT_REASON,
                message=problem or "it is not among the GPUs that its driver lists",
            )
    return wanted


_VIRTUAL: Final = {None: "", True: "true", False: "false"}


def _links(gpu: GPU, inventory: Inventory) -> tuple[GPULink, ...]:
    """Return the closest ways to the node's other GPUs, best first: those of one kind and width together."""
    buses = {one.uuid: one.pci_bus_id for one in inventory.gpus}
    found: dict[tuple[LinkKind, int], set[str]] = {}
    for link in inventory.links:
        if gpu.uuid in {link.a, link.b} and link.a in buses and link.b in buses:
            other = link.b if link.a == gpu.uuid else link.a
            found.setdefault((link.kind, link.lanes), set()).add(buses[other])
    ranks = {kind: rank for rank, kind in enumerate(LinkKind)}
    return tuple(
        GPULink(kind=kind.value, lanes=lanes, gpus=tuple(sorted(others)))
        for (kind, lanes), others in sorted(found.items(), key=lambda item: (ranks[item[0][0]], -item[0][1]))
    )


def _slices(gpu: GPU, mig: Mapping[MIGUUID, str]) -> tuple[MIGSlice, ...]:
    found = [
        MIGSlice(
            uuid=one.uuid,
            profile=one.profile,
            start=one.placement_start,
            size=one.placement_size,
            resource=mig.get(one.uuid, ""),
            index=one.index,
            gpu_instance=one.gpu_instance,
            compute_instance=one.compute_instance,
            memory=_bytes(one.memory_bytes) if one.memory_bytes else "",
        )
        for one in gpu.mig_devices
        if one.placement_start is not None and one.placement_size is not None
    ]
    return tuple(sorted(found, key=lambda one: (one.start, one.uuid)))


def _bytes(size: int) -> str:
    return quantity.emit_quantity(Fraction(size), quantity.Form.BINARY)


def plan_spec(
    node: str,
    gpu: GPU,
    inventory: Inventory,
    nvidia_resource: str = "",
    mig: Mapping[MIGUUID, str] = _NO_RESOURCES,
) -> GPUDeviceSpec:
    """Return the facts of one GPU."""
    driver = next((one for one in inventory.drivers if one.vendor is gpu.vendor), None)
    mode = ("Enabled" if gpu.mig_enabled else "Disabled") if gpu.mig_capable else "Unsupported"
    return GPUDeviceSpec(
        node_name=node,
        index=gpu.index,
        minor=gpu.minor,
        uuid=gpu.uuid,
        vendor=gpu.vendor.value,
        product=gpu.name,
        memory=_bytes(gpu.memory_bytes),
        simulated=inventory.is_simulated,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        nics=gpu.nics,
        compute_capability=".".join(map(str, gpu.compute_capability or ())),
        brand=gpu.brand or "",
        driver_version=driver.version if driver is not None else "",
        cuda_version=".".join(map(str, (driver.cuda_version if driver is not None else None) or ())),
        mig_mode=mode,
        links=_links(gpu, inventory),
        mig_devices=_slices(gpu, mig),
        clique=gpu.clique,
        pci_class=f"0x{gpu.pci_class:06x}" if gpu.pci_class is not None else "",
        virtual=_VIRTUAL[gpu.is_virtual],
        host_driver_version=gpu.host_driver.version if gpu.host_driver is not None else "",
        host_driver_branch=gpu.host_driver.branch if gpu.host_driver is not None else "",
        serial=gpu.serial or "",
        resource=advertise.resource_of(gpu, nvidia_resource=nvidia_resource),
        node_index=f"{node}/{gpu.index}",
    )


def own_spec(device: GPUDevice) -> GPUDeviceSpec:
    """Return what the agent says of the GPU, without what an administrator asks for."""
    return msgspec.structs.replace(device.spec, quarantine="")


def find_quarantines(devices: Iterable[GPUDevice]) -> dict[str, str]:
    """Return why administrators want GPUs out of service, by UUID."""
    asked = {one.spec.uuid: one.spec.quarantine[:_LONGEST_WHY] for one in devices if one.spec.quarantine}
    return {uuid: "".join(one if one.isprintable() else " " for one in why) for uuid, why in asked.items()}


def find_silence(node: core.Node, devices: Iterable[GPUDevice]) -> dict[str, tuple[str, str]]:
    """Return reason and message, by name, of the objects whose node has no agent that reports them now.

    A node that is not ready cannot speak for any. Where its kubelet offers nothing of a resource although GPUs of that
    resource are called healthy, no device plugin is registered: the agent is gone, or cannot reach the kubelet. What
    the agent last called Unhealthy or Lost stays so. Who calls this gives a node the time that an agent needs to start.
    """
    name = node.metadata.name
    ready = meta.find_condition(node.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        said = ": ".join(part for part in (ready.reason, ready.message) if part) if ready is not None else ""
        message = f"node {name} is not ready" + (f" ({said})" if said else "")
        return {one.metadata.name: (NODE_NOT_READY, message) for one in devices}
    found: dict[str, tuple[str, str]] = {}
    for one in devices:
        resource = one.spec.resource
        is_silent = one.status.health == gpudevice.HEALTHY or is_silenced(one)
        if resource and is_silent and not quantity.parse_quantity(node.status.allocatable.get(resource, "0")):
            message = f"node {name} offers no {resource}: its agent is gone, or cannot reach the kubelet"
            found[one.metadata.name] = (AGENT_GONE, message)
    return found


def is_silenced(device: GPUDevice) -> bool:
    """Return whether the object was called Unknown because its node's agent is gone."""
    return (device.status.health, device.status.reason) == (gpudevice.UNKNOWN, AGENT_GONE)


def _name(spec: GPUDeviceSpec) -> str:
    return gpudevice.object_name(spec.uuid, spec.node_name, simulated=spec.simulated)


def _judged(spec: GPUDeviceSpec, verdict: rules.Verdict) -> Wanted:
    if verdict.is_healthy:
        return Wanted(spec=spec, health=gpudevice.HEALTHY)
    return Wanted(spec=spec, health=gpudevice.UNHEALTHY, reason=verdict.reason, message=verdict.message)


def _lost(spec: GPUDeviceSpec, gone: UnreadableGPU, verdicts: Mapping[GPUUUID, rules.Verdict]) -> Wanted:
    verdict = verdicts.get(GPUUUID(spec.uuid), rules.Verdict())
    if not verdict.is_healthy and verdict.reason:
        return Wanted(spec=spec, health=gpudevice.LOST, reason=verdict.reason, message=verdict.message)
    return Wanted(spec=spec, health=gpudevice.LOST, reason=gone.reason, message=gone.message)


def _find(gone: UnreadableGPU, specs: Iterable[GPUDeviceSpec]) -> GPUDeviceSpec | None:
    """Return the object's facts of a GPU that was not read since the agent began: by uuid, else by its address."""
    for spec in specs:
        if spec.uuid == gone.uuid or (gone.uuid is None and gone.pci_bus_id and spec.pci_bus_id == gone.pci_bus_id):
            return spec
    return None


def _is_gone(spec: GPUDeviceSpec, inventory: Inventory, problem: str, unplaced: list[UnreadableGPU]) -> bool:
    if problem:
        return False
    if spec.simulated != inventory.is_simulated:
        return True
    answers = any(driver.vendor.value == spec.vendor for driver in inventory.drivers)
    # One that cannot be named may be this one.
    return answers and not any(gone.uuid is None and gone.pci_bus_id is None for gone in unplaced)


def is_current(device: GPUDevice, wanted: Wanted) -> bool:
    """Return whether the object's status says what it should; the wording of a message may be an older one.

    A message may hold a reading (a temperature): writing each of them would be a write at every scan.
    """
    condition = _find_condition(device)
    told = (device.status.health, device.status.reason)
    return (
        told == (wanted.health, wanted.reason)
        and condition is not None
        and condition.observed_generation == device.metadata.generation
    )


def with_status(device: GPUDevice, wanted: Wanted, *, now: str) -> GPUDevice:
    """Return the object with the health it should show; whatever others wrote into the status stays.

    Args: now: RFC 3339; the condition carries it if its status changes.
    """
    if is_current(device, wanted):
        return device
    status = "True" if wanted.health == gpudevice.HEALTHY else "False"
    condition = meta.Condition(
        type=gpudevice.HEALTHY,
        status=status,
        reason=wanted.reason or wanted.health,
        message=wanted.message,
        last_transition_time=now,
        observed_generation=device.metadata.generation,
    )
    changed = msgspec.structs.replace(
        device.status,
        health=wanted.health,
        reason=wanted.reason,
        message=wanted.message,
        conditions=meta.with_condition(device.status.conditions, condition),
    )
    return msgspec.structs.replace(device, status=changed)


def _find_condition(device: GPUDevice) -> meta.Condition | None:
    return meta.find_condition(device.status.conditions, gpudevice.HEALTHY)

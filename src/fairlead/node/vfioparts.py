"""Composes the agent's part that passes GPUs through to virtual machines.

It is there where `node.vfio` is not off: what scans and resets such GPUs, and the third gate before them. The ledger
and the device plugins treat them as they do all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairlead import errors
from fairlead.node.inventory import health, latest, monitor
from fairlead.node.vfio import (
    answers,
    binder,
    busevents,
    executor,
    gpus,
    modules,
    nodes,
    numbers,
    switchgate,
    thirdgate,
)
from fairlead.plan.vfio import slot, switchoffer
from fairlead.settings import NodeSettings, Settings
from fairlead.wire.kubernetes import names

if TYPE_CHECKING:
    from fairlead.node.fabric import keeper

Labels = latest.Latest[Mapping[str, str] | None]

BOUND: Final = "bound"
"""The value of `node.vfio` with which GPUs are offered that are bound already."""
ON: Final = "on"
"""The value of `node.fabric` with which partitions are switched."""
ERASED: Final = "erased"
"""The value of `node.vfio_clean` with which a board must say that its memory is erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VFIOPart:
    """What passes GPUs through."""

    naming: slot.Naming
    gate: thirdgate.ThirdGate
    gpus: gpus.PassthroughGPUs
    binder: binder.Binder
    bus: busevents.BusEvents
    answers: answers.Answers
    fabric: keeper.PartitionKeeper | None = None
    """What switches NVLink partitions; None: no slot has several GPUs."""

    @property
    def fabric_manager(self) -> latest.Latest[str] | None:
        """Return the version of the Fabric Manager, empty while nothing says it; None: no partition is switched."""
        return self.fabric.version if self.fabric is not None else None

    @property
    def activation(self) -> Callable[[str], tuple[float, float] | None] | None:
        """Return what says when a device's NVLink partition was activated; None: no partition is switched."""
        return self.fabric.activation if self.fabric is not None else None

    async def run(self, labels: Labels | None) -> None:
        """Bind what is to be bound and follow the bus, for ever. Args: labels: of this node; None: they are unknown."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.binder.run(labels), name="passthrough: binding")
            tasks.create_task(self.bus.run(), name="passthrough: bus")
            tasks.create_task(self.answers.run(), name="passthrough: answers")


def check_ledger(settings: Settings) -> None:
    """Raise Invalid where GPUs are passed through without a ledger, in a way that needs one."""
    chosen = settings.node
    if settings.lease.ledger == ON or (chosen.vfio in {slot.OFF, BOUND} and chosen.fabric != ON):
        return
    one = "node.fabric=on" if chosen.fabric == ON else f"node.vfio={chosen.vfio}"
    message = f"{one}, and lease.ledger is off: nothing would say which GPUs tenants have"
    hint = "set lease.ledger=on; without it, node.vfio=bound and node.fabric=off"
    raise errors.Invalid(message, reason="SettingInvalid", hint=hint)


def check_switches(settings: Settings) -> None:
    """Raise Invalid where NVSwitches are to go to pods, and would not, or would go elsewhere too."""
    namespace = settings.fabric.vm_namespace
    if not namespace:
        return
    faults = {
        f'fabric.vm_namespace "{namespace}" is no name of a namespace': not names.is_dns_label(namespace),
        "fabric.vm_namespace is set, and node.vfio is off: no NVSwitch would be offered": (
            settings.node.vfio == slot.OFF
        ),
    }
    for message, is_wrong in faults.items():
        if is_wrong:
            hint = "docs/how-to/nvlink-partitions.md says who starts the Service VM"
            raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    switchoffer.check_owner(vm_namespace=namespace, vm_image=settings.fabric.vm_image)


def check(chosen: NodeSettings, *, has_store: bool) -> None:
    """Raise Invalid where a label is to say which nodes pass GPUs through, and nothing here could read it."""
    if chosen.vfio == binder.LABEL and not has_store:
        message = f"node.vfio=label, and the agent reaches no API server, which has the label {binder.WORKLOAD}"
        raise errors.Invalid(message, reason="SettingInvalid", hint="give it a kubeconfig, or set node.vfio=bind")


def compose(
    settings: Settings,
    watch: monitor.InventoryMonitor,
    *,
    boot_id: str,
    changed: Callable[[health.Change], None] = lambda _: None,
) -> VFIOPart | None:
    """Return the part, whose GPUs are scanned with the others; None: the settings pass no GPU through.

    Args:   boot_id: of the running kernel.   changed: called whenever a GPU can be handed out no more, or again.
    Raises: Invalid: a setting; Unavailable: the fabric's agent has no secret.
    """
    chosen, state, root = settings.node, settings.state.folder, settings.silicon.root
    naming = slot.naming_of(chosen)
    check_switches(settings)
    if naming is None:
        if chosen.fabric == ON:
            message = "node.fabric=on, and node.vfio is off: partitions are switched for GPUs that are passed through"
            raise errors.Invalid(message, reason="SettingInvalid", hint="set node.vfio=bound, or node.fabric=off")
        return None
    check_ledger(settings)
    bus = busevents.BusEvents(watch.ask_scan)
    gate, carrying = thirdgate.ThirdGate(nodes.take_hold), executor.Executor(root)
    found = gpus.PassthroughGPUs(
        root,
        modules.ModuleMemory(state / "agent"),
        nodes.take_hold,
        _reset_by(carrying, needs_erased=chosen.vfio_clean == ERASED),
        held=lambda: gate.held,
        bus=bus,
    )
    found.asks_modules = settings.lease.ledger == ON
    found.numbers = numbers.GPUNumbers(state / "agent") if settings.lease.ledger == ON else None
    watch.beside = found.scan
    found.learned, found.changed = watch.ask_scan, changed
    found.offers_switches = bool(settings.fabric.vm_namespace)
    if chosen.fabric != ON:
        _refuse_left(settings, boot_id)
    fabric = _keep_partitions(settings, boot_id, gate, watch) if chosen.fabric == ON else None
    if fabric is not None:
        found.partitions, found.partition_ids = lambda: fabric.sets, lambda: fabric.ids
    binding = binder.Binder(carrying, chosen.vfio, watch.ask_scan)
    bus.added = binding.poke

    def lose(losses: Mapping[str, gpus.Loss]) -> None:
        if (known := found.lose(losses)) is not None:
            watch.publish_beside(known)

    looks = answers.Answers(root, found.addresses, watch.ask_scan)
    bus.removed = lambda address: lose({address: gpus.Loss.REMOVED})
    looks.lost = lose
    return VFIOPart(
        fabric=fabric,
        naming=naming,
        gate=gate,
        gpus=found,
        binder=binding,
        bus=bus,
        answers=looks,
    )


def gate_of(
    settings: Settings, gate: switchgate.Gate | None, *, switches: Callable[[], int], pods: switchgate.AskPods
) -> switchgate.Gate | None:
    """Return what device plugins ask: the ledger's gate, behind that of the NVSwitches where these are offered."""
    if not (namespace := settings.fabric.vm_namespace):
        return gate
    resource = slot.switch_resource(settings.node)
    return switchgate.SwitchGate(gate, namespace, whole=switches, pods=pods, resource=resource)


def _keep_partitions(
    settings: Settings, boot_id: str, gate: thirdgate.ThirdGate, watch: monitor.InventoryMonitor
) -> keeper.PartitionKeeper:
    """Return what switches partitions. Raises: Invalid: an address, or names of slots that have none for several."""
    if settings.node.vfio_names != slot.Scheme.SLOTS.value:
        message = f"node.fabric=on, and node.vfio_names={settings.node.vfio_names} has no names for several GPUs"
        raise errors.Invalid(message, reason="SettingInvalid", hint="set node.vfio_names=slots, or node.fabric=off")
    # Loaded where partitions are switched alone: an agent without does not pay for it.
    from fairlead.node.fabric import keeper, memory
    from fairlead.silicon.fabric import reached, version

    made = keeper.PartitionKeeper(
        reached.reach(settings.fabric, settings.fabric_secret),
        memory.FabricMemory(settings.state.folder / "agent", boot_id),
        gpus=lambda: gate.gpus,
        ours=lambda: gate.held,
        versions=keeper.Versions(
            manager=version.checked("fabric.version", settings.fabric.version),
            guests=version.checked("fabric.guest_driver", settings.fabric.guest_driver),
        ),
    )
    made.offered = watch.ask_scan
    return made


def _refuse_left(settings: Settings, boot_id: str) -> None:
    """Refuse to go on without the fabric while partitions of it are active. Raises: Unavailable (`FabricLeft`)."""
    folder = settings.state.folder / "agent"
    if not (folder / "fabric.json").exists():
        return
    from fairlead.node.fabric import memory

    left = memory.FabricMemory(folder, boot_id).linked
    if left:
        ids = ", ".join(map(str, sorted(left)))
        message = f"node.fabric=off, and the NVLink partitions {ids} of several GPUs were left active"
        hint = f"set node.fabric=on until their pods have ended, or deactivate them and remove {folder / memory.FILE}"
        raise errors.Unavailable(message, reason="FabricLeft", hint=hint)


def _reset_by(made: executor.Executor, *, needs_erased: bool) -> gpus.Reset:
    """Return what resets a function whose node the third gate keeps open."""

    async def reset(address: str) -> None:
        await made.reset([address], is_ours=True, needs_erased=needs_erased)

    return reset

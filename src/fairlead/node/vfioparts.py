"""Composes the agent's part that passes GPUs through to virtual machines.

It is there where `node.vfio` is not off: what scans and resets such GPUs, and the third gate before them. The ledger
and the device plugins treat them as they do all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.node.inventory import latest, monitor
from fairlead.node.vfio import binder, busevents, executor, gpus, modules, nodes, thirdgate
from fairlead.plan.vfio import slot
from fairlead.settings import NodeSettings

Labels = latest.Latest[Mapping[str, str] | None]

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

    async def run(self, labels: Labels | None) -> None:
        """Bind what is to be bound and follow the bus, for ever. Args: labels: of this node; None: they are unknown."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.binder.run(labels), name="passthrough: binding")
            tasks.create_task(self.bus.run(), name="passthrough: bus")


def check(chosen: NodeSettings, *, has_store: bool) -> None:
    """Raise Invalid where a label is to say which nodes pass GPUs through, and nothing here could read it."""
    if chosen.vfio == binder.LABEL and not has_store:
        message = f"node.vfio=label, and the agent reaches no API server, which has the label {binder.WORKLOAD}"
        raise errors.Invalid(message, reason="SettingInvalid", hint="give it a kubeconfig, or set node.vfio=bind")


def compose(chosen: NodeSettings, watch: monitor.InventoryMonitor, *, state: Path, root: Path) -> VFIOPart | None:
    """Return the part, whose GPUs are scanned with the others; None: the settings pass no GPU through.

    Args: state: folder of the agent's state.   root: has /dev, /proc and /sys.   Raises: Invalid: a setting.
    """
    naming = slot.naming_of(chosen.vfio, chosen.vfio_names, chosen.vfio_alias, chosen.vfio_nodes)
    if naming is None:
        return None
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
    watch.beside = found.scan
    return VFIOPart(
        naming=naming,
        gate=gate,
        gpus=found,
        binder=binder.Binder(carrying, chosen.vfio, watch.ask_scan),
        bus=bus,
    )


def _reset_by(made: executor.Executor, *, needs_erased: bool) -> gpus.Reset:
    """Return what resets a function whose node the third gate keeps open."""

    async def reset(address: str) -> None:
        await made.reset([address], is_ours=True, needs_erased=needs_erased)

    return reset

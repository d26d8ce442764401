"""Composes the agent's part that passes GPUs through to virtual machines.

It is there where `node.vfio` is not off: what scans and resets such GPUs, and the third gate before them. The ledger
and the device plugins treat them as they do all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairlead.node.inventory import monitor
from fairlead.node.vfio import executor, gpus, modules, nodes, thirdgate
from fairlead.plan.vfio import slot
from fairlead.settings import Settings

ERASED: Final = "erased"
"""The value of `node.vfio_clean` with which a board must say that its memory is erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VFIOPart:
    """What passes GPUs through."""

    naming: slot.Naming
    gate: thirdgate.ThirdGate
    gpus: gpus.PassthroughGPUs


def compose(chosen: Settings, watch: monitor.InventoryMonitor) -> VFIOPart | None:
    """Return the part, whose GPUs are scanned with the others; None: the settings pass no GPU through.

    Raises: Invalid: a setting.
    """
    naming = slot.naming_of(chosen.node.vfio, chosen.node.vfio_names, chosen.node.vfio_alias, chosen.node.vfio_nodes)
    if naming is None:
        return None
    gate = thirdgate.ThirdGate(nodes.take_hold)
    found = gpus.PassthroughGPUs(
        chosen.silicon.root,
        modules.ModuleMemory(chosen.state.folder / "agent"),
        nodes.take_hold,
        _reset_by(executor.Executor(chosen.silicon.root), needs_erased=chosen.node.vfio_clean == ERASED),
        held=lambda: gate.held,
    )
    watch.beside = found.scan
    return VFIOPart(naming=naming, gate=gate, gpus=found)


def _reset_by(made: executor.Executor, *, needs_erased: bool) -> gpus.Reset:
    """Return what resets a function whose node the third gate keeps open."""

    async def reset(address: str) -> None:
        await made.reset([address], is_ours=True, needs_erased=needs_erased)

    return reset

"""Declares what of the agent the DRA driver is composed of; it loads nothing that only a served driver needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import latest, monitor, pods
from fairlead.plan import supply as supplies
from fairlead.plan.sharing import mps
from fairlead.store.port import PatchingStore
from fairlead.wire.kubernetes import core

if TYPE_CHECKING:
    from fairlead.node.lease import gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the driver and its part stand on."""

    node: str
    store: PatchingStore
    silicon: object
    boot_id: str
    watch: monitor.InventoryMonitor
    supply: latest.Latest[supplies.Supply]
    gate: gate.Gate
    pods: pods.Pods
    node_object: latest.Latest[core.Node | None]
    """None: the store has not listed it."""
    daemons: latest.Latest[Mapping[GPUUUID, mps.DaemonState]] | None
    """Control daemons of MPS; None: no GPU can be shared by it."""
    daemon_folders: Callable[[Iterable[GPUUUID]], Mapping[str, tuple[str, str]]]
    """Of each GPU: the folder of its daemon's pipes, and what is /dev/shm for its clients."""
    changed: Callable[[], None]
    """Called whenever other GPUs can be given away, or other daemons are wanted, than before."""
    said: Callable[[str, str, str], None]
    """Called with a claim, a reason and what a person should know."""

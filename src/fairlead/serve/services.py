"""What the API stands on: the doors to objects, containers, images and hardware, handed in by `cli`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from litestar import di, params

from fairlead.engine.port import Engine, Images
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory
from fairlead.silicon.port import Faults
from fairlead.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """Facts of this service that do not change while it runs."""

    version: str
    node: str
    """Name of the node this service runs on."""
    started_at: float
    """Unix seconds."""
    scheduler_name: str
    """Given to pods that name no scheduler."""
    resource: str
    """Extended resource meant by a plain number of GPUs."""
    socket: Path
    state_folder: Path
    cdi_folder: Path
    profile: str = ""
    """Profile of simulated silicon; empty on real hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a handler may touch."""

    store: Store
    engine: Engine
    images: Images
    inventory: Callable[[], Inventory]
    """The latest scan."""
    drivers: Callable[[], tuple[DriverFiles, ...]]
    faults: Faults | None
    """None where the silicon is real: it cannot be broken on command."""
    info: ServiceInfo
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the look at a namespace's quotas until the pod that they let in is stored."""


Door = di.NamedDependency[params.SkipValidation[Services]]
"""How a handler asks for the services (parameter `services`)."""

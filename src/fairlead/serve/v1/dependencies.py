"""Declares what handlers are given: the store of objects and the backend where containers run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from litestar import di, params

from fairlead.serve.backend.port import Backend
from fairlead.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """Facts of this service that do not change while it runs."""

    version: str
    node: str
    """Name of the node this service runs on; empty: on none."""
    started_at: float
    """Unix seconds."""
    scheduler_name: str
    """Given to pods that name no scheduler; empty: the cluster's own."""
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
    backend: Backend
    info: ServiceInfo


Dependencies = di.NamedDependency[params.SkipValidation[Services]]
"""How a handler asks for the services (parameter `services`)."""

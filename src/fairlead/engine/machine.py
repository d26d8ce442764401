"""Chooses the container engine of this machine: podman, the one there is so far.

Other rooms ask a `MachineEngine` and do not depend on which engine it is, except `node.isolation.entitlement`: podman
copies the annotations of images, so these do not say there whose a container is.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, Self

from fairlead import settings
from fairlead.engine.access import Access
from fairlead.engine.podman import engine, host
from fairlead.engine.port import Advice, Engine, EngineInfo, IdentifiedImages, ImageStore, Networks


class MachineEngine(Engine, Access, IdentifiedImages, ImageStore, Networks, Protocol):
    """All that Fairlead asks of a machine's engine: what each port declares, and what only its opener uses."""

    def served(self) -> AbstractAsyncContextManager[Self]:
        """Start containers for a block in whatever way the engine has that is faster than commands."""
        ...

    async def find_broken(self) -> tuple[str, ...]:
        """Return the names of containers that break the engine's own listing. Raises: as `Engine.list_containers`."""
        ...


def open_engine(chosen: settings.EngineSettings) -> MachineEngine:
    """Return the engine that the settings name; nothing is started or asked yet."""
    return engine.PodmanEngine(chosen)


def advice(_chosen: settings.EngineSettings) -> Advice:
    """Return what a person can do about the engine that the settings name, or with it."""
    return host.ADVICE


def list_cdi_folders(_chosen: settings.EngineSettings, version: str) -> tuple[str, ...]:
    """Return where the engine that the settings name, of that version, looks for CDI specs on this machine."""
    return host.cdi_folders(version, Path("/"))


def find_runtime(_chosen: settings.EngineSettings, name: str) -> str:
    """Return the program of a runtime that the engine is configured with; empty: it has none of that name."""
    return host.find_runtime(name, Path("/"))


def check_cdi_folder(_chosen: settings.EngineSettings, folder: Path, found: EngineInfo) -> None:
    """Hold the folder of our specs to those that the engine reads. Raises: Invalid (`CDIFolderUnread`)."""
    host.check_cdi_folder(folder, found.version, root=Path("/"))

"""Chooses the container engine of this machine: podman, the one there is so far."""

from __future__ import annotations

from fairlead import settings
from fairlead.engine.podman import engine


def open_engine(chosen: settings.EngineSettings) -> engine.PodmanEngine:
    """Return the engine that the settings name; nothing is started or asked yet."""
    return engine.PodmanEngine(chosen)

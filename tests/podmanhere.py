"""Engines over podman that know what others of this process were told of it.

`podman info`, which each engine asks first, takes a third of a second of a processor: more than a container's start.
"""

from __future__ import annotations

from fairlead import settings
from fairlead.engine.podman import cli, host
from fairlead.engine.podman import engine as podman

_FOUND: dict[settings.EngineSettings, host.Host] = {}


class _Podman(cli.Podman):
    async def host(self) -> host.Host:
        if self._host is None:
            self._host = _FOUND.get(self._settings)
        found = await super().host()
        _FOUND.setdefault(self._settings, found)  # an engine that gave its network up keeps that to itself
        return found


def engine(group: settings.EngineSettings) -> podman.PodmanEngine:
    """Return an engine that asks podman what it is only where none with the same settings has."""
    made = podman.PodmanEngine(group)
    made._podman = _Podman(group)
    return made

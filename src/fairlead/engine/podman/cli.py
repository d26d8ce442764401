"""Calls the podman program: the one place that knows its path, environment, time limits and local limits.

Every call is one short process. Measured on the project's machine: create 38 ms, init 84 to 112 ms, start 40 ms,
ps 28 ms, info 215 ms (once per process of ours). `service` has two of the steps done through a socket instead.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from fairlead import command, errors, settings, telemetry
from fairlead.engine.podman import errors as podman_errors
from fairlead.engine.podman import host as podman_host
from fairlead.engine.podman import json as podman_json

SHORT_S: Final = 120.0
"""No short command takes this long on a machine that works: podman's locks may queue, its storage may be slow."""


class Podman:
    """The program and, once asked, what it can do here."""

    def __init__(self, group: settings.EngineSettings, *, root: Path = Path("/")) -> None:
        self._settings = group
        self._root = root
        self._host: podman_host.Host | None = None
        self._asking = asyncio.Lock()
        self.env = command.base_env()

    def argv(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        return [self._settings.podman, *arguments]

    async def run(
        self, *arguments: str, timeout_s: float = SHORT_S, stdin: int | None = None, folder: Path = Path("/")
    ) -> command.Result:
        """Run one short command to its end, whatever its exit code. Raises: Unavailable."""
        return await command.run(self.argv(*arguments), env=self.env, timeout_s=timeout_s, stdin=stdin, folder=folder)

    async def checked(
        self,
        subject: str,
        act: str,
        *arguments: str,
        timeout_s: float = SHORT_S,
        stdin: int | None = None,
        folder: Path = Path("/"),
    ) -> command.Result:
        """Run one short command that must succeed. Raises: what podman's message means, see `engine.podman.errors`."""
        result = await self.run(*arguments, timeout_s=timeout_s, stdin=stdin, folder=folder)
        if result.code != 0:
            raise podman_errors.translate(subject, act, result)
        return result

    async def host(self) -> podman_host.Host:
        """Return how podman must be called here; found out once.

        Raises: Unavailable: podman is not installed, cannot inject CDI devices, or cannot run containers here.
        """
        async with self._asking:
            if self._host is None:
                result = await self.checked("podman", "describe", "info", "--format=json")
                info = podman_json.decode(result.stdout, podman_host.Info, what="info")
                self._host = await asyncio.to_thread(
                    podman_host.detect,
                    info,
                    runtime=self._settings.runtime,
                    network=self._settings.network,
                    root=self._root,
                )
                for note in self._host.info.notes:
                    telemetry.log.debug("container engine oddity", reason=note)
            return self._host

    def give_up_network(self, error: errors.FairleadError) -> None:
        """Do without the default network from now on: it is installed and does not work."""
        if self._host is not None and self._host.may_fall_back:
            self._host = podman_host.without_network(self._host, why=error.message)
            telemetry.log.warning("container network given up", reason=error.reason, error=error.message)

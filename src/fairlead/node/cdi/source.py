"""Collects everything this machine's CDI specs are made from: GPUs, driver files, other modes' findings.

Used by the verb that writes specs once and by the watcher, so that the two cannot disagree. GPUs come from the silicon
port; everything else from files, read in a thread. A driver that is not loaded has no GPUs and is not an error here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fairlead import errors
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory
from fairlead.node.cdi import specfile
from fairlead.plan.cdi import generate, source
from fairlead.silicon import port
from fairlead.silicon.nvidia.files import modefiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where to look and what to make of it."""

    silicon: port.Silicon
    place: modefiles.Place
    modes: tuple[str, ...]
    """Keys of `plan.cdi.source.MODES`, as `plan.cdi.source.chosen` gives them."""
    recipe: generate.Recipe

    async def collect(self) -> specfile.Findings:
        """Read everything now.

        Raises: Unavailable: a driver is loaded but does not answer.   NotFound: the recipe names an unknown device.
                ProtocolError: a Tegra list is malformed.
        """
        files = source.file_modes(self.modes)
        inventory, drivers = await self._gpus() if len(files) < len(self.modes) else (Inventory(), ())
        found = {name: await asyncio.to_thread(modefiles.scan, name, self.place) for name in files}
        return await asyncio.to_thread(
            specfile.findings,
            inventory,
            drivers,
            found,
            modes=self.modes,
            recipe=self.recipe,
            root=self.place.root,
        )

    async def _gpus(self) -> tuple[Inventory, tuple[DriverFiles, ...]]:
        try:
            inventory = await self.silicon.scan()
        except errors.Unavailable as error:
            inventory = specfile.without_driver(error)
        return inventory, await self.silicon.scan_driver()

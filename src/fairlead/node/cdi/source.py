"""Everything this machine's CDI specs are made from, looked at in one go: GPUs, driver files, other modes' findings.

Used by whoever writes specs once and by the watcher alike, so that the two cannot disagree. GPUs come from the silicon
port; everything else from files, read in a thread. A driver that is not loaded has no GPUs and is no error here.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead import errors
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory, Vendor
from fairlead.node.cdi import specfiles
from fairlead.plan.cdi import generate, source
from fairlead.silicon import port, running
from fairlead.silicon.nvidia import modefiles
from fairlead.wire.cdi import stamp
from fairlead_cdi import spec as cdi_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found."""

    made: generate.Generation
    stamps: dict[Vendor, stamp.Stamp]
    """Of each vendor's specs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where to look and what to make of it."""

    silicon: port.Silicon
    place: modefiles.Place
    modes: tuple[str, ...]
    """Keys of `mode.MODES`, as `mode.chosen` gives them."""
    recipe: generate.Recipe

    async def look(self) -> Look:
        """Read everything now.

        Raises: Unavailable: a driver is loaded but does not answer.   NotFound: the recipe names an unknown device.
                ProtocolError: a Tegra list is malformed.
        """
        vendors = tuple(row.vendor for name in self.modes if (row := source.MODES[name]).vendor)
        inventory, drivers = await self._gpus() if vendors else (Inventory(), ())
        made = generate.generate(inventory, drivers, recipe=self.recipe, vendors=vendors)
        others = [name for name in self.modes if source.MODES[name].vendor is None]
        specs, problems = list(made.specs), list(made.problems)
        for name in others:
            found = await asyncio.to_thread(modefiles.scan, name, self.place)
            problems += [f"{name}: {problem}" for problem in found.problems]
            spec = source.mode_spec(name, found, self.recipe)
            specs += [] if spec is None else [spec]
        _assert_distinct(specs)
        versions = await asyncio.to_thread(self._versions, drivers)
        made = generate.Generation(specs=tuple(specs), problems=tuple(problems))
        return Look(made=made, stamps=specfiles.stamps_of(inventory, versions))

    async def _gpus(self) -> tuple[Inventory, tuple[DriverFiles, ...]]:
        try:
            inventory = await self.silicon.scan()
        except errors.Unavailable as error:
            if error.reason != "DriverNotLoaded":
                raise
            inventory = Inventory()
        return inventory, await self.silicon.scan_driver()

    def _versions(self, drivers: Iterable[DriverFiles]) -> dict[Vendor, str]:
        """Return the drivers' versions; where GPUs were not asked about, those that are loaded."""
        loaded = running.read_running(self.place.root).versions
        return {Vendor(vendor): text for vendor, text in loaded.items()} | specfiles.versions_of(drivers)


def _assert_distinct(specs: Iterable[cdi_spec.Spec]) -> None:
    """Refuse two specs of one kind: their devices would cancel each other. Raises: Invalid."""
    counts = collections.Counter(spec.kind for spec in specs)
    twice = [kind for kind, count in counts.items() if count > 1]
    if twice:
        message = f"{counts[twice[0]]} specs would be of kind {twice[0]}"
        raise errors.Invalid(message, reason="KindAmbiguous", hint="choose one mode for a vendor and class of your own")

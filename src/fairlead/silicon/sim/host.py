"""Composes a simulated host: a machine of a profile, its device tree in a folder, and the library over both.

Synchronous. `sim.silicon` makes the silicon port of it, `silicon.once` reads it a single time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead.silicon.sim import machine, profile, root
from fairlead.silicon.sim.nvml import library

TREE: Final = "root"
"""Name of the device tree in the folder of a simulated machine."""


class SimulatedHost:
    """What lies below the NVML code: `library` in place of libnvidia-ml, `tree` in place of /dev, /proc and /sys."""

    def __init__(self, folder: Path, name: str) -> None:
        """Build the device tree in `folder/root`, or take up the one that is there.

        Args:    folder: ours alone; created if absent.   name: a profile's name, or a file (see `profile.load`).
        Raises:  Invalid: no such profile.   Unavailable: the tree cannot be made, for want of rights or space.
        """
        self.profile = profile.load(name)
        self.machine = machine.Machine(self.profile)
        folder.mkdir(parents=True, exist_ok=True)
        self.machine.state = folder / "machine.json"
        self.machine.take_up()
        self.tree = root.FakeRoot(folder / TREE, self.machine)
        self.tree.build()
        self.library = library.SimulatedNVML(self.machine)

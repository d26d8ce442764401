"""Chooses the silicon of this process: simulated where settings say so, else every vendor present."""

from __future__ import annotations

from pathlib import Path

from fairlead import settings
from fairlead.silicon import hardware, port
from fairlead.silicon.sim import host, silicon


def open_silicon(chosen: settings.SiliconSettings, folder: Path) -> port.SampledSilicon:
    """Return this machine's silicon, without reading any hardware yet.

    A simulated one also implements `port.Faults` and `port.Workloads`.

    Args:    folder: where simulated silicon keeps its device tree and state; untouched for real hardware.
    Raises:  Invalid: no such profile.   Unavailable: the simulated device tree cannot be made.
    """
    if chosen.simulate:
        return silicon.SimulatedSilicon(folder, chosen.simulate, call_timeout_s=chosen.call_timeout_s)
    return hardware.open_hardware(chosen)


def root_of(chosen: settings.SiliconSettings, folder: Path) -> Path:
    """Return the root that this process's silicon reads; of simulated silicon its tree, see `open_silicon`."""
    return folder / host.TREE if chosen.simulate else chosen.root

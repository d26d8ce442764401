"""Reads this machine's GPUs and drivers once, in the calling thread and without an event loop.

For commands that live a tenth of a second: the silicon port needs an event loop, whose import alone costs 20 ms of CPU
time. The scans are the port's own (`nvidia.scanner`, `amd`, `intel`), so the two cannot disagree.
"""

from __future__ import annotations

from pathlib import Path

from fairlead import errors, settings
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory
from fairlead.silicon import amd, intel, knowngpus, vendors
from fairlead.silicon.nvidia import callthread, scanner
from fairlead.silicon.nvidia.files import driver


class HardwareReader:
    """Every vendor that this machine may have."""

    def __init__(self, chosen: settings.SiliconSettings) -> None:
        self._chosen, self._search = chosen, driver.search_of(chosen)
        self.failed: list[errors.Unavailable] = []
        """Drivers that refused the last scan while another vendor had GPUs."""

    def scan(self) -> Inventory:
        """Read every GPU now. Raises: as the port's `scan`."""
        root = self._chosen.root
        found, self.failed = vendors.join([self._scan_nvidia(), amd.scan(root), intel.scan(root)])
        return found

    def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read device nodes, modules and user-space files, one value for each vendor found."""
        root, driver_root = self._chosen.root, self._chosen.driver_root
        found = driver.scan(root, driver_root, self._search), amd.scan_driver(root), intel.scan_driver(root)
        return tuple(item for item in found if item is not None)

    def _scan_nvidia(self) -> Inventory | errors.Unavailable:
        chosen = self._chosen
        known = knowngpus.KnownGPUs(_nobody)
        scan = scanner.Scanner(
            chosen.root, chosen.driver_root, call_timeout_s=chosen.call_timeout_s, known=known, search=self._search
        )
        try:
            return _run(scan, chosen.call_timeout_s)
        except errors.Unavailable as error:
            return error


class SimulatedReader:
    """A simulated host, see `sim.host`."""

    def __init__(self, tree: Path, library: object, *, call_timeout_s: float) -> None:
        """Args: tree: the host's root.   library: its NVML."""
        self._tree, self._library, self._call_timeout_s = tree, library, call_timeout_s
        self.failed: list[errors.Unavailable] = []

    def scan(self) -> Inventory:
        """Read every GPU now. Raises: as the port's `scan`."""
        scan = scanner.Scanner(
            self._tree,
            Path("/"),
            call_timeout_s=self._call_timeout_s,
            known=knowngpus.KnownGPUs(_nobody),
            library=self._library,
            is_simulated=True,
        )
        return _run(scan, self._call_timeout_s)

    def scan_driver(self) -> tuple[DriverFiles, ...]:
        """Read the simulated device tree."""
        found = driver.scan(self._tree, Path("/"))
        return () if found is None else (found,)


def _run(scan: scanner.Scanner, timeout_s: float) -> Inventory:
    threads = callthread.CallThreads("nvml")
    try:
        return scan.run(threads)
    finally:
        opened = scan.release()
        if opened is not None:
            threads.run_all_here({"close": opened.shut_down}, timeout_s=timeout_s)


def _nobody(_event: object) -> None:
    """Drop an event: nobody listens, and after one scan there is nothing to compare with."""

"""Has the node scanned as soon as the bus says that something changed, and remembers which functions report errors.

A GPU that is taken out, put in again, bound elsewhere or reset by hand shows within a fraction of a second, in place of
the next scan by the timer; one that is taken out is told at once, before any scan. An error that the kernel recovers
from (AER, DPC) is a problem of its function until the kernel says that it has recovered; one that it could not recover
from, until the function is taken off the bus or the agent has reset it. Where messages of the kernel cannot be heard,
the node is scanned every few seconds instead.
Source: linux drivers/pci/pci-driver.c, pci_uevent_ers; Documentation/PCI/pci-error-recovery.rst.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from fairlead import errors, telemetry
from fairlead.kernel import uevent

_SUBSYSTEMS: Final = frozenset({"pci", "vfio", "vfio-dev", "iommu"})
_SETTLED_S: Final = 0.5
"""The kernel says that a device goes before its folder has gone: so long after the last message everything is read
once more."""
POLL_S: Final = 5.0
_BEGIN, _FAILED = "BEGIN_RECOVERY", "FAILED_RECOVERY"
_RECOVERED: Final = "SUCCESSFUL_RECOVERY"
_MOST: Final = 256
"""Functions with errors that are remembered; a machine has some tens of GPUs."""

Watch = Callable[[], AsyncIterator[uevent.UEvent]]


class BusEvents:
    """What the bus has said since this began."""

    def __init__(self, changed: Callable[[], None], *, watch: Watch = uevent.watch, poll_s: float = POLL_S) -> None:
        """Hear nothing yet. Args: changed: asks for a scan, soon.   poll_s: between scans where nothing is heard."""
        self._changed, self._watch, self._poll_s = changed, watch, poll_s
        self.added: Callable[[], None] = lambda: None
        """Called once a burst has settled in which a function was put in, or may have been."""
        self.removed: Callable[[str], None] = lambda _: None
        """Called with the address of each function that the kernel took off the bus."""
        self._is_added = False
        self._errors: dict[str, str] = {}

    def problem(self, address: str) -> str:
        """Return what a function's last error means for it; empty: it has reported none, or has recovered."""
        return self._errors.get(address, "")

    def forget(self, address: str) -> None:
        """Forget a function's error: it has been reset."""
        if self._errors.pop(address, None) is not None:
            self._changed()

    async def run(self) -> None:
        """Listen, for ever."""
        pending = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._settle(pending), name="bus: settled")
            while True:
                try:
                    async for event in self._watch():
                        self._is_added |= event is uevent.LOST or _is_added(event)
                        if event is uevent.LOST or self._note(event):
                            self._changed()
                            pending.set()
                except errors.Unavailable as error:
                    telemetry.log.warning("bus is polled", reason=error.reason, error=errors.sentence(error))
                await asyncio.sleep(self._poll_s)
                self._changed()

    async def _settle(self, pending: asyncio.Event) -> None:
        """Ask once more after the last message of a burst, for ever."""
        while True:
            await pending.wait()
            while pending.is_set():
                pending.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SETTLED_S):
                        await pending.wait()
            if self._is_added:
                self._is_added = False
                self.added()
            self._changed()

    def _note(self, event: uevent.UEvent) -> bool:
        """Remember what a message says of a function; returns whether it concerns passthrough at all."""
        if event.fields.get("SUBSYSTEM") not in _SUBSYSTEMS:
            return False
        address = event.fields.get("PCI_SLOT_NAME", "")
        said = event.fields.get("ERROR_EVENT", "")
        if event.action == "remove" or said == _RECOVERED:
            self._errors.pop(address, None)
        if said in {_BEGIN, _FAILED} and address and (len(self._errors) < _MOST or address in self._errors):
            self._errors[address] = _sentence(address, said)
        if _is_removed(event) and address:
            self.removed(address)
        if said:
            telemetry.log.warning("pci error", pci=address, reason=said)
        return True


def _is_added(event: uevent.UEvent) -> bool:
    """Return whether a PCI function is new: one that a driver is bound to, or taken from, is not."""
    return event.action == "add" and event.fields.get("SUBSYSTEM") == "pci"


def _is_removed(event: uevent.UEvent) -> bool:
    """Return whether a PCI function is off the bus: the kernel says so once it is in no list of the bus any more.

    Source: linux drivers/base/core.c, device_del.
    """
    return event.action == "remove" and event.fields.get("SUBSYSTEM") == "pci"


def _sentence(address: str, said: str) -> str:
    if said == _BEGIN:
        return f"{address} reported an error that the kernel is recovering from (AER)"
    at = f"/sys/bus/pci/devices/{address}/remove"
    mend = f"look at the board (`dmesg | grep {address}`), then `echo 1 > {at}; echo 1 > /sys/bus/pci/rescan`"
    return f"{address} reported an error that the kernel could not recover from (AER); {mend}"

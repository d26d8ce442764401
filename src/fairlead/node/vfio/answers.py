"""Looks whether GPUs that are passed through still answer on the bus: one that fell off it sends no word.

A function that is gone for its bus alone stays in sysfs, and reads as ones. Four bytes of its configuration space say
so, several times a second. One look is enough: while the kernel resets a function, whoever asked for it, it keeps such
reads waiting, so that none meets the ones of a reset. What answers again must do so in two looks in a row before the
node is scanned for it. What sleeps in D3cold is left asleep. A read that never returns stops these looks and nothing
else: the scans by the timer go on.
Source: kernel Documentation/PCI/pci-error-recovery.rst (reads of a device that is gone are all ones); ABI
testing/sysfs-bus-pci (power_state); linux drivers/pci/access.c, pci_wait_cfg.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from fairlead import daemonthread
from fairlead.node.vfio.gpus import Loss
from fairlead.silicon.vfio import attribute

EVERY_S: Final = 0.3
_SILENT: Final = frozenset({b"", b"\xff" * 4})
_LOOKS: Final = 2
"""So many looks in a row find a function answering before it counts as back."""


class Answers:
    """Tells at once of a GPU that stops answering, and has the node scanned for one that answers again."""

    def __init__(
        self,
        root: Path,
        addresses: Callable[[], Collection[str]],
        changed: Callable[[], None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        """Look at nothing yet.

        Args: root: has /sys.   addresses: returns whom to look at.   changed: asks for a scan.
        """
        self.lost: Callable[[Mapping[str, Loss]], None] = lambda _: None
        """Called with those that have stopped answering since the last look, before a scan is asked for."""
        self._root, self._addresses, self._changed, self._every_s = root, addresses, changed, every_s
        self._silent: Mapping[str, int] = {}
        """Of each function that is silent, how many looks in a row it has answered since."""

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            if addresses := tuple(self._addresses()):
                look = functools.partial(self._look, addresses)
                with contextlib.suppress(RuntimeError):  # no thread is to be had now
                    self._judge(await asyncio.wrap_future(daemonthread.start("vfio-answers", look, ended=lambda: None)))

    def _look(self, addresses: Collection[str]) -> dict[str, Loss | None]:
        """Return of each function that does not sleep how it is lost; None: it answers."""
        places = {one: f"{self._root}/sys/bus/pci/devices/{one}" for one in addresses}
        return {
            one: _find_loss(place)
            for one, place in places.items()
            if attribute.find_text(f"{place}/power_state") != "D3cold"
        }

    def _judge(self, found: Mapping[str, Loss | None]) -> None:
        before = self._silent
        stopped = {one: loss for one, loss in found.items() if loss is not None and one not in before}
        looks = {
            one: before.get(one, 0) + 1 if loss is None else 0
            for one, loss in found.items()
            if one in before or loss is not None
        }
        self._silent = {one: count for one, count in looks.items() if count < _LOOKS}
        if stopped:
            self.lost(stopped)
        if stopped or len(self._silent) < len(looks):
            self._changed()


def _find_loss(place: str) -> Loss | None:
    try:
        return Loss.SILENT if attribute.read(f"{place}/config", size=4) in _SILENT else None
    except FileNotFoundError:
        return Loss.REMOVED
    except OSError:
        return Loss.SILENT

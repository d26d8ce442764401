"""Wakes the ledger when a neighbour ends, so that its GPU is given on at once and not after the next round.

Source: pidfd_open(2): a pidfd is readable once its process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

_MOST: Final = 64
"""Descriptors that are kept; of more neighbours the rounds notice the end."""


class Exits:
    """Waits for the end of processes."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """Wait for nothing yet. Args: ended: called in the loop whenever one has ended."""
        self._ended = ended
        self._handles: dict[int, int] = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Wait for these, and no longer for others."""
        wanted = set(sorted(pids)[:_MOST])
        for pid in self._handles.keys() - wanted:
            self._drop(pid)
        for pid in wanted - self._handles.keys():
            with contextlib.suppress(OSError):  # it has ended, or descriptors are short
                handle = os.pidfd_open(pid)
                self._handles[pid] = handle
                asyncio.get_running_loop().add_reader(handle, self._seen, pid)

    def close(self) -> None:
        """Wait for nothing any more."""
        self.watch(())

    def _seen(self, pid: int) -> None:
        self._drop(pid)
        self._ended()

    def _drop(self, pid: int) -> None:
        handle = self._handles.pop(pid)
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)

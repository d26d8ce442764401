"""Notices that a process neither reads input nor writes output: a cluster does not always report that one has ended.

For a program that left its input unread a kubelet may pass on nothing more, its end included. `kubectl` does not know
either: it waits without limit for the end of both outputs and for the exit status. So the end cannot be detected, and
the user is told.
Source: client-go tools/remotecommand v2.go (`stream`), v5.go; rancher/rke2 issue 10237.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

LIMIT_S: Final = 15.0
"""How long nothing is read or written before the callback."""


class Standstill:
    """Calls a function once, from a thread of its own, when a session waits `limit_s` for its process."""

    def __init__(self, said: Callable[[], None], *, limit_s: float = LIMIT_S) -> None:
        """Take the function to call."""
        self._said, self._limit_s = said, limit_s
        self._moved_at = time.monotonic()
        self._is_waiting = False
        self._is_over = threading.Event()

    def moved(self) -> None:
        """Note that output came."""
        self._moved_at = time.monotonic()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Mark a block that waits for the process to take its input."""
        self._is_waiting, self._moved_at = True, time.monotonic()
        try:
            yield
        finally:
            self._is_waiting, self._moved_at = False, time.monotonic()

    def sent(self) -> None:
        """Note that the process has all of its input: from now on it is waited for."""
        self._is_waiting, self._moved_at = True, time.monotonic()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for the length of a block."""
        thread = threading.Thread(target=self._look, name="standstill", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()

    def _look(self) -> None:
        while not self._is_over.wait(self._limit_s / 5):
            if self._is_waiting and time.monotonic() - self._moved_at >= self._limit_s:
                self._said()
                return

"""Notices that a process takes no input and says nothing: a cluster does not always tell that one has ended.

A kubelet may pass on no more of a program that left its input unread, its end included. `kubectl` knows as little: it
waits for the end of both outputs, and then for how it ended, without limit. So it cannot be known; the person is told.
Source: client-go tools/remotecommand v2.go (`stream`), v5.go; rancher/rke2 issue 10237.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

LIMIT_S: Final = 15.0
"""How long nothing moves before it is said."""


class Standstill:
    """Calls once, from a thread of its own, where a session stands still that waits for its process."""

    def __init__(self, said: Callable[[], None], *, limit_s: float = LIMIT_S) -> None:
        """Take what is called."""
        self._said, self._limit_s = said, limit_s
        self._moved_at = time.monotonic()
        self._is_waiting = False
        self._is_over = threading.Event()

    def moved(self) -> None:
        """Note that something came."""
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
        """Look for the length of a block."""
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

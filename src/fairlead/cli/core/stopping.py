"""Turns SIGINT and SIGTERM into the orderly end of a long-lived verb."""

from __future__ import annotations

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, in place of ending the running loop's process."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop

"""Logs, timings and crash points: what a process says about itself, and nothing about the work.

Logs are structlog events on standard error: a constant phrase plus facts under keys from `KEYS`. `timed` is the only
clock in the main path. `crash_point` names a place where the process may die; tests choose one and the process kills
itself there, so that "kill -9 between any two steps" is a table of names and not a race.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import structlog

KEYS: Final = (
    "node",
    "gpu",
    "mig",
    "pci",
    "claim",
    "pod",
    "namespace",
    "tenant",
    "lease",
    "container",
    "resource",
    "device",
    "reason",
    "duration_s",
    "error",
    "path",
    "count",
    "role",
    "state",
    "version",
    "method",
)

log: Any = structlog.get_logger("fairlead")


def configure(level: str, form: str) -> None:
    """Send events to standard error: console form on a terminal (or as asked), else one JSON object a line."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    tail: list[Any] = [] if console else [structlog.processors.dict_tracebacks]
    structlog.configure(
        processors=[*shared, *tail, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


@dataclass(slots=True)
class Timing:
    """Filled when its block ends."""

    duration_s: float = 0.0


@contextlib.contextmanager
def timed(phrase: str, **facts: object) -> Iterator[Timing]:
    """Measure a block on the monotonic clock and log it at debug level with `duration_s`."""
    timing, started = Timing(), time.monotonic()
    try:
        yield timing
    finally:
        timing.duration_s = time.monotonic() - started
        log.debug(phrase, duration_s=round(timing.duration_s, 6), **facts)


_armed: list[str] = []


def arm_crash_point(name: str) -> None:
    """Make `crash_point(name)` kill this process; an empty name disarms."""
    _armed[:] = [name] if name else []


def crash_point(name: str) -> None:
    """Die here with SIGKILL when this point is armed: nothing is flushed, no handler runs."""
    if name in _armed:
        os.kill(os.getpid(), signal.SIGKILL)

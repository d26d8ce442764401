"""Writes log lines with structlog: which form, which fields, and how many of a kind a minute.

`telemetry` imports this module with the first line that a process logs. A phrase about one GPU (or about none) is
written so many times a minute at most; what was left out is counted and logged.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

# structlog takes rich along wherever it is installed, for tracebacks that are not shown here: 6 MB and 60 ms of every
# process, a tenth of what the agent may have; colorama, which it uses on Windows only; and greenlet, for loggers of
# greenlets. A module that is None cannot be imported.
_UNUSED: Final = [name for name in ("rich", "colorama", "greenlet") if sys.modules.setdefault(name, None) is None]  # type: ignore[arg-type]  # as meant
import structlog  # noqa: E402  (after the line above, or it is in vain)

for _name in _UNUSED:
    del sys.modules[_name]

log: Any = structlog.get_logger("fairlead")


class LineLimit:
    """Leaves out log lines of a phrase and GPU that come too often; how many is said once their minute is over."""

    def __init__(self, lines: int = 60, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines, self._window_s, self._clock = lines, window_s, clock
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}
        """When the minute of a phrase and GPU began, and how many lines came since."""
        self._next_look = clock() + window_s

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass a line on, or drop it. Raises: structlog.DropEvent."""
        phrase = str(event.get("event", ""))
        if phrase == _SUPPRESSED:
            return event
        key, now = (phrase, str(event.get("gpu", ""))), self._clock()
        with self._lock:
            over = self._end_windows(now) if now >= self._next_look or len(self._windows) >= _MOST_WINDOWS else []
            begun, count = self._windows.get(key, (now, 0))
            self._windows[key] = (begun, count + 1)
        for (what, gpu), left_out in over:
            log.warning(_SUPPRESSED, reason=what, count=left_out, **({"gpu": gpu} if gpu else {}))
        if count >= self._lines:
            raise structlog.DropEvent
        return event

    def _end_windows(self, now: float) -> list[tuple[tuple[str, str], int]]:
        """Forget the minutes that are over, all of them where there are too many; returns what each left out."""
        is_full = len(self._windows) >= _MOST_WINDOWS
        ended = {
            key: count for key, (begun, count) in self._windows.items() if is_full or now - begun >= self._window_s
        }
        for key in ended:
            del self._windows[key]
        self._next_look = min((begun for begun, _ in self._windows.values()), default=now) + self._window_s
        return [(key, count - self._lines) for key, count in ended.items() if count > self._lines]


_SUPPRESSED: Final = "log lines left out"
_MOST_WINDOWS: Final = 4096


def _standard_error(*_names: object) -> structlog.WriteLogger:
    """Make a logger on the standard error of now, which a test or a caller may have replaced."""
    return structlog.WriteLogger(sys.stderr)


def configure_default(level: int = logging.WARNING) -> None:
    """Log as a process does that never calls `configure`, such as a user of the library: warnings, standard error.

    structlog's own default writes every level to standard output, in the middle of what `-o json` prints.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_standard_error,
        cache_logger_on_first_use=False,
    )


if not structlog.is_configured():
    configure_default()


def configure(level: str, form: str) -> None:
    """Send events to standard error: console form on a terminal (or as asked), else one JSON object a line."""
    console = form in {"console", "plain"} or (form == "auto" and sys.stderr.isatty())
    # No local variables in tracebacks: they hold what requests, tokens and environments hold.
    plain = structlog.dev.plain_traceback
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=form != "plain", exception_formatter=plain)
        if console
        else structlog.processors.JSONRenderer()
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        LineLimit(),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    tail: list[Any] = [] if console else [structlog.processors.ExceptionRenderer(frames)]
    structlog.configure(
        processors=[*shared, *tail, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )

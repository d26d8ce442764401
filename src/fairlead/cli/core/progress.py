"""Shows progress on standard error: one line that is rewritten, on a terminal only.

Where standard error is not a terminal (a log, a pipe), a line is written when what is waited for changes and it has
already taken a second: short waits stay silent, long ones leave a readable trail.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Final, Self, TextIO

import click

from fairlead.cli.core import plaintext

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN: Final = "|/-\\"
IS_DUMB: Final = "fairlead.is_dumb"
"""Key of a command's context: its terminal can move no cursor."""
_QUIET_S: Final = 1.0


class Progress:
    """One wait."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, standard error by default."""
        self._stream = stream or sys.stderr
        context = click.get_current_context(silent=True)
        is_dumb = bool(context and context.meta.get(IS_DUMB))
        self._is_live = self._stream.isatty() and not is_dumb
        self._frames = _FRAMES if (self._stream.encoding or "").lower().startswith("utf") else _PLAIN
        self._started = time.monotonic()
        self._shown = ""
        self._width = 0
        self._tick = 0

    def show(self, text: str, *, live: str = "", short: str = "") -> None:
        """Say what is waited for now; saying it again only moves the spinner.

        Args:    live: what changes all the time, a countdown; left out where lines are written.
                 short: what to show where the terminal is too narrow for the text.
        """
        elapsed = time.monotonic() - self._started
        if self._is_live:
            frame = self._frames[self._tick % len(self._frames)]
            self._tick += 1
            text += live
            since = f" ({elapsed:.0f} s)" if elapsed >= _QUIET_S else ""
            if short and len(plaintext.cell(text)) + len(since) + 3 > _columns(self._stream):
                text, since = short, ""
            self._rewrite(f"{frame} {text}{since}")
        elif text != self._shown and elapsed >= _QUIET_S:
            plaintext.echo(f"{text} ({elapsed:.0f} s)", file=self._stream)
            self._shown = text

    def clear(self) -> None:
        """Take the line away; whatever is printed next starts on a clean one."""
        if self._is_live and self._width:
            self._rewrite("")
            self._width = 0

    def _rewrite(self, text: str) -> None:
        columns = max(20, _columns(self._stream))
        text = plaintext.cell(text)
        text = text if len(text) < columns else text[: columns - 2] + "…"
        self._stream.write(f"\r{text}{' ' * max(0, self._width - len(text))}\r{text}")
        self._stream.flush()
        self._width = len(text)

    def __enter__(self) -> Self:
        """Start waiting."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop waiting."""
        self.clear()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 80

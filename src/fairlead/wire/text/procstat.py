"""Reads /proc/PID/stat, one line of fields behind a name that a program gives itself.

The name stands in parentheses and may hold blanks and parentheses; what follows the last one does not.
Source: proc_pid_stat(5): field 2 is the name, field 3 the state, field 22 the start time.
"""

from __future__ import annotations

from typing import Final

STATE: Final = 0
PARENT: Final = 1
_STARTED: Final = 19


def fields(text: str) -> tuple[str, ...]:
    """Return the fields behind the name, the state first; none of a line that is not one."""
    return tuple(text.rpartition(")")[2].split())


def started(text: str) -> str:
    """Return when the process began, in clock ticks since boot as the kernel writes them; empty: it is not there."""
    found = fields(text)
    return found[_STARTED] if len(found) > _STARTED else ""

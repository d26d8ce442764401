"""Reads the last word of a container that ended: of the file it wrote, or of the end of its output.

Source: kubernetes pkg/kubelet/kuberuntime (getTerminationMessage): 4 KiB of a file, 2 KiB and 80 lines of output.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.engine.port import Engine
from fairlead.model.container.output import LogQuery

FALLBACK: Final = "FallbackToLogsOnError"
_FROM_FILE: Final = 4096
_FROM_OUTPUT, _LINES = 2048, 80


def read_end(path: Path) -> str:
    """Return the end of a file, as much as a status may have; empty where there is none."""
    with contextlib.suppress(OSError):
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(found).st_size
            return _text(os.pread(found, _FROM_FILE, max(0, size - _FROM_FILE)))
        finally:
            os.close(found)
    return ""


async def end_of_output(engine: Engine, name: str) -> str:
    """Return the last lines of a container's output, as much as a status may have."""
    kept = b""
    with contextlib.suppress(errors.FairleadError):
        async for data in engine.logs(name, LogQuery(tail=_LINES)):
            kept = (kept + data)[-_FROM_OUTPUT:]
    return _text(kept)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\0", "")

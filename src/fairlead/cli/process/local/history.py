"""Composes figures over time: the recorder of one machine, or the Prometheus that is asked instead."""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead import errors, settings, telemetry
from fairlead.serve.backend import port
from fairlead.serve.history.file import FILE, HistoryFile
from fairlead.serve.history.local import LocalHistory
from fairlead.serve.history.port import History
from fairlead.serve.history.recorder import Machine, Recorder

_MIB: Final = 1 << 20
_LEAST_MIB: Final = 4
_MOST_DAYS: Final = 400
_MOST_MIB: Final = 1 << 20


async def begin(config: settings.Settings, tasks: asyncio.TaskGroup, machine: Machine) -> History | port.Absent:
    """Return who answers questions about figures, and have them sampled.

    A file that cannot be opened is no reason not to serve GPUs: it is logged, and the refusal of questions says it.
    Raises: Invalid: a setting.
    """
    asked = config.history
    if not 0 <= asked.days <= _MOST_DAYS or not _LEAST_MIB <= asked.megabytes <= _MOST_MIB:
        message = f"history.days is {asked.days:g} and history.megabytes {asked.megabytes:g}"
        hint = f"days from 0 to {_MOST_DAYS}, megabytes from {_LEAST_MIB} to {_MOST_MIB}"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    if asked.prometheus:
        return of_prometheus(asked.prometheus)
    if not asked.days:
        return port.NO_HISTORY
    most_bytes = int(asked.megabytes * _MIB)
    try:
        file = await asyncio.to_thread(HistoryFile, config.state.folder / FILE, days=asked.days, most_bytes=most_bytes)
    except errors.Unavailable as error:
        telemetry.log.warning("history not kept", reason=error.reason, error=errors.sentence(error))
        return port.Absent(kind=errors.Unavailable, message=error.message, reason=error.reason, hint=error.hint or "")
    recorder = Recorder(machine, file)
    tasks.create_task(recorder.run(), name="history")
    return LocalHistory(recorder, scan=machine.scan, days=asked.days, most_bytes=most_bytes)


def of_prometheus(url: str) -> History:
    """Return who asks a Prometheus. Raises: Invalid (`HistoryURLInvalid`)."""
    from fairlead.serve.history import prometheus  # aiohttp is loaded where it is used

    return prometheus.PrometheusHistory(url)

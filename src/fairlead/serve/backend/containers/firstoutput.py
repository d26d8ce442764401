"""Finds when a container of a cluster wrote first: the time that its kubelet keeps before the first line of its log.

It is read when a person looks, by the account that may read these logs; no process follows them. What is known is
remembered; what is not there yet is asked for ever less often.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.sandbox import startphase
from fairlead.store.subresource import LogOptions, Logs
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.text import timestamp

_LONGEST_TIME: Final = 64
"""Bytes of an RFC 3339 time, with room."""
_DEADLINE_S: Final = 2.0
_MOST: Final = 4096
"""Containers that are remembered."""


@dataclass(slots=True)
class _Known:
    at: float | None
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFirstOutputs:
    """A `port.FirstOutputs` of what API servers pass on of containers' logs.

    A kubelet rotates a log (after 10 MiB by default) and passes on the newest file: of a container that filled one
    within its first hour, the oldest line of that file is taken for the first.
    """

    logs: Logs
    _known: OrderedDict[str, _Known] = field(default_factory=OrderedDict)

    async def first_output(self, pod: core.Pod) -> float | None:
        """See `port.FirstOutputs.first_output`; a log that cannot be read is logged, and counts as not known."""
        name = pod.spec.containers[0].name
        status = next((one for one in pod.status.container_statuses if one.name == name), None)
        started = _first_start(status) if status is not None else None
        if status is None or started is None:
            return None
        key, now = pod.metadata.uid, time.time()
        known = self._known.get(key)
        if known is not None and (known.at is not None or now - known.asked_at < max(1.0, (now - started) / 4)):
            return known.at
        at = await self._read(pod, LogOptions(timestamps=True, previous=status.restart_count > 0))
        if at is not None and at - started > startphase.LATEST_OUTPUT_S:
            at = None
        self._known[key] = _Known(at, now)
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return at

    async def _read(self, pod: core.Pod, options: LogOptions) -> float | None:
        head = b""
        try:
            async with (
                asyncio.timeout(_DEADLINE_S),
                aclosing(self.logs.logs(pod, pod.spec.containers[0].name, options)) as chunks,
            ):
                async for chunk in chunks:
                    head += chunk
                    if len(head) >= _LONGEST_TIME or b" " in head:
                        break
        except errors.FairleadError as error:
            telemetry.log.info("first output not read", pod=pod.metadata.name, reason=error.reason)
        except TimeoutError:
            telemetry.log.info("first output not read", pod=pod.metadata.name, reason="Timeout")
        return timestamp.parse(head[:_LONGEST_TIME].partition(b" ")[0].decode(errors="replace"))


def _first_start(status: core.ContainerStatus) -> float | None:
    """Return when a container's first run began; None: it has not, or its log is gone (two runs' logs are kept)."""
    if status.restart_count > 1:
        return None
    past = status.last_state.terminated if status.restart_count else status.state.terminated or status.state.running
    return meta.timestamp(past.started_at) if past is not None else None

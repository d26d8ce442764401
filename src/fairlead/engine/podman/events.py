"""Watches containers change, by `podman events`.

One child process streams events of containers. It is asked for everything since the moment the watch began, so nothing
falls between our start and its own; when it ends (a log rotated away, podman upgraded) another is started from the
moment of the last event, after a wait that doubles to 5 s. Podman's database may still lose an event (its log is a file
with a size limit), and a clock set back hides some: callers list again from time to time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from fairlead import command, errors, telemetry
from fairlead.backoff import Backoff
from fairlead.engine.podman import cli
from fairlead.engine.podman import json as podman_json

_CHANGES: Final = frozenset({"start", "died", "remove", "restart"})
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0


async def watch(podman: cli.Podman, *, since: float) -> AsyncGenerator[str, None]:
    """Yield the name of a container whenever it started, ended or was removed; never ends.

    Names may repeat without a change in between. Args: since: unix seconds from which no change may be missed.
    Raises: Unavailable: podman is not installed.
    """
    waits = Backoff(first_s=_FIRST_WAIT_S, last_s=_LONGEST_WAIT_S, jitter=0)
    while True:
        # Whole seconds, rounded down: podman's own granularity.
        argv = podman.argv("events", "--stream", "--format=json", "--filter=type=container", f"--since={int(since)}")
        async with command.opened(argv, env=podman.env) as running:
            async for event in _events(running):
                since = time.time()
                waits.reset()
                if event.status in _CHANGES and event.name:
                    yield event.name
        wait_s = waits.next()
        telemetry.log.warning("podman events ended", duration_s=wait_s)
        await asyncio.sleep(wait_s)


async def _events(running: command.Running) -> AsyncGenerator[podman_json.Event, None]:
    rest = b""
    while chunk := await running.output.read():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                try:
                    yield podman_json.decode(line, podman_json.Event, what="event")
                except errors.ProtocolError as error:
                    telemetry.log.warning("podman event unreadable", error=error.message)

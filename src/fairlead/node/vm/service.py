"""Runs a node's Service VM: starts it with every NVSwitch, watches it, and starts it again when it is over.

It is no part of the agent: NVLink of every tenant ends with this machine, and an agent ends at each of its updates. The
machine boots an image that is named with its digest, has no network and no disk, and is told the fabric's secret on a
port without a name. The agent beside the Manager says every few seconds on that port that it lives. A machine that says
nothing for long is ended and started again; so is one whose emulator ended, since its switches were reset with it.

What that means for tenants is the keeper's matter (`node.fabric.keeper`): it sees another machine behind the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable
from typing import Final

from fairlead import backoff, errors, telemetry
from fairlead.frozen import frozen
from fairlead.node.vm import emulator, options
from fairlead.wire.fairlead import servicevm

_AGAIN_S: Final = 2.0
_LONGEST_S: Final = 60.0
_STEADY_S: Final = 300.0
"""A machine that lived so long is started again without the wait that failures in a row add up to."""
_LOOK_S: Final = 0.5
"""Between two looks whether the machine is to be ended."""
_CIDS: Final = range(1 << 16, 1 << 31)
"""Context ids to choose from; small ones are people's."""
SWITCHES: Final = "FabricSwitchesUnready"


@frozen
class Options(options.Options):
    """How the machine is made and watched."""

    start_s: float
    """Longest time until its agent first says that it lives."""
    silence_s: float
    """Longest time between two signs of life."""
    port: int
    """Of vsock, on which the agent listens."""


@frozen
class Switches:
    """What the machine gets."""

    addresses: tuple[str, ...]
    problem: str = ""
    """Why they cannot be given to it; empty: they can."""
    with_iommufd: bool = False


class ServiceMachine:
    """One node's Service VM."""

    def __init__(self, options: Options, *, secret: Callable[[], bytes], switches: Callable[[], Switches]) -> None:
        """Start nothing yet. Args: secret: returns what the agents share; blocking.   switches: likewise."""
        self._options, self._secret, self._switches = options, secret, switches
        self.starts = 0
        """How many machines there have been."""
        self.is_alive = asyncio.Event()
        """Set while the machine's agent says that it lives."""

    async def run(self, stop: asyncio.Event) -> None:
        """Keep a machine running until `stop` is set, then end it.

        Raises: DeviceFault (`MachineStuck`): the last one keeps the switches.
        """
        waits = backoff.Backoff(first_s=_AGAIN_S, last_s=_LONGEST_S)
        clock = asyncio.get_running_loop().time
        while not stop.is_set():
            begun = clock()
            try:
                await self._run_one(stop)
            except errors.FairleadError as error:
                if error.reason == emulator.STUCK:
                    raise
                telemetry.log.error("service vm over", reason=error.reason, error=errors.sentence(error))
            finally:
                self.is_alive.clear()
            if clock() - begun > _STEADY_S:
                waits.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(waits.next()):
                    await stop.wait()

    async def _run_one(self, stop: asyncio.Event) -> None:
        """Run one machine to its end. Raises: FairleadError: how it ended, or why it did not start."""
        made = await asyncio.to_thread(options.read_image, self._options)
        secret = await asyncio.to_thread(self._secret)
        given = await asyncio.to_thread(self._switches)
        if given.problem:
            hint = "`fairlead vfio list` shows them; `fairlead vfio bind` binds them"
            raise errors.Unavailable(given.problem, reason=SWITCHES, hint=hint)
        hello = servicevm.Hello(secret=secret.hex(), port=self._options.port)
        self.starts += 1
        number = self.starts

        async def use(running: emulator.Running) -> None:
            await running.tell(servicevm.emit(hello))
            await self._watch(running, stop)

        describe = functools.partial(
            options.describe,
            self._options,
            made,
            name="fairlead-fabric",
            addresses=given.addresses,
            with_iommufd=given.with_iommufd,
            cid=secrets.choice(_CIDS),
        )
        telemetry.log.info("service vm starts", count=number, pci=",".join(given.addresses))
        await emulator.run_machine(lambda *ports: describe(ports), use, limit_s=self._options.start_s)

    async def _watch(self, running: emulator.Running, stop: asyncio.Event) -> None:
        """Read signs of life until `stop` is set. Raises: FairleadError: the machine is over, silent, or lies."""
        limit_s, last = self._options.start_s, -1
        while (line := await _next_line(running, limit_s, stop)) is not None:
            beat = servicevm.parse_beat(line).beat
            if beat <= last:
                message = f"the Service VM counts {beat} after {last}: its agent began again without its host"
                raise errors.ProtocolError(message, reason=servicevm.MALFORMED, hint="it is started again")
            last, limit_s = beat, self._options.silence_s
            if not self.is_alive.is_set():
                self.is_alive.set()
                telemetry.log.info("service vm lives", count=self.starts)


async def _next_line(running: emulator.Running, limit_s: float, stop: asyncio.Event) -> bytes | None:
    """Return what the guest says next; None: `stop` was set before. Raises: as `Running.read_report`."""
    clock = asyncio.get_running_loop().time
    until = clock() + limit_s
    while not stop.is_set():
        left_s = until - clock()
        try:
            return await running.read_report(min(_LOOK_S, left_s))
        except errors.Unavailable as error:
            if error.reason != emulator.SILENT:
                raise
            if left_s > _LOOK_S:
                continue
            message = f"the Service VM has said nothing for {limit_s:g} s: {error.message}"
            raise errors.Unavailable(message, reason=emulator.SILENT, hint=error.hint) from error
    return None

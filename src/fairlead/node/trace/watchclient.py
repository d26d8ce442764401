"""Starts the process that watches containers, sends it whom to follow, and reads what it reports.

It has no state that the agent does not have: when it ends, or says nothing for a while, `run` ends with an error, and
the part that runs it starts it again with every pod that is followed. Nothing here reads /proc.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, assert_never, cast

from fairlead import command, errors, pipe, telemetry
from fairlead.node.trace import watchmessage as wire
from fairlead.node.trace.containerwatch import FoundContainer, P
from fairlead.plan.sandbox.machinestart import MachineTimes

SILENT_S: Final = 30.0
"""Longest silence of the process, which sends `Alive` every 2 s."""
READ_S: Final = 30.0
_REMEMBERED: Final = 1024
"""Answers that are kept until the container they were for is seen; some never are."""


@dataclass(frozen=True, slots=True)
class Program:
    """How the process is started."""

    root: Path = Path("/")
    """Where it sees /proc and the cgroups."""
    log_level: str = "info"
    log_format: str = "auto"

    def argv(self) -> list[str]:
        """Return the argument list."""
        module = "fairlead.node.trace.watchprocess"
        return [sys.executable, "-I", "-m", module, str(self.root), self.log_level, self.log_format]


class WatchClient(Generic[P]):
    """Sees the containers of followed pods begin, in another process; see `containerwatch.ContainerWatch`."""

    def __init__(
        self,
        *,
        prepare: Callable[[str], Coroutine[Any, Any, P | None]],
        seen: Callable[[str, FoundContainer[P]], None],
        seen_machine: Callable[[str, MachineTimes], None] = lambda _uid, _times: None,
        program: Program,
    ) -> None:
        """Start nothing before `run`.

        Args: as `ContainerWatch`.   seen_machine: as `MachineWatch.seen`.   program: what is started.
        """
        self._prepare, self._seen, self._program = prepare, seen, program
        self._seen_machine = seen_machine
        self._followed: dict[str, bool] = {}
        """By uid: whether it is a virtual machine."""
        self._looking: set[str] = set()
        self._orders: asyncio.Queue[wire.Order] = asyncio.Queue()
        self._are_too_many = asyncio.Event()
        self._prepared: OrderedDict[int, P] = OrderedDict()
        self._numbers = itertools.count()
        self._reads: dict[int, tuple[wire.Read, asyncio.Future[wire.HasRead]]] = {}
        """What was asked and not answered yet, by number."""
        self.pid: int | None = None
        """Of the process, while there is one."""

    def follow(self, uid: str, *, is_machine: bool = False) -> None:
        """See this pod's containers from now on; those that are there already are seen late. Idempotent.

        Args: is_machine: they are in a virtual machine, whose start is seen in their place.
        """
        if uid not in self._followed:
            self._followed[uid] = is_machine
            self._order(_follow(uid, is_machine=is_machine))

    def forget(self, uid: str) -> None:
        """See no more of this pod."""
        self._followed.pop(uid, None)
        self._order(wire.Forget(uid))

    def is_looking(self, container_id: str) -> bool:
        """Return whether a container is being read back right now."""
        return container_id in self._looking

    async def read(
        self, container: str, pid: int | None, *, paths: tuple[str, ...], numbers: tuple[tuple[int, int], ...]
    ) -> wire.HasRead:
        """Read back a container that runs; a process that is only starting answers once it runs.

        Raises: Unavailable: the process does not answer.
        """
        number = next(self._numbers)
        future: asyncio.Future[wire.HasRead] = asyncio.get_running_loop().create_future()
        order = wire.Read(number=number, container=container, pid=pid, paths=paths, numbers=numbers)
        self._reads[number] = order, future
        self._order(order)
        try:
            async with asyncio.timeout(READ_S):
                return await future
        except TimeoutError as error:
            message = f"container {container} was not read back within {READ_S:g} s"
            raise errors.Unavailable(message, reason="ReadBackTimeout") from error
        finally:
            self._reads.pop(number, None)

    def _order(self, order: wire.Order) -> None:
        if self.pid is None:  # whom to follow and what to read is said anew at each start
            return
        if self._orders.qsize() < wire.MOST_WAITING:
            self._orders.put_nowait(order)
        else:
            self._are_too_many.set()

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Run the process for ever. Raises: Unavailable: it cannot be started, ended or is stuck; ProtocolError."""
        theirs, ours = os.pipe()
        orders = pipe.Pipe(ours)
        argv, env = self._program.argv(), command.base_env()
        try:
            async with command.opened(argv, env=env, stdin=theirs, stderr=command.OURS) as running:
                self._begin(running.process.pid)
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(self._write(orders), name="container watch: orders")
                    judging = tasks.create_task(self._end_if_stuck(), name="container watch: too many orders")
                    await self._listen(running, tasks, meter)
                    writing.cancel()
                    judging.cancel()
                code = await running.process.wait()
        finally:
            self.pid = None
            meter.heartbeat("container watch", None)
            os.close(theirs)
            orders.close()
            self._looking.clear()
        message = f"the process that watches containers ended with status {code}"
        raise errors.Unavailable(message, reason="ContainerWatchEnded", hint="its errors stand above this line")

    async def _end_if_stuck(self) -> None:
        await self._are_too_many.wait()
        message = f"the process that watches containers takes no orders: {wire.MOST_WAITING} wait for it"
        raise errors.Unavailable(message, reason="ContainerWatchStuck", hint="it is ended and started again")

    def _begin(self, pid: int) -> None:
        self.pid = pid
        self._are_too_many.clear()
        self._orders = asyncio.Queue()
        for uid, is_machine in self._followed.items():
            self._orders.put_nowait(_follow(uid, is_machine=is_machine))
        for order, _ in self._reads.values():
            self._orders.put_nowait(order)

    async def _write(self, orders: pipe.Pipe) -> None:
        while True:
            await orders.write(wire.line(await self._orders.get()))

    async def _listen(self, running: command.Running, tasks: asyncio.TaskGroup, meter: telemetry.Meter) -> None:
        lines = wire.Lines(wire.Report)
        meter.heartbeat("container watch", SILENT_S)
        while data := await running.output.read():
            for report in lines.feed(data):
                meter.heartbeat("container watch", SILENT_S)
                self._take(cast(wire.Report, report), tasks)

    def _take(self, report: wire.Report, tasks: asyncio.TaskGroup) -> None:
        match report:
            case wire.Alive():
                return
            case wire.Looking():
                (self._looking.discard if report.is_over else self._looking.add)(report.container)
            case wire.Prepare():
                tasks.create_task(self._answer(report), name=f"prepare {report.uid}")
            case wire.Seen():
                self._seen(report.uid, self._container(report))
            case wire.SeenMachine():
                self._seen_machine(report.uid, report.times)
            case wire.HasRead():
                _, future = self._reads.get(report.number, (None, None))
                if future is not None and not future.done():
                    future.set_result(report)
            case _:
                assert_never(report)

    async def _answer(self, asked: wire.Prepare) -> None:
        prepared = await self._prepare(asked.uid)
        if prepared is None:
            self._order(wire.Prepared(number=asked.number, is_ours=False))
            return
        self._prepared[asked.number] = prepared
        if len(self._prepared) > _REMEMBERED:
            self._prepared.popitem(last=False)
        self._order(wire.Prepared(number=asked.number, is_ours=True, paths=prepared.paths, numbers=prepared.numbers))

    def _container(self, seen: wire.Seen) -> FoundContainer[P]:
        return FoundContainer(
            id=seen.container,
            pid=seen.pid,
            began_at=seen.began_at,
            is_late=seen.is_late,
            prepared=self._prepared.pop(seen.number, None) if seen.number is not None else None,
            found=seen.found,
            read_at=seen.read_at,
            read_s=seen.read_s,
            unread=seen.unread,
        )


def _follow(uid: str, *, is_machine: bool) -> wire.Order:
    """Return the order by which a pod is followed: on the host a machine has no containers to be seen."""
    return wire.FollowMachine(uid) if is_machine else wire.Follow(uid)

"""Watches containers begin and reads them back, in a process beside the agent: `python -m …watchprocess`.

Looking for a container's first process and reading what the kernel enforces for it are hundreds of reads of /proc and
of cgroups within milliseconds. In the agent they would hold up the loop that answers Allocate, and one that hangs (an
overlay without its lower layer, a frozen cgroup) would hold it up for ever. So they have a process: orders come on
standard input, reports go to standard output (`watchmessage`), and it ends with its standard input, so with the agent.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Final, assert_never, cast

import msgspec

from fairlead import errors, pipe, telemetry
from fairlead.kernel import readback
from fairlead.node.trace import containerwatch, machinewatch
from fairlead.node.trace import watchmessage as wire
from fairlead.plan.sandbox.machinestart import MachineTimes

ALIVE_S: Final = 2.0


class _Wanted(msgspec.Struct, frozen=True):
    """What the agent answered to a `Prepare`."""

    number: int
    paths: tuple[str, ...]
    numbers: tuple[tuple[int, int], ...]


class _OrdersEnded(Exception):
    """The agent has ended, or wants this process to."""


class _Process:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._reports: asyncio.Queue[wire.Report] = asyncio.Queue(wire.MOST_WAITING)
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[_Wanted | None]] = {}
        self._watch = containerwatch.ContainerWatch[_Wanted](
            prepare=self._prepare, seen=self._seen, looking=self._looking, root=root
        )

        self._machines = machinewatch.MachineWatch(nodes=self._nodes, seen=self._seen_machine, root=root)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(), name="watch")
            tasks.create_task(self._write(), name="reports")
            tasks.create_task(self._say_alive(), name="alive")
            orders, lines = pipe.Pipe(0), wire.Lines(wire.Order)
            while data := await orders.read():
                for order in lines.feed(data):
                    self._obey(cast(wire.Order, order), tasks)
            raise _OrdersEnded

    async def _write(self) -> None:
        output = pipe.Pipe(1)
        while True:
            await output.write(wire.line(await self._reports.get()))

    async def _say_alive(self) -> None:
        while True:
            self._reports.put_nowait(wire.Alive())
            await asyncio.sleep(ALIVE_S)

    def _obey(self, order: wire.Order, tasks: asyncio.TaskGroup) -> None:
        match order:
            case wire.Follow():
                self._watch.follow(order.uid)
            case wire.FollowMachine():
                self._machines.follow(order.uid, tasks)
            case wire.Forget():
                self._watch.forget(order.uid)
                self._machines.forget(order.uid)
            case wire.Prepared():
                self._take_answer(order)
            case wire.Read():
                tasks.create_task(self._read(order), name=f"read {order.container}")
            case _:
                assert_never(order)

    def _take_answer(self, order: wire.Prepared) -> None:
        future = self._asked.pop(order.number, None)
        if future is not None and not future.done():
            wanted = _Wanted(number=order.number, paths=order.paths, numbers=order.numbers)
            future.set_result(wanted if order.is_ours else None)

    async def _prepare(self, uid: str) -> _Wanted | None:
        number = next(self._numbers)
        future: asyncio.Future[_Wanted | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._reports.put_nowait(wire.Prepare(number=number, uid=uid))
        try:
            return await future
        finally:
            self._asked.pop(number, None)

    async def _nodes(self, uid: str) -> tuple[str, ...]:
        wanted = await self._prepare(uid)
        return wanted.paths if wanted is not None else ()

    def _seen_machine(self, uid: str, times: MachineTimes) -> None:
        self._reports.put_nowait(wire.SeenMachine(uid, times))

    def _looking(self, container: str, is_over: bool) -> None:
        self._reports.put_nowait(wire.Looking(container=container, is_over=is_over))

    def _seen(self, uid: str, container: containerwatch.FoundContainer[_Wanted]) -> None:
        self._reports.put_nowait(
            wire.Seen(
                uid=uid,
                container=container.id,
                pid=container.pid,
                began_at=container.began_at,
                is_late=container.is_late,
                number=container.prepared.number if container.prepared is not None else None,
                found=container.found,
                read_at=container.read_at,
                read_s=container.read_s,
                unread=container.unread,
            )
        )

    async def _read(self, order: wire.Read) -> None:
        pid, found, duration_s = order.pid, None, 0.0
        if pid is None:
            pid = await asyncio.to_thread(containerwatch.find_process, order.container, self._root)
        if pid is not None:
            try:
                with telemetry.timed("isolation read", container=order.container) as timing:
                    found = await readback.read_back(pid, paths=order.paths, numbers=order.numbers, root=self._root)
                duration_s = timing.duration_s
            except errors.NotFound:
                found = None
        self._reports.put_nowait(wire.HasRead(number=order.number, pid=pid, found=found, duration_s=duration_s))


def main() -> None:
    """Run with the arguments: where /proc is, log level, log form."""
    root, level, form = sys.argv[1:]
    telemetry.configure(level, form)
    try:
        asyncio.run(_Process(Path(root)).run())
    except* _OrdersEnded:
        pass
    except* asyncio.QueueFull:
        telemetry.log.error("container watch ends: the agent takes no reports", count=wire.MOST_WAITING)


if __name__ == "__main__":
    main()

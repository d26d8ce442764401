"""A live service in a thread of its own, and the command line in this process, pointed at it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click.testing

from fairlead.cli import main
from fairlead.serve import server
from tests.unit.serve.world import World, application


@dataclass(slots=True)
class Service:
    """A live service in a thread of its own, and the command line pointed at it."""

    world: World
    loop: asyncio.AbstractEventLoop
    env: dict[str, str]
    server: _Server

    def stop(self) -> None:
        """Stop the server, as SIGTERM does; the machine goes on."""
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(60)

    def start(self) -> None:
        """Start the server again."""
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result(60)

    def fairlead(self, *argv: str, stdin: str | bytes | None = None) -> click.testing.Result:
        """Run one command line in this process, on the real socket."""
        return fairlead(*argv, env=self.env, stdin=stdin)


class _Server:
    """The server of one world, which can be started more than once."""

    def __init__(self, world: World, tasks: asyncio.TaskGroup) -> None:
        self._world, self._tasks = world, tasks
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        listening = asyncio.Event()
        path = self._world.services.info.socket
        served = server.serve_unix(application(self._world.services), path, ready=listening)
        self._task = self._tasks.create_task(served)
        await listening.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def fairlead(*argv: str, env: dict[str, str] | None = None, stdin: str | bytes | None = None) -> click.testing.Result:
    """Run one command line in this process, errors and exit codes as the program gives them."""

    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
    @click.pass_context
    def program(ctx: click.Context) -> None:
        ctx.exit(main.invoke(list(argv), env=env or {}))

    return click.testing.CliRunner().invoke(program, [], input=stdin)


@contextlib.contextmanager
def serving(folder: Path, prepare: Callable[[World], None] = lambda _world: None) -> Iterator[Service]:
    """Serve for the length of a block. Args: prepare: changes the machine before it is served."""
    ready = threading.Event()
    holder: list[Service] = []
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        world = World(folder)
        prepare(world)
        path = world.services.info.socket
        ending, loop = asyncio.Event(), asyncio.get_running_loop()
        async with world.running(), asyncio.TaskGroup() as group:
            served = _Server(world, group)
            await served.start()
            holder.append(Service(world, loop, {"FAIRLEAD_URL": f"http+unix://{path}"}, served))
            stop.append(lambda: loop.call_soon_threadsafe(ending.set))
            ready.set()
            await ending.wait()
            await served.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield holder[0]
    finally:
        for one in stop:
            one()
        thread.join(60)
    assert not thread.is_alive()

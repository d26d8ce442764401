"""Implements pods' subresources on one machine, over its engine: output of each attempt, sessions, ports.

The kubelet labels every engine container with its pod, its container's name and the number of the attempt; a restart is
a new engine container.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.engine.access import Access, Input
from fairlead.engine.port import ContainerPhase, ContainerState, Engine
from fairlead.kernel.network import netns
from fairlead.model.container import isolation
from fairlead.model.container.output import LogQuery
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions
from fairlead.serve.backend.containers import pods
from fairlead.serve.closing import closing
from fairlead.store import subresource
from fairlead.wire.kubernetes import core, names
from fairlead.wire.text import timestamp

Dial = Callable[[ContainerState, int], Awaitable[subresource.Connection]]
"""Connects to a port on a running container's loopback."""
Reach = Callable[[str, int], Awaitable[subresource.Connection]]
"""Connects to a port of an address from the host's network."""


_LONGEST_TIME: Final = 64
"""Bytes that the time before a line may have."""


async def list_attempts(engine: Engine, pod: core.Pod, name: str) -> list[ContainerState]:
    """Return the engine containers of one container, the newest attempt last."""
    found = await engine.list_containers({names.POD_UID: pod.metadata.uid, names.CONTAINER_NAME: name})
    return sorted(found, key=_attempt)


def _attempt(state: ContainerState) -> int:
    text = state.labels.get(names.ATTEMPT, "0")
    return int(text) if text.isdecimal() else 0


async def find_running(engine: Engine, pod: core.Pod, name: str) -> ContainerState:
    """Return the running engine container. Raises: Conflict (`ContainerNotRunning`), saying where the pod stands."""
    for state in reversed(await list_attempts(engine, pod, name)):
        if state.phase is ContainerPhase.RUNNING:
            return state
    raise pods.not_running(pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLogs:
    """A `subresource.Logs` over an engine."""

    engine: Engine

    async def logs(self, pod: core.Pod, container: str, options: subresource.LogOptions) -> AsyncGenerator[bytes, None]:
        """See `subresource.Logs.logs`."""
        ran = [item for item in await list_attempts(self.engine, pod, container) if _has_run(item)]
        place = -2 if options.previous else -1
        if len(ran) < -place:
            raise pods.not_started(pod)
        async with closing(self.engine.logs(ran[place].name, options)) as chunks:
            async for chunk in chunks:
                yield chunk


def _has_run(state: ContainerState) -> bool:
    return state.phase is not ContainerPhase.CREATED


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStreams:
    """A `subresource.Streams` over an engine."""

    engine: Engine
    access: Access
    dial: Dial
    reach: Reach = netns.reach

    async def exec(
        self,
        pod: core.Pod,
        container: str,
        argv: tuple[str, ...],
        *,
        tty: bool,
        stdin: bool,
        options: ProcessOptions = AS_THE_CONTAINER,
    ) -> subresource.Session:
        """See `subresource.Streams.exec`."""
        state = await find_running(self.engine, pod, container)
        return await self.engine.exec(state.name, argv, tty=tty, stdin=stdin, options=options)

    async def attach(self, pod: core.Pod, container: str, *, stdin: bool, replay: bool = False) -> subresource.Session:
        """See `subresource.Streams.attach`."""
        state = await (self._newest(pod, container) if replay else find_running(self.engine, pod, container))
        feed = await self._input(state) if stdin else None
        return _Attached(self.engine, state.name, None if replay else time.time(), feed)

    async def _newest(self, pod: core.Pod, container: str) -> ContainerState:
        ran = [one for one in await list_attempts(self.engine, pod, container) if _has_run(one)]
        if not ran:
            raise pods.not_running(pod)
        return ran[-1]

    async def _input(self, state: ContainerState) -> Input | None:
        """Return the input of a process; None: it has ended. Raises: Conflict (`StdinClosed`)."""
        if state.phase is ContainerPhase.EXITED:
            return None
        try:
            return await self.access.open_input(state.name)
        except errors.Conflict as error:
            if error.reason != "ContainerNotRunning":
                raise
            return None

    async def port_forward(self, pod: core.Pod, port: int) -> subresource.Connection:
        """See `subresource.Streams.port_forward`: the containers of a pod share one network namespace.

        One on gVisor has a stack of its own there, which answers for the pod's address and has its own loopback.
        """
        is_reached = isolation.of_class(pod.spec.runtime_class_name) == isolation.GVISOR
        for item in pod.spec.containers:
            for state in reversed(await list_attempts(self.engine, pod, item.name)):
                if state.phase is ContainerPhase.RUNNING:
                    return await (self.reach(pod.status.pod_ip, port) if is_reached else self.dial(state, port))
        raise pods.not_running(pod)


class _Attached:
    """A `subresource.Session` that reads what a container's first process writes from a moment on.

    Two simpler ways fail: an engine asked for the last 0 lines begins once it is ready and loses what comes before
    that, and skipping the count of lines written so far goes wrong where the log is rotated meanwhile.
    """

    def __init__(self, engine: Engine, name: str, since: float | None, feed: Input | None) -> None:
        self._engine = engine
        self._name = name
        self._feed = feed
        self._output = engine.logs(name, LogQuery(follow=True, holds_back=True, since=since))

    async def read(self) -> bytes:
        """See `subresource.Session.read`."""
        return await anext(self._output, b"")

    async def write(self, data: bytes) -> None:
        """See `subresource.Session.write`."""
        if self._feed is not None:
            await self._feed.write(data)

    async def resize(self, rows: int, columns: int) -> None:
        """See `subresource.Session.resize`."""
        if self._feed is not None:
            await self._feed.resize(rows, columns)

    async def wait(self) -> int:
        """See `subresource.Session.wait`."""
        async with closing(self._engine.watch_changes()) as changes:
            while True:
                found = [one for one in await self._engine.list_containers({}) if one.name == self._name]
                if not found:
                    message = f'container "{self._name}" was removed before its exit code was read'
                    raise errors.Unavailable(message, reason="ContainerGone", hint="`fairlead trace` has it")
                if found[0].exit_code is not None and found[0].phase is ContainerPhase.EXITED:
                    return found[0].exit_code
                await anext(changes)

    async def close(self) -> None:
        """See `subresource.Session.close`; the container goes on."""
        if self._feed is not None:
            await self._feed.close()
        await self._output.aclose()


async def first_output(engine: Engine, pod: core.Pod) -> float | None:
    """Return when the first process of a pod's first container wrote first, Unix seconds; None: it has not.

    Of a container that was started again it is the oldest run that is kept. Raises: as `Engine.logs`.
    """
    ran = [one for one in await list_attempts(engine, pod, pod.spec.containers[0].name) if _has_run(one)]
    if not ran:
        return None
    async with closing(engine.logs(ran[0].name, LogQuery(timestamps=True))) as chunks:
        async for chunk in chunks:
            if found := timestamp.parse(chunk[:_LONGEST_TIME].decode(errors="replace").partition(" ")[0]):
                return found
    return None

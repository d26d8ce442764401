"""Implements `engine.port` in memory: containers and images that no kernel knows.

Held to the same contract suite as podman: two-step start, unique names, exit codes, logs that can be followed, exec
sessions, changes, adoption by labels. What a container runs is interpreted by `engine.fake.shell`, with real time and
real output. CDI devices resolve if they are in `devices`, which its owner fills. Pids are invented and name no process:
nothing below this port may be read back from them.

Everything lives on one event loop; the tasks of running containers belong to the block `async with engine:`, so that no
container outlives its engine (as no podman container does, this one has no daemon behind it).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from fairlead import errors, files
from fairlead.engine import access, checks, port
from fairlead.engine import source as image_source
from fairlead.engine.fake import access as fake_access
from fairlead.engine.fake import build as fake_build
from fairlead.engine.fake import exec as fake_exec
from fairlead.engine.fake import networks, shell
from fairlead.model.container.output import ErrorOutput, LogQuery
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions
from fairlead.wire.oci import registryauth
from fairlead.wire.text import timestamp

_NAME: Final = "fake"
_FIRST_PID: Final = 4_194_305
"""Above the kernel's largest pid (PID_MAX_LIMIT, 2^22): never that of a real process."""


@dataclass(slots=True)
class _FakeImage:
    image: port.Image
    command: tuple[str, ...]
    env: dict[str, str]


@dataclass(slots=True)
class _Container:
    spec: port.ContainerSpec
    image_env: dict[str, str]
    argv: tuple[str, ...]
    state: port.ContainerState
    log: list[tuple[float, bytes]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each line of output and at each change of state; followers clear it."""
    exit_code: int = shell.KILLED
    """With which it ends if its task is cancelled."""
    process: shell.Process | None = None
    feed: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    """What its standard input still has to give."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Tars by the folder they were unpacked in."""
    sessions: list[fake_exec.FakeExec] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


def _unknown_image(name: str, act: str) -> errors.NotFound:
    message = f'cannot {act} image "{name}": image not known'
    return errors.NotFound(message, reason="ImageNotFound", hint="build or import it (fairlead image)")


async def _nothing() -> bytes:
    return b""


def _write(container: _Container, data: bytes) -> None:
    container.log.append((time.time(), data))
    container.news.set()


class FakeEngine(networks.FakeNetworks):
    """`port.Engine`, `port.Networks` and `port.Images` in memory; enter it as a block before a container is started."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()
        """Qualified CDI names that resolve."""
        self.reachable: dict[str, tuple[str, ...]] = {}
        """Images that `pull` finds: name to command."""
        self.private: dict[str, registryauth.Login] = {}
        """Login that `pull` needs, by name of the image."""
        self._images: dict[str, _FakeImage] = {}
        self._containers: dict[str, _Container] = {}
        self._watchers: set[asyncio.Queue[str]] = set()
        self._pids = itertools.count(_FIRST_PID)
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        """Open the block that running containers belong to."""
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what still runs."""
        for container in self._containers.values():
            if container.task is not None:
                container.task.cancel()
        await self._group.__aexit__(kind, error, trace)

    async def create(self, spec: port.ContainerSpec) -> port.ContainerState:
        """See `port.Engine.create`."""
        checks.check_name(spec.name)
        subject = f'cannot create container "{spec.name}"'
        image = self._find(spec.image)
        if image is None:
            message = f"{subject}: {spec.image}: image not known"
            raise errors.NotFound(message, reason="ImageNotFound", hint="build or import it (fairlead image)")
        if spec.name in self._containers:
            message = f"{subject}: the name is already in use"
            raise errors.Conflict(message, reason="ContainerExists")
        if spec.network_name is not None and spec.network_name not in self.networks:
            message = f"{subject}: network {spec.network_name} not found"
            raise errors.NotFound(message, reason="NetworkNotFound")
        if unresolved := [name for name in spec.cdi_devices if name not in self.devices]:
            message = f"{subject}: unresolvable CDI devices {', '.join(unresolved)}"
            raise errors.Invalid(message, reason="CDIUnresolvable", hint="is the CDI spec where engines look?")
        argv = (*spec.command, *spec.args) if spec.command or spec.args else image.command
        if not argv or not shell.is_known(argv):
            message = f'cannot start container "{spec.name}": executable file not found: "{" ".join(argv[:1])}"'
            raise errors.Invalid(message, reason="StartFailed", hint="is the command in the image?", exit_code=127)
        state = port.ContainerState(
            engine=_NAME,
            id=secrets.token_hex(32),
            name=spec.name,
            phase=port.ContainerPhase.CREATED,
            labels=dict(spec.labels),
            image=spec.image,
            pid=next(self._pids),
        )
        self._containers[spec.name] = _Container(spec=spec, image_env=image.env, argv=argv, state=state)
        return state

    async def start(self, name: str) -> None:
        """See `port.Engine.start`."""
        container = self._known(name)
        if container.state.phase is not port.ContainerPhase.CREATED:
            return
        spec = container.spec
        container.process = shell.Process(
            emit=lambda data: _write(container, data),
            fail=lambda data: _write(container, data if spec.tty else ErrorOutput(data)),
            read=container.feed.get if spec.stdin else _nothing,
            env={**container.image_env, **spec.env, **spec.secret_env},
            hostname=spec.hostname or container.state.id[:12],
            user=spec.user or shell.ROOT,
            workdir=spec.working_dir or "/",
            memory_limit_bytes=spec.memory_limit_bytes,
        )
        container.state = replace(container.state, phase=port.ContainerPhase.RUNNING, started_at=time.time())
        container.task = self._group.create_task(self._live(container, container.process))
        self._tell(name)

    async def _live(self, container: _Container, process: shell.Process) -> None:
        code: int | None = None
        oom_killed = False
        try:
            code = await shell.run(process, container.argv)
        except shell.Killed:
            oom_killed = True
        finally:
            for session in container.sessions:
                await session.close()
            self._end(container, code=container.exit_code if code is None else code, oom_killed=oom_killed)

    def _end(self, container: _Container, *, code: int, oom_killed: bool = False) -> None:
        container.state = replace(
            container.state,
            phase=port.ContainerPhase.EXITED,
            pid=None,
            exit_code=code,
            oom_killed=oom_killed,
            finished_at=time.time(),
        )
        container.news.set()
        self._tell(container.spec.name)

    async def stop(self, name: str, *, grace_s: float) -> None:
        """See `port.Engine.stop`."""
        container = self._containers.get(name)
        if container is None or container.state.phase is port.ContainerPhase.EXITED:
            return
        if container.task is None:  # held: there is no process to signal
            self._end(container, code=shell.KILLED)
            return
        if container.process is not None and container.process.term_exit is not None:
            container.exit_code = container.process.term_exit
        else:
            await asyncio.wait([container.task], timeout=grace_s)
        container.task.cancel()
        await asyncio.wait([container.task])

    async def remove(self, name: str) -> None:
        """See `port.Engine.remove`."""
        every = [one.spec for one in self._containers.values()]
        if any(name in {one.network_of, one.processes_of, one.ipc_of} for one in every):
            message = f'cannot remove container "{name}": others join its namespaces'
            raise errors.Conflict(message, reason="ContainerInUse", hint="remove those first")
        await self.stop(name, grace_s=0)
        if self._containers.pop(name, None) is not None:
            self._tell(name)

    def networks_in_use(self) -> Iterator[str]:
        """Yield the name of each container's network."""
        return (one.spec.network_name for one in self._containers.values() if one.spec.network_name is not None)

    async def list_containers(self, labels: Mapping[str, str]) -> tuple[port.ContainerState, ...]:
        """See `port.Engine.list_containers`."""
        return tuple(
            container.state
            for container in self._containers.values()
            if all(
                key in container.state.labels and value in ("", container.state.labels[key])
                for key, value in labels.items()
            )
        )

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Self]:
        """See `machine.MachineEngine.served`; there is one way."""
        yield self

    async def find_broken(self) -> tuple[str, ...]:
        """See `machine.MachineEngine.find_broken`; this listing cannot break."""
        return ()

    def watch_changes(self) -> AsyncGenerator[str, None]:
        """See `port.Engine.watch_changes`; nothing after this call is missed."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._watchers.add(queue)
        return self._watch(queue)

    async def _watch(self, queue: asyncio.Queue[str]) -> AsyncGenerator[str, None]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def logs(self, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
        """See `port.Engine.logs`; a program here never writes faster than is read."""
        container = self._known(name)
        index = 0 if query.tail is None else max(0, len(container.log) - query.tail)
        while True:
            for moment, line in container.log[index:]:
                index += 1
                if (query.since or 0) <= moment <= (query.until or moment):
                    stamped = (f"{timestamp.emit(moment)} ".encode() if query.timestamps else b"") + line
                    yield ErrorOutput(stamped) if isinstance(line, ErrorOutput) else stamped
            if index < len(container.log):
                continue
            if not query.follow or container.state.phase is port.ContainerPhase.EXITED:
                return
            container.news.clear()
            await container.news.wait()

    async def exec(
        self, name: str, argv: tuple[str, ...], *, tty: bool, stdin: bool, options: ProcessOptions = AS_THE_CONTAINER
    ) -> fake_exec.FakeExec:
        """See `port.Engine.exec`."""
        container = self._known(name)
        if container.state.phase is not port.ContainerPhase.RUNNING or container.process is None:
            message = f'container "{name}" is {container.state.phase.value}, not running'
            raise errors.Conflict(message, reason="ContainerNotRunning", hint="exec needs a running container")
        process = replace(
            container.process,
            env={**container.process.env, **options.env},
            user=options.user or container.process.user,
            workdir=options.workdir or container.process.workdir,
        )
        session = fake_exec.FakeExec(process, tty=tty, stdin=stdin)
        session.task = self._group.create_task(session.live(argv))
        container.sessions.append(session)
        return session

    def _process(self, name: str) -> shell.Process:
        """Return a running container's process. Raises: NotFound; Conflict (`ContainerNotRunning`)."""
        container = self._known(name)
        if container.state.phase is not port.ContainerPhase.RUNNING or container.process is None:
            message = f'container "{name}" is {container.state.phase.value}, not running'
            raise errors.Conflict(message, reason="ContainerNotRunning", hint="it takes a running container")
        return container.process

    async def open_input(self, name: str) -> fake_access.FakeInput:
        """See `access.Access.open_input`."""
        process, container = self._process(name), self._known(name)
        if not container.spec.stdin:
            raise fake_access.stdin_closed(name)
        return fake_access.FakeInput(container.feed, process, has_terminal=container.spec.tty)

    async def signal(self, name: str, number: int) -> None:
        """See `access.Access.signal`; a first process is deaf to all but SIGKILL and a SIGTERM it has a trap for."""
        process, container = self._process(name), self._known(name)
        if number == signal.SIGKILL or (number == signal.SIGTERM and process.term_exit is not None):
            container.exit_code = shell.KILLED if number == signal.SIGKILL else process.term_exit or 0
            if container.task is not None:
                container.task.cancel()

    async def list_processes(self, name: str) -> tuple[tuple[str, ...], ...]:
        """See `access.Access.list_processes`."""
        self._process(name)
        return (fake_access.TITLES, ("root", "1", "0", "0.000", "0s", "?", "0s", " ".join(self._known(name).argv)))

    async def usage(self, name: str) -> access.Usage:
        """See `access.Access.usage`."""
        return fake_access.usage(self._process(name), self._known(name).state.started_at)

    def read_counters(self, state: port.ContainerState) -> access.Usage | None:
        """See `access.Access.read_counters`."""
        try:
            return fake_access.usage(self._process(state.name), state.started_at)
        except (errors.Conflict, errors.NotFound):
            return None

    async def sftp(self, name: str) -> fake_access.FakeCopy:
        """See `access.Access.sftp`: a container of this engine has no folders that could be listed."""
        self._process(name)
        message = f'container "{name}" is simulated and has no files that SFTP could serve'
        raise errors.Unavailable(message, reason="SFTPNotServed", hint="`fairlead cp` copies into it and out of it")

    async def pack(self, name: str, path: str) -> fake_access.FakeCopy:
        """See `access.Access.pack`; a folder that a tar was unpacked in gives the tar back."""
        files = self._known(name).files
        missing = "" if path in files else f'"{path}" could not be found on container {name}: no such file'
        return fake_access.FakeCopy(files.get(path, b""), lambda _data: None, missing=missing)

    async def unpack(self, name: str, path: str) -> fake_access.FakeCopy:
        """See `access.Access.unpack`."""
        files = self._known(name).files
        return fake_access.FakeCopy(None, lambda data: files.__setitem__(path, data))

    async def dial(self, state: port.ContainerState, number: int) -> fake_exec.FakeConnection:
        """Connect to a port of a running container. Raises: Unavailable (`PortRefused`)."""
        process = self._known(state.name).process
        if process is None or number not in process.ports:
            message = f"no process answers on port {number} in the container: Connection refused"
            raise errors.Unavailable(message, reason="PortRefused", hint="does its process listen there?")
        return fake_exec.FakeConnection()

    def _known(self, name: str) -> _Container:
        if name not in self._containers:
            message = f'no container with name "{name}"'
            raise errors.NotFound(message, reason="ContainerNotFound")
        return self._containers[name]

    def _tell(self, name: str) -> None:
        for queue in self._watchers:
            queue.put_nowait(name)

    async def info(self) -> port.EngineInfo:
        """See `port.Images.info`."""
        return port.EngineInfo(name=_NAME, version="1", runtime="fake", cdi_ceiling="1.1.0", cgroup_version=2)

    async def list_images(self) -> tuple[port.Image, ...]:
        """See `port.Images.list_images`."""
        return tuple(kept.image for kept in self._images.values())

    async def exists(self, name: str) -> bool:
        """See `port.Images.exists`."""
        return self._find(name) is not None

    async def environment(self, name: str) -> Mapping[str, str]:
        """See `port.Images.environment`."""
        found = self._find(name)
        if found is None:
            message = f'cannot look into image "{name}": image not known'
            raise errors.NotFound(message, reason="ImageNotFound", hint="build or import it (fairlead image)")
        return found.env

    async def identity(self, name: str) -> str | None:
        """See `port.IdentifiedImages.identity`."""
        found = self._find(name)
        return found.image.id if found else None

    async def pull(self, name: str, *, authfile: Path | None = None) -> None:
        """See `port.Images.pull`; an image of `private` comes only to who has one of its logins."""
        wanted = self.private.get(name)
        given = registryauth.parse(await asyncio.to_thread(authfile.read_bytes)) if authfile else {}
        if wanted is not None and wanted not in given.values():
            message = f'cannot pull image "{name}": unauthorized: authentication required'
            raise errors.NotFound(message, reason="ImageNotFound", hint="`fairlead tenancy login` gives credentials")
        if name not in self.reachable:
            message = f'cannot pull image "{name}": manifest unknown'
            raise errors.NotFound(message, reason="ImageNotFound", hint="is its name right?")
        self.add_image(name, command=self.reachable[name])

    async def import_root(self, source: Path, name: str, *, command: tuple[str, ...] = ()) -> port.Image:
        """See `port.Images.import_root`; the content is measured, not kept."""
        checks.check_image(name)
        await asyncio.to_thread(image_source.is_folder, source)
        size_bytes = await asyncio.to_thread(fake_exec.source_size, source)
        return self.add_image(name, command=command, size_bytes=size_bytes)

    async def build(self, context: Path, name: str, recipe: port.Recipe = port.PLAIN) -> AsyncGenerator[bytes, None]:
        """See `port.Images.build`; knows FROM, ARG, ENV and CMD, passes over the rest."""
        checks.check_image(name)
        image_source.check_recipe(recipe)
        file = recipe.containerfile or context / "Containerfile"
        await asyncio.to_thread(image_source.check_containerfile, context, file)
        try:
            text = (await asyncio.to_thread(files.read_bounded, file)).decode(errors="replace")
        except OSError as error:
            message = f'cannot build image "{name}" from {context}: {file}: {error.strerror}'
            raise errors.Invalid(message, reason="BuildFailed", hint="is the path right?") from error
        lines, known = fake_build.stage(text, recipe.target), dict[str, str]()
        if lines is None:
            message = f'cannot build image "{name}" from {context}: the target "{recipe.target}" is not there'
            raise errors.Invalid(message, reason="BuildFailed", hint="the output says at which step")
        command: tuple[str, ...] = ()
        env: dict[str, str] = {}
        for line in lines:
            yield f"STEP: {line}\n".encode()
            instruction, _, rest = line.partition(" ")
            if instruction == "FROM":
                source = rest.split()[0]
                base = self._find(source)
                if base is None:
                    message = f'cannot build image "{name}" from {context}: {source}: image not known'
                    raise errors.Invalid(message, reason="BuildFailed", hint="the output says at which step")
                command, env = base.command, dict(base.env)
            elif instruction == "ARG":
                key, _, value = rest.strip().partition("=")
                known[key] = recipe.args.get(key, value)
            elif instruction == "ENV":
                key, _, value = rest.strip().partition("=")
                env[key] = fake_build.expanded(value.strip('"'), known)
            elif instruction == "CMD":
                command = tuple(msgspec.json.decode(rest, type=list[str]))
        self.add_image(name, command=command, env=env)

    async def remove_image(self, name: str) -> None:
        """See `port.Images.remove_image`."""
        found = self._find(name)
        if found is None:
            return
        if any(self._find(container.spec.image) is found for container in self._containers.values()):
            message = f'cannot remove image "{name}": it is in use by a container'
            raise errors.Conflict(message, reason="ImageInUse", hint="remove the containers made from it")
        del self._images[found.image.names[0]]

    async def tag(self, name: str, new: str) -> None:
        """See `port.ImageStore.tag`."""
        found = self._find(name)
        if found is None:
            raise _unknown_image(name, "tag")
        full = fake_exec.full_name(new)
        self._images[full] = replace(found, image=replace(found.image, names=(full,)))

    async def pull_lines(self, name: str) -> AsyncGenerator[bytes, None]:
        """See `port.ImageStore.pull_lines`."""
        yield f"Trying to pull {name}...\n".encode()
        await self.pull(name)

    async def save(self, names: tuple[str, ...]) -> fake_access.FakeCopy:
        """See `port.ImageStore.save`; the archive of the fake is a line a name."""
        for name in names:
            if self._find(name) is None:
                raise _unknown_image(name, "save")
        return fake_access.FakeCopy("\n".join(names).encode(), lambda _data: None)

    async def load(self) -> fake_access.FakeCopy:
        """See `port.ImageStore.load`."""

        def keep(data: bytes) -> None:
            for name in data.decode().split():
                self.add_image(name)

        return fake_access.FakeCopy(None, keep)

    async def prune_images(self, *, every: bool) -> tuple[str, ...]:
        """See `port.ImageStore.prune_images`; all images here have a name."""
        used = [self._find(container.spec.image) for container in self._containers.values()]
        idle = [name for name, kept in self._images.items() if every and not any(kept is one for one in used)]
        return tuple(self._images.pop(name).image.id for name in idle)

    def add_image(
        self, name: str, *, command: tuple[str, ...] = (), size_bytes: int = 0, env: Mapping[str, str] | None = None
    ) -> port.Image:
        """Put an image into the store, in place of another of that name."""
        full = fake_exec.full_name(name)
        image = port.Image(id=secrets.token_hex(32), names=(full,), size_bytes=size_bytes, created_at=time.time())
        self._images[full] = _FakeImage(image, command, dict(env or {}))
        return image

    def _find(self, name: str) -> _FakeImage | None:
        by_id = (kept for kept in self._images.values() if kept.image.id == name)
        return self._images.get(fake_exec.full_name(name)) or next(by_id, None)

"""Implements `engine.machine.MachineEngine` with podman.

`create` is podman's create and init: podman's database first, then the OCI runtime's create, which leaves the process
held before its first instruction with namespaces, mounts and device rules in force. `start` lets it go. A death of ours
in between leaves a container that `list_containers` shows as created without a pid; `start` finishes it. All three are
asked of podman's service (`service`) where that answers, and done by command where it does not.

Nothing is remembered but what speeds things up: all state is podman's and is read back by name and labels, so that a
restart of ours adopts what runs. Podman's messages become our errors in `engine.podman.errors`; this machine's oddities
are found in `engine.podman.host`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fairlead import command, errors, settings, telemetry
from fairlead.engine import checks, port
from fairlead.engine.podman import args, events, images, imagestore, layer, leftover, listing, networks, startrecord
from fairlead.engine.podman import errors as podman_errors
from fairlead.engine.podman import host as podman_host
from fairlead.engine.podman import json as podman_json
from fairlead.engine.podman.access import access, attach
from fairlead.engine.podman.service import request, service
from fairlead.model.container import sandboxfile

_UNKNOWN: Final = frozenset({"created", "configured"})
"""Podman's words for containers that its database does not have initialised, whatever the OCI runtime has."""
_INITIALISED: Final = "initialized"
_UNSTARTED: Final = _UNKNOWN | {_INITIALISED}
"""Podman's words for containers that never ran."""
_CLEANUP_S: Final = 20.0
"""What conmon's clean-up after an ended container may take."""
_POLL_S: Final = 0.1
_MARGIN_S: Final = 60.0
"""What podman may take to stop a container over the grace it was given."""


@dataclass(frozen=True, slots=True)
class _Brief:
    """What an inspect was asked for."""

    status: str
    """Podman's own word."""
    pid: int
    id: str


@contextlib.contextmanager
def _secret_env(spec: port.ContainerSpec) -> Iterator[int | None]:
    """Give podman's standard input: a container's secret variables, in memory alone; None: it has none."""
    if not spec.secret_env:
        yield None
        return
    handle = os.memfd_create("env", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(args.env_lines(spec.secret_env))
        yield handle
    finally:
        os.close(handle)


class PodmanEngine(access.PodmanAccess, imagestore.PodmanImageStore, images.PodmanImages, networks.PodmanNetworks):
    """`machine.MachineEngine` over podman."""

    def __init__(self, group: settings.EngineSettings, *, root: Path = Path("/")) -> None:
        super().__init__(group, root=root)
        self.service: service.Service | None = None
        """What starts containers faster than commands; None outside `served`."""
        self._log_max_mib = group.log_max_mib
        # Created by us and not yet started: `start` need not ask podman first. Lost on a restart, and then it asks.
        self._held: dict[str, str] = {}
        # With a runtime of their own: podman 4.3's service ignores the runtime that a request names, and knows those
        # alone that were configured when it started. Lost on a restart, after which the service is a new one.
        self._runtimes: set[str] = set()
        # Whether an ended container was killed for memory never changes; asking takes an inspect.
        self._oom: dict[tuple[str, int], bool] = {}

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Self]:
        """See `machine.MachineEngine.served`: through a podman service of our own, see `service`."""
        async with service.opened(self._podman) as one:
            self.service = one
            try:
                yield self
            finally:
                self.service = None

    async def create(self, spec: port.ContainerSpec) -> port.ContainerState:
        """See `port.Engine.create`."""
        host = await self._podman.host()
        if spec.runtime:
            self._runtimes.add(spec.name)
        try:
            state = await self._create(spec, host)
        except errors.Unavailable as error:
            if error.reason != "NetworkUnusable" or not host.may_fall_back or spec.network_of is not None:
                raise
            self._podman.give_up_network(error)
            state = await self._create(spec, await self._podman.host())
        self._held[spec.name] = state.id
        return state

    async def _create(self, spec: port.ContainerSpec, host: podman_host.Host) -> port.ContainerState:
        with telemetry.timed("podman created", container=spec.name):
            identity = await self._record(spec, host)
        telemetry.crash_point("engine.created")
        try:
            if spec.runtime:
                await self._tell_handler(spec, await self._bundle(identity, host))
            with telemetry.timed("podman initialised", container=spec.name):
                await self._initialise(spec.name, identity)
        except errors.FairleadError:
            await self.remove(spec.name)
            raise
        config = await self._config(identity, host)
        if spec.first_user_id is not None:
            await self._close_folders(spec.name, config, host.pid_folder / identity / "userdata", spec.first_user_id)
        if spec.tty:
            attach.set_size(await self._bundle(identity, host), attach.FIRST_ROWS, attach.FIRST_COLUMNS)
        return port.ContainerState(
            engine=podman_host.NAME,
            id=identity,
            name=spec.name,
            phase=port.ContainerPhase.CREATED,
            labels=dict(spec.labels),
            image=spec.image,
            pid=await self._pid(spec.name, identity, host),
            env=None if config is None or config.process.env is None else podman_json.variables(config.process.env),
        )

    async def _tell_handler(self, spec: port.ContainerSpec, bundle: Path) -> None:
        """Write for a runtime of its own which sandbox a container joins, or what will join it.

        Raises: NotFound: there is no such sandbox; Unavailable (`SandboxUnrecorded`).
        """
        said = {}
        if spec.network_of is not None:
            said[sandboxfile.JOINS] = f"{(await self._inspect(spec.network_of)).id}\n"
        elif spec.passes_driver_calls:
            said[sandboxfile.PASSES] = ""
        for name, text in said.items():
            try:
                await asyncio.to_thread((bundle / name).write_text, text)
            except OSError as error:
                message = f"cannot record in {bundle} which sandbox the container joins: {error.strerror}"
                hint = "is podman's storage full?"
                raise errors.Unavailable(message, reason="SandboxUnrecorded", hint=hint) from error

    async def _record(self, spec: port.ContainerSpec, host: podman_host.Host) -> str:
        """Have podman write the container into its database; returns its id."""
        subject = f'container "{spec.name}"'
        arguments = args.create(spec, host, network=host.network, log_max_mib=self._log_max_mib)
        answer = await self._ask_to_create(spec, host)
        in_doubt = answer is None and self.service is not None and not spec.runtime
        if answer is None:
            answer = await self._create_by_command(spec, arguments)
        if answer.code != 0:
            error = podman_errors.translate(subject, "create", answer)
            if error.reason != podman_errors.EXISTS or not await self._is_half_made(spec, in_doubt=in_doubt):
                raise error
            telemetry.log.info("half-made container removed", container=spec.name)
            await self.remove(spec.name)
            answer = await self._create_by_command(spec, arguments)
        if answer.code != 0:
            raise podman_errors.translate(subject, "create", answer)
        for warning in podman_errors.warnings(answer):
            telemetry.log.warning("podman warns of a container", container=spec.name, reason=warning)
        return answer.stdout.decode().split()[-1]

    async def _ask_to_create(self, spec: port.ContainerSpec, host: podman_host.Host) -> command.Result | None:
        """Return the service's answer; None: there is no service for it, or it did not answer."""
        if self.service is None or not host.service_creates or spec.runtime:
            return None
        body = request.encode(spec, host, network=host.network, log_max_mib=self._log_max_mib)
        return await self.service.create(body)

    async def _create_by_command(self, spec: port.ContainerSpec, arguments: Sequence[str]) -> command.Result:
        with _secret_env(spec) as stdin:
            return await self._podman.run(*arguments, stdin=stdin)

    async def _is_half_made(self, spec: port.ContainerSpec, *, in_doubt: bool) -> bool:
        """Return whether a name is taken by no more than the rest of our own interrupted create.

        Args:    in_doubt: a service was asked for this container just now, and did not answer.
        """
        try:
            status = (await self._inspect(spec.name)).status
        except errors.NotFound:
            return await asyncio.to_thread(leftover.is_stored, (await self._podman.host()).bundle_folder, spec.name)
        if not in_doubt or status not in _UNKNOWN:
            return False
        return any(spec.name in row.names for row in await listing.list_rows(self._podman, spec.labels))

    async def _initialise(self, name: str, identity: str) -> None:
        """Have the OCI runtime make the container, its process held."""
        answer = await self._ask_service(name, "init")
        if answer is None:
            if self._is_served(name) and await self._is_initialised(name):
                return
            answer = await self._command(name, identity, "init")
        if answer.code != 0:
            raise podman_errors.translate(f'container "{name}"', "start", answer)

    async def _let_go(self, name: str, identity: str) -> None:
        """Start an initialised container, once, whatever became of an earlier request."""
        bundle = await self._bundle(identity, await self._podman.host())
        in_doubt = await asyncio.to_thread(startrecord.is_noted, bundle)
        if in_doubt and await self._has_run(name):
            return
        await asyncio.to_thread(startrecord.note, bundle)
        answer = await self._ask_service(name, "start")
        if answer is None:
            in_doubt = in_doubt or self._is_served(name)
            if in_doubt and await self._has_run(name):
                return
            answer = await self._command(name, identity, "start")
        if answer.code != 0:
            # A runtime that a dead service called may have been under way until now.
            if in_doubt and await self._has_run(name):
                return
            await asyncio.to_thread(startrecord.forget, bundle)
            raise podman_errors.translate(f'container "{name}"', "start", answer)

    async def _ask_service(self, name: str, act: str) -> command.Result | None:
        """Return the service's answer; None: there is no service, or it did not answer and may have done it or not."""
        return await self.service.ask(name, act) if self.service is not None and self._is_served(name) else None

    def _is_served(self, name: str) -> bool:
        """Return whether the service is asked about a container."""
        return self.service is not None and name not in self._runtimes

    async def _command(self, name: str, identity: str, act: str) -> command.Result:
        folder = await self._bundle(identity, await self._podman.host())
        return await self._podman.run(act, "--", name, folder=folder)

    async def _is_initialised(self, name: str) -> bool:
        """Return whether a service that broke off initialised the container all the same."""
        if (await self._inspect(name)).status not in _UNKNOWN:
            return True
        # It may have died between the runtime's create and its own database: the runtime would refuse the id.
        await leftover.discard(self._podman, name)
        return False

    async def _has_run(self, name: str) -> bool:
        """Return whether an initialised container whose start was asked for has started; mends podman's database."""
        patience = time.monotonic() + _CLEANUP_S
        while (brief := await self._inspect(name)).status == _INITIALISED:
            match await startrecord.read_status(self._podman, name, brief.id):
                case "created":
                    return False
                case "running" | "paused":
                    await startrecord.complete(self._podman, name)
                    return True
            if time.monotonic() > patience:
                message = f'container "{name}" has ended, and podman does not take it for started'
                hint = "remove it with podman rm --force; the next attempt is made again"
                raise errors.Unavailable(message, reason="StartUnrecorded", hint=hint)
            # It has ended, and conmon's `podman container cleanup` is on its way: podman will call it created again.
            await asyncio.sleep(_POLL_S)
        return True

    async def _discard_unknown(self, name: str) -> None:
        """Take what podman's own removal would leave: a held process of an init that was cut short, and its conmon."""
        if not await asyncio.to_thread(leftover.find_left, await self._podman.host(), name):
            return
        try:
            brief = await self._inspect(name)
        except errors.NotFound:
            brief = None
        if brief is None or brief.status in _UNKNOWN:
            await leftover.discard(self._podman, name)

    async def _bundle(self, identity: str, host: podman_host.Host) -> Path:
        # conmon notes an OOM kill as a file in the folder podman was started in; podman 4.3 looks for it in the bundle.
        folder = host.bundle_folder / identity / "userdata"
        return folder if await asyncio.to_thread(folder.is_dir) else Path("/")

    async def _is_noted(self, identity: str) -> bool:
        """Return whether the container's start was asked for."""
        bundle = await self._bundle(identity, await self._podman.host())
        return await asyncio.to_thread(startrecord.is_noted, bundle)

    async def _pid(self, name: str, identity: str, host: podman_host.Host) -> int:
        # conmon's own file spares an inspect of 30 ms on the way to every start.
        file = host.pid_folder / identity / "userdata" / "pidfile"
        try:
            return int(await asyncio.to_thread(file.read_text))
        except (OSError, ValueError):
            return (await self._inspect(name)).pid

    async def _config(self, identity: str, host: podman_host.Host) -> podman_json.Bundle | None:
        # The OCI configuration has the image's variables and the container's own, and costs no inspect.
        file = host.bundle_folder / identity / "userdata" / "config.json"
        try:
            return podman_json.decode(await asyncio.to_thread(file.read_bytes), podman_json.Bundle, what="bundle")
        except (OSError, errors.ProtocolError):
            return None

    async def _close_folders(self, name: str, config: podman_json.Bundle | None, run: Path, first: int) -> None:
        """Close a container's files to other accounts of the machine; the log has what keeps them open."""
        root = Path(config.root.path if config is not None else "")
        if problem := await asyncio.to_thread(layer.close, root, run, first):
            telemetry.log.warning("container's files are open to other users", container=name, error=problem)

    async def _inspect(self, name: str) -> _Brief:
        """Raises: NotFound (`ContainerNotFound`)."""
        arguments = ("container", "inspect", "--format={{.State.Status}} {{.State.Pid}} {{.Id}}", "--", name)
        result = await self._podman.checked(f'container "{name}"', "inspect", *arguments)
        status, pid, identity = result.stdout.decode().split()
        return _Brief(status, int(pid), identity)

    async def start(self, name: str) -> None:
        """See `port.Engine.start`."""
        checks.check_name(name)
        # `podman start` runs an ended container once more: only one that never ran may be started.
        identity = self._held.get(name)
        if identity is None:
            brief = await self._inspect(name)
            if brief.status not in _UNSTARTED:
                return
            identity = brief.id
            if brief.status in _UNKNOWN and not await self._is_noted(identity):
                await leftover.discard(self._podman, name)
                await self._initialise(name, identity)
        await self._let_go(name, identity)
        self._held.pop(name, None)

    async def stop(self, name: str, *, grace_s: float) -> None:
        """See `port.Engine.stop`."""
        checks.check_name(name)
        self._held.pop(name, None)
        seconds = args.grace(grace_s)
        arguments = ("stop", "--ignore", f"--time={seconds}", "--", name)
        await self._podman.checked(f'container "{name}"', "stop", *arguments, timeout_s=seconds + _MARGIN_S)

    async def remove(self, name: str) -> None:
        """See `port.Engine.remove`. Raises: Conflict (`ContainerInUse`): others join its network namespace."""
        checks.check_name(name)
        self._held.pop(name, None)
        await self._discard_unknown(name)
        arguments = ("rm", "--force", "--time=0", "--ignore", "--volumes", "--", name)
        try:
            await self._podman.checked(f'container "{name}"', "remove", *arguments)
        except errors.Conflict as error:
            if error.reason != podman_errors.NOT_RUNNING:
                raise
            # It ended by itself while podman was about to end it; podman has written that down by now.
            await self._podman.checked(f'container "{name}"', "remove", *arguments)

    async def list_containers(self, labels: Mapping[str, str]) -> tuple[port.ContainerState, ...]:
        """See `port.Engine.list_containers`."""
        rows = await listing.list_rows(self._podman, labels)
        ended = [row for row in rows if row.phase is port.ContainerPhase.EXITED]
        await self._learn_oom([row for row in ended if (row.id, row.exited_at) not in self._oom])
        lost = {row.id for row in rows if row.state in _UNKNOWN and await self._is_noted(row.id)}
        lost |= await listing.find_abandoned(self._podman, rows)
        return tuple(
            podman_json.container_state(
                row, oom_killed=self._oom.get((row.id, row.exited_at), False), has_run=row.id in lost
            )
            for row in rows
        )

    async def find_broken(self) -> tuple[str, ...]:
        """See `machine.MachineEngine.find_broken`: those for which `podman ps` fails."""
        return await listing.find_broken(self._podman)

    async def _learn_oom(self, rows: Sequence[podman_json.Container]) -> None:
        if not rows:
            return
        # Those removed meanwhile make the exit code 125; the others are printed all the same.
        result = await self._podman.run(
            "container", "inspect", "--format={{.Id}} {{.State.OOMKilled}}", "--", *(row.id for row in rows)
        )
        said = dict(line.split(" ", 1) for line in result.stdout.decode().splitlines() if " " in line)
        for row in rows:
            if row.id in said:
                self._oom[row.id, row.exited_at] = said[row.id].strip() == "true"
        while len(self._oom) > 10_000:
            del self._oom[next(iter(self._oom))]

    def watch_changes(self) -> AsyncGenerator[str, None]:
        """See `port.Engine.watch_changes`; nothing after this call is missed."""
        return events.watch(self._podman, since=time.time())

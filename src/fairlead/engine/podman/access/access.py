"""Implements `engine.access` with podman, and what `engine.port` offers of a running container: logs and exec.

Output is read from conmon's log and input goes to conmon's socket, without a program of podman's in between; signals,
processes and files go through podman's commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead import command, errors
from fairlead.engine import access, checks, port
from fairlead.engine.podman import args, cli, startrecord
from fairlead.engine.podman import exec as podman_exec
from fairlead.engine.podman.access import attach, logfile, sftp, usage
from fairlead.model.container import sandboxfile
from fairlead.model.container.output import LogQuery
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions

_FIELDS = (
    "{{.State.Status}}\t{{.State.Pid}}\t{{.Id}}\t{{.Config.OpenStdin}}\t{{.Config.Tty}}"
    "\t{{.ConmonPidFile}}\t{{.HostConfig.LogConfig.Path}}\t{{.OCIConfigPath}}"
)


@dataclass(frozen=True, slots=True)
class _Details:
    """What an inspect says of a container to those who use it."""

    status: str
    """Podman's own word."""
    pid: int
    id: str
    has_stdin: bool
    has_terminal: bool
    conmon_pid_file: Path
    log: Path
    bundle: Path


class PodmanAccess:
    """`access.Access`, logs and exec over the podman program."""

    _podman: cli.Podman

    async def _details(self, name: str) -> _Details:
        """Raises: NotFound (`ContainerNotFound`); Invalid (`ContainerNameInvalid`)."""
        checks.check_name(name)
        arguments = ("container", "inspect", f"--format={_FIELDS}", "--", name)
        result = await self._podman.checked(f'container "{name}"', "inspect", *arguments)
        words = result.stdout.decode().rstrip("\n").split("\t")
        if len(words) != _FIELDS.count("\t") + 1:
            message = f'podman\'s inspect of "{name}" is not what podman 4 and 5 print'
            raise errors.ProtocolError(message, reason="PodmanOutputInvalid", hint="which podman is this?")
        status, pid, identity, stdin, tty, conmon, log, config = words
        return _Details(
            status, int(pid), identity, stdin == "true", tty == "true", Path(conmon), Path(log), Path(config).parent
        )

    async def _running(self, name: str, what: str) -> _Details:
        found = await self._details(name)
        if found.status != "running":
            message = f'container "{name}" is {found.status}, not running'
            raise errors.Conflict(message, reason="ContainerNotRunning", hint=f"{what} needs a running container")
        return found

    async def logs(self, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
        """See `port.Engine.logs`. Raises: NotFound (`ContainerNotFound`)."""
        found = await self._details(name)
        connection = attach.connect(found.bundle) if query.follow and query.holds_back else None
        throttle = None if connection is None else attach.Throttle(connection)

        def is_over() -> bool:
            return not attach.lives(found.conmon_pid_file, found.id)

        is_marked = await asyncio.to_thread(startrecord.is_log_marked, found.bundle)
        pieces = logfile.read(found.log, query, is_over=is_over, brake=throttle, is_marked=is_marked)
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except FileNotFoundError:
            return  # removed meanwhile
        finally:
            if throttle is not None:
                throttle.close()

    async def exec(
        self, name: str, argv: tuple[str, ...], *, tty: bool, stdin: bool, options: ProcessOptions = AS_THE_CONTAINER
    ) -> podman_exec.PodmanExec:
        """See `port.Engine.exec`."""
        found = await self._running(name, "exec")
        mark = secrets.token_hex(8)
        env = {**({"TERM": "xterm-256color"} if tty else {}), **options.env, podman_exec.MARK: mark}
        variables = podman_exec.Variables(args.env_lines(args.in_lines(env)))
        wanted = replace(options, env=env)
        arguments = args.execute(name, argv, tty=tty, stdin=stdin, options=wanted, env_file=variables.path)
        return await podman_exec.open_session(
            self._podman.argv(*arguments),
            env=self._podman.env,
            tty=tty,
            stdin=stdin,
            mark=mark,
            pid=found.pid or None,
            variables=variables,
        )

    async def open_input(self, name: str) -> attach.ConmonInput:
        """See `access.Access.open_input`."""
        found = await self._running(name, "its input")
        if not found.has_stdin:
            raise attach.not_open(name)
        connection = attach.connect(found.bundle)
        if connection is None:
            message = f'container "{name}" has just ended'
            raise errors.Conflict(message, reason="ContainerNotRunning", hint="`fairlead ps -a`")
        return attach.ConmonInput(connection, found.bundle, has_terminal=found.has_terminal)

    async def signal(self, name: str, number: int) -> None:
        """See `access.Access.signal`."""
        checks.check_name(name)
        await self._podman.checked(f'container "{name}"', "send a signal to", "kill", f"--signal={number}", "--", name)

    async def list_processes(self, name: str) -> tuple[tuple[str, ...], ...]:
        """See `access.Access.list_processes`."""
        await self._running(name, "top")
        columns = ("user", "pid", "ppid", "pcpu", "etime", "tty", "time", "args")
        result = await self._podman.checked(f'container "{name}"', "list the processes of", "top", name, *columns)
        lines = result.stdout.decode(errors="replace").splitlines()
        return tuple(tuple(line.split(None, len(columns) - 1)) for line in lines if line.strip())

    async def usage(self, name: str) -> access.Usage:
        """See `access.Access.usage`.

        A container that joined its pod's sandbox of gVisor is part of that to the kernel, which counts the sandbox.
        What podman has as its process is its handler's watcher (`plan.engineconfig.gvisorpod`). runsc's own word
        (`events --stats`) divides the sandbox's memory among its containers and is no measurement.
        """
        found = await self._running(name, "stats")
        sandbox = await asyncio.to_thread(_sandbox_of, found.bundle)
        try:
            if sandbox:
                of_pod = await self._running(sandbox, "stats")
                return replace(await asyncio.to_thread(usage.read, of_pod.pid), is_pods=True)
            return await asyncio.to_thread(usage.read, found.pid)
        except FileNotFoundError as error:
            message = f'container "{name}" has just ended'
            raise errors.Conflict(message, reason="ContainerNotRunning", hint="`fairlead ps -a`") from error

    def read_counters(self, state: port.ContainerState) -> access.Usage | None:
        """See `access.Access.read_counters`; a pid that another process has by now is known by its cgroup.

        A container in its pod's sandbox of gVisor counts nothing: the sandbox, a container of the pod as well, has all.
        """
        if state.pid is None:
            return None
        try:
            return usage.read(state.pid, container=state.id)
        except OSError:
            return None

    async def sftp(self, name: str) -> podman_exec.PodmanExec:
        """See `access.Access.sftp`: by a program that goes into the container's namespaces and cannot leave them."""
        found = await self._running(name, "sftp")
        argv = await asyncio.to_thread(sftp.argv, found.bundle, found.pid, found.id)
        return await podman_exec.open_session(argv, env=command.base_env(), tty=False, stdin=True, mark="", pid=None)

    async def pack(self, name: str, path: str) -> podman_exec.PodmanExec:
        """See `access.Access.pack`."""
        await self._details(name)
        return await self._copy(f"{name}:{path}", "-", stdin=False)

    async def unpack(self, name: str, path: str) -> podman_exec.PodmanExec:
        """See `access.Access.unpack`."""
        await self._details(name)
        return await self._copy("-", f"{name}:{path}", stdin=True)

    async def _copy(self, source: str, target: str, *, stdin: bool) -> podman_exec.PodmanExec:
        argv = self._podman.argv("cp", "--pause=false", "--", source, target)
        return await podman_exec.open_session(argv, env=self._podman.env, tty=False, stdin=stdin, mark="", pid=None)


def _sandbox_of(bundle: Path) -> str:
    """Return the id of the container whose sandbox one runs in; empty: it has its own, or none."""
    try:
        return (bundle / sandboxfile.JOINS).read_text().strip()
    except OSError:
        return ""

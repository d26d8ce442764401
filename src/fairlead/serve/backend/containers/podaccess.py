"""Reaches into running containers: signals, processes, use and files, over the engine or over an API server.

An API server has no subresource for any of them. There each is a program of the image's own, run by exec: `kill`, `ps`
and `tar`, as `kubectl cp` does it; an image without the program is answered so. What a container uses is read from its
own cgroup by `cat`, since an API server knows it only where a metrics server runs, and then a minute late.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead import errors
from fairlead.engine import containeruse
from fairlead.engine.access import Access, Usage
from fairlead.engine.port import Engine
from fairlead.serve.backend.containers import enginepods
from fairlead.store import subresource
from fairlead.wire.kubernetes import core

_LARGEST_ANSWER = 1 << 20
_SFTP_SERVER = (
    "for one in /usr/lib/openssh /usr/libexec/openssh /usr/libexec /usr/lib/ssh; do"
    ' [ -x "$one/sftp-server" ] && exec "$one/sftp-server"; done;'
    " echo 'the image has no sftp-server' >&2; exit 127"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    """A `port.PodAccess` over an engine."""

    engine: Engine
    access: Access

    async def _name(self, pod: core.Pod, container: str) -> str:
        return (await enginepods.find_running(self.engine, pod, container)).name

    async def signal(self, pod: core.Pod, container: str, number: int) -> None:
        """See `port.PodAccess.signal`."""
        await self.access.signal(await self._name(pod, container), number)

    async def list_processes(self, pod: core.Pod, container: str) -> tuple[tuple[str, ...], ...]:
        """See `port.PodAccess.list_processes`."""
        return await self.access.list_processes(await self._name(pod, container))

    async def usage(self, pod: core.Pod, container: str) -> Usage:
        """See `port.PodAccess.usage`."""
        return await self.access.usage(await self._name(pod, container))

    async def sftp(self, pod: core.Pod, container: str) -> subresource.Session:
        """See `port.PodAccess.sftp`; a sandbox with a kernel of its own has its files where nothing can go in."""
        if pod.spec.runtime_class_name:
            message = f'container "{pod.metadata.name}" runs on {pod.spec.runtime_class_name}, which SFTP cannot enter'
            hint = "copy with `fairlead cp`, or by a program of the container: `ssh NAME tar …`"
            raise errors.Unavailable(message, reason="SFTPNotServed", hint=hint)
        return await self.access.sftp(await self._name(pod, container))

    async def pack(self, pod: core.Pod, container: str, path: str) -> subresource.Session:
        """See `port.PodAccess.pack`; a container that has ended is read as well."""
        return await self.access.pack(await self._any(pod, container), path)

    async def unpack(self, pod: core.Pod, container: str, path: str) -> subresource.Session:
        """See `port.PodAccess.unpack`."""
        return await self.access.unpack(await self._any(pod, container), path)

    async def _any(self, pod: core.Pod, container: str) -> str:
        """Return the newest engine container, whether it runs or not. Raises: Conflict: there is none yet."""
        found = await enginepods.list_attempts(self.engine, pod, container)
        return found[-1].name if found else await self._name(pod, container)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecAccess:
    """A `port.PodAccess` over programs of the container's own image."""

    streams: subresource.Streams

    async def signal(self, pod: core.Pod, container: str, number: int) -> None:
        """See `port.PodAccess.signal`: `kill`, in the container."""
        await self._run(pod, container, ("kill", f"-{number}", "1"))

    async def list_processes(self, pod: core.Pod, container: str) -> tuple[tuple[str, ...], ...]:
        """See `port.PodAccess.list_processes`: `ps`, in the container."""
        lines = (await self._run(pod, container, ("ps",))).decode(errors="replace").splitlines()
        columns = max(0, len(lines[0].split()) - 1) if lines else 0
        return tuple(tuple(line.split(None, columns)) for line in lines if line.strip())

    async def usage(self, pod: core.Pod, container: str) -> Usage:
        """See `port.PodAccess.usage`: `cat`, in the container, of its cgroup and its network's counters."""
        return containeruse.parse(await self._run(pod, container, containeruse.COMMAND))

    async def sftp(self, pod: core.Pod, container: str) -> subresource.Session:
        """See `port.PodAccess.sftp`: the image's own `sftp-server`."""
        return await self.streams.exec(pod, container, ("sh", "-c", _SFTP_SERVER), tty=False, stdin=True)

    async def pack(self, pod: core.Pod, container: str, path: str) -> subresource.Session:
        """See `port.PodAccess.pack`: `tar`, in the container."""
        folder, _, base = path.rstrip("/").rpartition("/")
        argv = ("tar", "-C", folder or "/", "-cf", "-", "--", base or ".")
        return await self.streams.exec(pod, container, argv, tty=False, stdin=False)

    async def unpack(self, pod: core.Pod, container: str, path: str) -> subresource.Session:
        """See `port.PodAccess.unpack`: `tar`, in the container."""
        return await self.streams.exec(pod, container, ("tar", "-C", path, "-xf", "-"), tty=False, stdin=True)

    async def _run(self, pod: core.Pod, container: str, argv: tuple[str, ...]) -> bytes:
        session = await self.streams.exec(pod, container, argv, tty=False, stdin=False)
        try:
            found = b""
            while data := await session.read():
                found = (found + data)[:_LARGEST_ANSWER]
            code = await session.wait()
        finally:
            await session.close()
        if code:
            said = found.decode(errors="replace").strip().splitlines()
            message = f'`{" ".join(argv)}` in "{pod.metadata.name}" ended with {code}' + (
                f": {said[-1]}" if said else ""
            )
            raise errors.Invalid(message, reason="ExecFailed", hint=f"does the image have {argv[0]}?")
        return found

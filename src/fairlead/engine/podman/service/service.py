"""Runs podman's service as our child, which creates and starts containers some 50 and 30 ms sooner than commands do.

A service that answers is used, and none is needed: whatever it does not answer is done by command (`engine`), so that
its death costs time and nothing else. One that does not answer in time is killed. All state is podman's on disk; the
service keeps none. It listens on a unix socket in a folder of ours (mode 0700), dies with us, and is started again by
the next request.

conmon notes an OOM kill as a file `oom` in the folder it was started in, and podman 4.3 looks for it in the container's
bundle. A service has one working folder for all containers, so podman is given a conmon that changes to the bundle
first: `_CONMON`, eight lines of shell before the real one.

Source: podman 4.3 API reference, `POST /libpod/containers/create`, `/{name}/init` and `/{name}/start`; conmon(8),
`--bundle`.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import http.client
import os
import shlex
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from fairlead import command, errors, telemetry, temporary
from fairlead.engine.podman import cli
from fairlead.wire.text import typedjson

_CONMON: Final = """#!/bin/sh
bundle=
for word; do
  if [ "$bundle" = - ]; then bundle=$word; break; fi
  if [ "$word" = -b ]; then bundle=-; fi
done
case $bundle in /*) cd "$bundle" || exit ;; esac
exec {conmon} "$@"
"""
_API: Final = "/v4.0.0/libpod/containers"
_READY_S: Final = 5.0
_POLL_S: Final = 0.01
_PAUSE_S: Final = 60.0
"""How long commands are used after the service could not be started."""
_ERROR: Final = 400


class _Problem(msgspec.Struct):
    message: str = ""


class _Created(msgspec.Struct, rename="pascal"):
    id: str
    warnings: list[str] | None = None


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        super().__init__("podman", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Service:
    """The service, started with the first request."""

    def __init__(self, podman: cli.Podman, folder: Path) -> None:
        self._podman = podman
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._paused_until = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id; None: it does not run."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def create(self, body: bytes) -> command.Result | None:
        """Have a container created, in podman's database only.

        Args:    body: as `request.encode` returns it.
        Returns: as a command's: the id as standard output, warnings or podman's message as standard error. None:
                 nothing is known, the service did not answer; it may have done it, wholly or in part, or not.
        """
        answer = await self._post(f"{_API}/create", body)
        if answer is None or answer.code != 0:
            return answer
        try:
            created = typedjson.decode(answer.stdout, type=_Created)
        except msgspec.MsgspecError as error:
            telemetry.log.warning("podman service not understood", error=str(error))
            return None
        warnings = "\n".join(created.warnings or ())
        return command.Result(code=0, stdout=created.id.encode(), stderr=warnings.encode())

    async def ask(self, name: str, act: str) -> command.Result | None:
        """Have one container initialised or started.

        Args:    name: a container's, letters and digits as podman's own rule has them.   act: `init` or `start`.
        Returns: as a command's: code 0, or podman's message as standard error. None: nothing is known, the service did
                 not answer; it may have done it or not.
        """
        return await self._post(f"{_API}/{name}/{act}", b"")

    async def _post(self, target: str, body: bytes) -> command.Result | None:
        if not await self._is_ready():
            return None
        asked = self._process
        try:
            status, answer = await asyncio.to_thread(_post, self._socket, target, body)
        except (OSError, http.client.HTTPException) as error:
            telemetry.log.warning("podman service broke off", error=str(error) or type(error).__name__)
            if self._process is asked:
                await self.close()  # one that hangs would hang again
            return None
        if status < _ERROR:
            return command.Result(code=0, stdout=answer, stderr=b"")
        try:
            message = typedjson.decode(answer, type=_Problem).message
        except msgspec.MsgspecError:
            message = answer.decode(errors="replace")
        return command.Result(code=125, stdout=b"", stderr=message.encode())

    @property
    def _socket(self) -> Path:
        return self._folder / "podman.sock"

    async def _is_ready(self) -> bool:
        async with self._starting:
            if self.pid is not None:
                return True
            if time.monotonic() < self._paused_until:
                return False
            try:
                await self._start()
            except (OSError, errors.FairleadError) as error:
                why = error.message if isinstance(error, errors.FairleadError) else str(error)
                telemetry.log.warning("podman service not started", error=why, duration_s=_PAUSE_S)
                self._paused_until = time.monotonic() + _PAUSE_S
                return False
            return True

    async def _start(self) -> None:
        """Start it and return once it listens. Raises: OSError, Unavailable."""
        await self.close()
        host = await self._podman.host()
        wrapper = self._folder / "conmon"
        await asyncio.to_thread(_write_program, wrapper, _CONMON.format(conmon=shlex.quote(host.conmon)))
        argv = self._podman.argv(
            *host.globals, f"--conmon={wrapper}", "system", "service", "--time=0", f"unix://{self._socket}"
        )
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._process = await command.started(argv, env=self._podman.env, stdin=null, output=null)
        finally:
            os.close(null)
        deadline = time.monotonic() + _READY_S
        while not await asyncio.to_thread(_is_listening, self._socket):
            if self.pid is None or time.monotonic() > deadline:
                await self.close()
                raise errors.Unavailable(f"no podman listens at {self._socket}", reason="ServiceMissing")
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """End it; idempotent. Containers go on."""
        process, self._process = self._process, None
        if process is not None:
            await command.end(process, at_once=True)
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def opened(podman: cli.Podman) -> AsyncIterator[Service]:
    """Give the service for a block, in a folder of its own."""
    with temporary.folder(temporary.PODMAN) as folder:
        one = Service(podman, folder)
        try:
            yield one
        finally:
            await one.close()


def _post(path: Path, target: str, body: bytes) -> tuple[int, bytes]:
    with contextlib.closing(_Connection(path, timeout_s=cli.SHORT_S)) as connection:
        connection.request("POST", target, body, {"connection": "close", "content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def _is_listening(path: Path) -> bool:
    with contextlib.closing(_Connection(path, timeout_s=1.0)) as connection:
        try:
            connection.connect()
        except OSError:
            return False
    return True


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o700)

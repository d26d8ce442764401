"""Implements `port.ImageStore` with podman."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final

from fairlead import command, errors
from fairlead.engine import checks
from fairlead.engine.podman import cli
from fairlead.engine.podman import errors as podman_errors
from fairlead.engine.podman import exec as podman_exec

_PRUNE_S: Final = 600.0
_LONGEST_TAIL: Final = 1 << 16
_LOCAL: Final = "localhost/"
"""Begins the names of images that were made on a machine."""


_RETRY: Final = re.compile(rb'^time="[^"]*" level=warning msg="Failed, retrying in (\S+) \.\.\. \((\d+/\d+)\)\..*$')


def pull_progress(lines: bytes) -> bytes:
    """Return whole lines of a pull as people read them: a retry in words, and no error, which the refusal repeats."""
    kept = (
        _RETRY.sub(rb"no answer, podman tries again in \1 (\2)", line)
        for line in lines.splitlines(keepends=True)
        if not line.startswith(b"Error: ")
    )
    return b"".join(kept)


class PodmanImageStore:
    """`port.ImageStore` over the podman program."""

    _podman: cli.Podman

    async def tag(self, name: str, new: str) -> None:
        """See `port.ImageStore.tag`."""
        checks.check_image(name)
        checks.check_image(new)
        await self._podman.checked(f'image "{name}"', "tag", "tag", "--", name, new)

    async def pull_lines(self, name: str) -> AsyncGenerator[bytes, None]:
        """See `port.ImageStore.pull_lines`; podman says a line for each layer."""
        checks.check_image(name)
        if name.startswith(_LOCAL):
            raise await self._local(name)
        argv = self._podman.argv("pull", "--", name)
        tail, rest = b"", b""
        async with command.opened(argv, env=self._podman.env, stderr=command.MERGED) as running:
            while chunk := await running.output.read():
                tail = (tail + chunk)[-_LONGEST_TAIL:]
                lines, end, rest = (rest + chunk).rpartition(b"\n")
                if len(rest) > _LONGEST_TAIL:
                    lines, end, rest = lines + end + rest, b"", b""
                if said := pull_progress(lines + end):
                    yield said
            code = await running.process.wait()
        if code:
            failed = command.Result(code=code, stdout=b"", stderr=tail)
            raise podman_errors.translate(f'image "{name}"', "pull", failed)
        if rest:
            yield rest

    async def _local(self, name: str) -> errors.FairleadError:
        """Return why an image of this machine is not fetched: no registry has it, and asking one takes seconds."""
        result = await self._podman.run("image", "exists", "--", name)
        if result.code == 0:
            message = f'image "{name}" is here already, and no registry has it: localhost/… are made on this machine'
            return errors.Conflict(message, reason="ImageLocal", hint="nothing is to be fetched: fairlead run")
        message = f'image "{name}" is not here, and no registry has it: localhost/… are made on this machine'
        return errors.NotFound(message, reason="ImageNotFound", hint="`fairlead images` lists those that are here")

    async def save(self, names: tuple[str, ...]) -> podman_exec.PodmanExec:
        """See `port.ImageStore.save`."""
        for name in names:
            checks.check_image(name)
            result = await self._podman.run("image", "exists", "--", name)
            if result.code:
                message = f'cannot save image "{name}": image not known'
                raise errors.NotFound(message, reason="ImageNotFound", hint="`fairlead image ls` lists them")
        several = ["--multi-image-archive"] if len(names) > 1 else []
        return await self._session("save", "--quiet", "--format=docker-archive", *several, "--", *names)

    async def load(self) -> podman_exec.PodmanExec:
        """See `port.ImageStore.load`."""
        return await self._session("load", "--quiet", stdin=True)

    async def _session(self, *arguments: str, stdin: bool = False) -> podman_exec.PodmanExec:
        argv = self._podman.argv(*arguments)
        return await podman_exec.open_session(argv, env=self._podman.env, tty=False, stdin=stdin, mark="", pid=None)

    async def prune_images(self, *, every: bool) -> tuple[str, ...]:
        """See `port.ImageStore.prune_images`."""
        wide = ["--all"] if every else []
        result = await self._podman.checked("images", "prune", "image", "prune", "--force", *wide, timeout_s=_PRUNE_S)
        return tuple(result.stdout.decode().split())

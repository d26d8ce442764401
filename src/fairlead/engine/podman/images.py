"""Implements the `Images` port with podman, and describes the engine.

A root file system becomes an image by `podman import`: a tar is handed over as it is (podman reads gzip, xz and zstd
itself), a folder goes through tar(1) in a pipe, with numeric owners. Builds run podman's own builder. Names are
resolved the way podman does: `web` finds `localhost/web`, and configured short names.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

from fairlead import command, errors, settings
from fairlead.engine import checks, port
from fairlead.engine import source as image_source
from fairlead.engine.podman import cli
from fairlead.engine.podman import errors as podman_errors
from fairlead.engine.podman import json as podman_json

_LONG_S: Final = 3600.0
"""Pulls and imports move gigabytes; the person or the controller who waits cancels sooner."""
_TAIL_LINES: Final = 5


class PodmanImages:
    """`port.Images` over the podman program."""

    def __init__(self, group: settings.EngineSettings, *, root: Path = Path("/")) -> None:
        self._podman = cli.Podman(group, root=root)

    async def info(self) -> port.EngineInfo:
        """See `port.Images.info`."""
        return (await self._podman.host()).info

    async def list_images(self) -> tuple[port.Image, ...]:
        """See `port.Images.list_images`."""
        result = await self._podman.checked("images", "list", "images", "--no-trunc", "--format=json")
        return podman_json.images(podman_json.decode(result.stdout, list[podman_json.ImageRow], what="image list"))

    async def exists(self, name: str) -> bool:
        """See `port.Images.exists`."""
        result = await self._podman.run("image", "exists", "--", name)
        if result.code > 1:
            raise podman_errors.translate(f'image "{name}"', "look up", result)
        return result.code == 0

    async def environment(self, name: str) -> Mapping[str, str]:
        """See `port.Images.environment`."""
        arguments = ("image", "inspect", "--format={{json .Config}}", "--", name)
        result = await self._podman.checked(f'image "{name}"', "look into", *arguments)
        config = podman_json.decode(result.stdout, podman_json.ImageConfig, what="image inspect")
        return podman_json.variables(config.env or [])

    async def identity(self, name: str) -> str | None:
        """See `port.IdentifiedImages.identity`."""
        result = await self._podman.run("image", "inspect", "--format={{.Id}}", "--", name)
        return result.stdout.decode().strip() or None if result.code == 0 else None

    async def pull(self, name: str, *, authfile: Path | None = None) -> None:
        """See `port.Images.pull`. Raises: Invalid (`ImageNameInvalid`): not a reference, as podman's transports are."""
        checks.check_image(name)
        who = [f"--authfile={authfile}"] if authfile else []
        await self._podman.checked(f'image "{name}"', "pull", "pull", "--quiet", *who, "--", name, timeout_s=_LONG_S)

    async def import_root(self, source: Path, name: str, *, command: tuple[str, ...] = ()) -> port.Image:
        """See `port.Images.import_root`."""
        checks.check_image(name)
        folder = await asyncio.to_thread(image_source.is_folder, source)
        source = await asyncio.to_thread(source.absolute)
        arguments = ["import", "--quiet", *([f"--change=CMD {json.dumps(list(command))}"] if command else []), "--"]
        if folder:
            result = await self._import_folder(source, [*arguments, "-", name])
        else:
            result = await self._podman.run(*arguments, str(source), name, timeout_s=_LONG_S)
        if result.code != 0:
            raise podman_errors.translate(f'image "{name}"', "import", result)
        identity = result.stdout.decode().strip().rpartition(":")[2]
        return next(image for image in await self.list_images() if image.id == identity)

    async def _import_folder(self, source: Path, arguments: list[str]) -> command.Result:
        packed, pack = os.pipe()
        argv = ["tar", "--create", "--numeric-owner", "--one-file-system", f"--directory={source}", "."]
        try:
            tar = await command.started(argv, env=self._podman.env, stdin=asyncio.subprocess.DEVNULL, output=pack)
        except errors.Unavailable:
            os.close(packed)
            raise
        finally:
            os.close(pack)
        try:
            result = await self._podman.run(*arguments, timeout_s=_LONG_S, stdin=packed)
            code = await tar.wait()
        finally:
            os.close(packed)
            await command.end(tar)
        # tar ends with 1 where a file changed while it was read; the image is whole all the same.
        if result.code == 0 and code > 1:
            message = f"cannot read all of {source}: tar ended with {code}"
            raise errors.Invalid(message, reason="ImageSourceInvalid", hint="are all its files readable?")
        return result

    async def build(self, context: Path, name: str, recipe: port.Recipe = port.PLAIN) -> AsyncGenerator[bytes, None]:
        """See `port.Images.build`."""
        checks.check_image(name)
        image_source.check_recipe(recipe)
        file = recipe.containerfile
        await asyncio.to_thread(image_source.check_containerfile, context, file)
        host = await self._podman.host()
        argv = self._podman.argv(
            *host.globals,
            "build",
            "--pull=never",
            *(f"--ulimit={limit}" for limit in host.ulimits),
            f"--tag={name}",
            *([f"--file={await asyncio.to_thread(file.absolute)}"] if file else []),
            # podman 4.3 takes a step of its cache that was made with other values.
            *(["--no-cache"] if recipe.args else []),
            *(f"--build-arg={key}={value}" for key, value in recipe.args.items()),
            *([f"--target={recipe.target}"] if recipe.target else []),
            "--",
            str(await asyncio.to_thread(context.absolute)),
        )
        tail: list[bytes] = []
        async with command.opened(argv, env=self._podman.env, stderr=command.MERGED) as running:
            while chunk := await running.output.read():
                tail = [*tail, chunk][-_TAIL_LINES:]
                yield chunk
            code = await running.process.wait()
        if code != 0:
            failed = command.Result(code=code, stdout=b"", stderr=b"".join(tail))
            line = failed.last_line.removeprefix("Error: ")
            message = f'cannot build image "{name}" from {context}: {line}'
            raise errors.Invalid(message, reason="BuildFailed", hint="the build's output says at which step")

    async def remove_image(self, name: str) -> None:
        """See `port.Images.remove_image`."""
        result = await self._podman.run("rmi", "--", name)
        if result.code == 0:
            return
        error = podman_errors.translate(f'image "{name}"', "remove", result)
        if error.reason != "ImageNotFound":
            raise error

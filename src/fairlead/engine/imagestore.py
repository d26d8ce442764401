"""Declares the port to an engine's store of images, for those who keep it: names, archives, progress, room."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from fairlead.engine import port


class ImageStore(Protocol):
    """Images of this machine, as things that are named, moved and thrown away."""

    async def tag(self, name: str, new: str) -> None:
        """Give an image one more name. Raises: NotFound (`ImageNotFound`); Invalid: not a reference."""
        ...

    def pull_lines(self, name: str) -> AsyncGenerator[bytes, None]:
        """Fetch an image, yielding what the engine says of its progress. Raises: as `port.Images.pull`."""
        ...

    async def save(self, names: tuple[str, ...]) -> port.ExecSession:
        """Write images as one archive that docker reads too: the session's output. Raises: NotFound."""
        ...

    async def load(self) -> port.ExecSession:
        """Read an archive of images, the session's input; its output says which they were."""
        ...

    async def prune_images(self, *, every: bool) -> tuple[str, ...]:
        """Remove images without a name, with `every` also those that no container is made from; returns their ids."""
        ...

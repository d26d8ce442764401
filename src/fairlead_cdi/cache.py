"""Watches spec folders: keeps the latest registry of a long-lived process, and yields one after every change.

inotify says that something may have changed, and the scan says what: events are never interpreted. Watched are the spec
folders, their nearest existing ancestor while they are missing, and the folders of everything that a symbolic link in
them leads to. Creations, deletions, moves in and out, and finished writes all count, so `mv` from elsewhere, `ln -s`
and a rewritten link target are seen too. Where the kernel refuses a watch, the folders are polled. The cache has no
facts about device nodes: `inject` reads the host anew at every injection. No other module imports asyncinotify.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import asyncinotify

from fairlead_cdi import directory, parse

_MASK: Final = (
    asyncinotify.Mask.CREATE
    | asyncinotify.Mask.DELETE
    | asyncinotify.Mask.MOVE
    | asyncinotify.Mask.CLOSE_WRITE
    | asyncinotify.Mask.ATTRIB
    | asyncinotify.Mask.DELETE_SELF
    | asyncinotify.Mask.MOVE_SELF
    | asyncinotify.Mask.ONLYDIR
)
_LINK_LIMIT: Final = 40
_SETTLE_S: Final = 0.02
"""Events within this time of each other are one change: a package upgrade writes many files."""
_SETTLE_LIMIT: Final = 10


class Cache:
    """The latest registry of some spec folders.

    Args:    directories: in rising priority.   decoders: by suffix, see `directory.scan`.
             poll_s: seconds between scans where inotify fails.   rescan_s: seconds between scans without an event,
             for file systems that report none.
    Raises:  WrongType: a single path instead of a list of folders.
    """

    def __init__(
        self,
        directories: Iterable[str | os.PathLike[str]] = directory.DEFAULT_DIRECTORIES,
        *,
        decoders: Mapping[str, parse.Decoder] = directory.DECODERS,
        poll_s: float = 1.0,
        rescan_s: float = 30.0,
    ) -> None:
        self._directories = directory.folders_of(directories)
        self._decoders = decoders
        self._poll_s = poll_s
        self._rescan_s = rescan_s
        self.registry = directory.Registry(directories=self._directories)
        """What the last scan found; empty before the first."""

    def refresh(self) -> directory.Registry:
        """Scan now, read only files that changed, and return the new registry. Blocks; never raises."""
        self.registry = directory.scan(self._directories, decoders=self._decoders, previous=self.registry)
        return self.registry

    async def watch(self) -> AsyncGenerator[directory.Registry, None]:
        """Yield the registry as it is now, then again after every change; never ends.

        Close the iterator (`aclosing`) to stop watching.
        """
        try:
            inotify = asyncinotify.Inotify()
        except OSError:
            async for registry in self._polled():
                yield registry
            return
        with inotify:
            watches: dict[str, asyncinotify.Watch] = {}
            seen: object = None
            while True:
                # Watch first, scan second: what changes in between is reported again, not lost.
                is_covered = _cover(inotify, watches, self._directories)
                registry = await asyncio.to_thread(self.refresh)
                if _essence(registry) != seen:
                    seen = _essence(registry)
                    yield registry
                await _next_change(inotify, self._rescan_s if is_covered else self._poll_s)

    async def _polled(self) -> AsyncIterator[directory.Registry]:
        seen: object = None
        while True:
            registry = await asyncio.to_thread(self.refresh)
            if _essence(registry) != seen:
                seen = _essence(registry)
                yield registry
            await asyncio.sleep(self._poll_s)


def _essence(registry: directory.Registry) -> object:
    """Return what makes two registries different for their users: specs and problems, not times."""
    files = tuple((file.path, file.priority, file.spec, str(file.error)) for file in registry.files)
    return files, {path: str(error) for path, error in registry.directory_errors.items()}


async def _next_change(inotify: asyncinotify.Inotify, timeout_s: float) -> None:
    """Wait for an event, then until events pause; or until the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await inotify.get()
        for _ in range(_SETTLE_LIMIT):
            async with asyncio.timeout(_SETTLE_S):
                await inotify.get()
    except TimeoutError:
        return


def _cover(inotify: asyncinotify.Inotify, watches: dict[str, asyncinotify.Watch], folders: Iterable[str]) -> bool:
    """Bring the watches in line with what matters now; False: the kernel refused one."""
    wanted = set(_folders_to_watch(folders))
    for path in watches.keys() - wanted:
        watch = watches.pop(path)
        try:
            inotify.rm_watch(watch)
        except OSError:
            continue  # The folder is gone and its watch went with it.
    is_covered = True
    for path in wanted:
        try:
            # Adding again is free, and renews the watch of a folder that was made anew.
            watches[path] = inotify.add_watch(path, _MASK)
        except OSError:
            is_covered = False
    return is_covered


def _folders_to_watch(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        yield _existing(Path(folder))
        try:
            entries = [Path(entry.path) for entry in os.scandir(folder) if entry.is_symlink()]
        except OSError:
            continue
        for link in entries:
            if link.name.endswith(directory.SUFFIXES):
                yield from _link_folders(link)


def _link_folders(link: Path) -> Iterator[str]:
    """Yield the folder of every hop of a symbolic link's way."""
    place = link
    for _ in range(_LINK_LIMIT):
        try:
            place = place.parent / place.readlink()
        except OSError:
            return
        yield _existing(place.parent)


def _existing(folder: Path) -> str:
    """Return the folder without symbolic links, or its nearest ancestor that exists."""
    real = Path(os.path.realpath(folder))
    return str(next(place for place in (real, *real.parents) if place.is_dir()))

"""Keeps the `/dev/char` links of this host as `plan.charlinks` decides.

The agent keeps them on hosts that run systemd, where it can write the host's own /dev without any right that it would
not have otherwise. A link is replaced by renaming another over it, so that systemd never finds none. Watching means
that nodes which come later (a MIG instance's, a module's that was loaded again) have theirs within milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import asyncinotify

from fairlead import errors, telemetry
from fairlead.plan import charlinks
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.pci import pci

_NVIDIA: Final = 0x10DE
_RESCAN_S: Final = 60.0
_HANGING_S: Final = 60.0
"""A look at /dev and /sys takes longer only where a file system hangs."""
_MASK: Final = (
    asyncinotify.Mask.CREATE | asyncinotify.Mask.DELETE | asyncinotify.Mask.MOVE | asyncinotify.Mask.ATTRIB
) | asyncinotify.Mask.ONLYDIR


def inspect(root: Path, *, ahead: bool = False) -> charlinks.Decision:
    """Look at nodes and links and say what is to be done.

    Args: root: under which /dev, /proc and /sys are.   ahead: also for nodes that will be made later.
    """
    dev = root / "dev"
    found = [_node(dev, path) for pattern in charlinks.PATTERNS for path in sorted(dev.glob(pattern))]
    nodes = [node for node in found if node is not None]
    if ahead:
        gpus = sum(1 for _ in pci.list_displays(root, _NVIDIA))
        nodes += charlinks.expected(gpus, dict(driver.list_majors(root)))
    folder = dev / "char"
    links = {path.name: _link(path) for path in folder.iterdir()} if folder.is_dir() else {}
    return charlinks.decide(nodes, links)


def _number(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


def _node(dev: Path, path: Path) -> charlinks.Node | None:
    number = None if path.is_symlink() else _number(path)
    return charlinks.Node(str(path.relative_to(dev)), *number) if number else None


def _link(path: Path) -> charlinks.Link:
    try:
        target = str(path.readlink())
    except OSError:
        return charlinks.Link(None, None)
    number = _number(path)
    return charlinks.Link(target, f"{number[0]}:{number[1]}" if number else None)


def apply(root: Path, decision: charlinks.Decision) -> None:
    """Make and remove links; idempotent.

    Raises: Unavailable (`CharLinkRefused`): the folder cannot be written.
    """
    folder = root / "dev" / "char"
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        for name, target in decision.make.items():
            partial = folder / f".{name}.fairlead"
            partial.unlink(missing_ok=True)
            partial.symlink_to(target)
            partial.replace(folder / name)
        for name in decision.remove:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        message = f"cannot write links in {folder}: {error.strerror}"
        raise errors.Unavailable(message, reason="CharLinkRefused", hint="run as root") from error


async def keep(
    root: Path, *, ahead: bool = False, meter: telemetry.Meter = telemetry.UNMETERED
) -> AsyncGenerator[charlinks.Decision, None]:
    """Bring the links up to date now and after every change below /dev, yielding what was done; never ends.

    Raises: Unavailable: as `apply`.
    """
    with asyncinotify.Inotify() as inotify:
        while True:
            meter.heartbeat("char links", _RESCAN_S + _HANGING_S)
            # Watch first, inspect second: what changes in between is reported again, not lost.
            for name in ("dev", "dev/nvidia-caps", "dev/nvidia-caps-imex-channels"):
                with contextlib.suppress(OSError):  # not there (yet); the watch of /dev reports it
                    inotify.add_watch(root / name, _MASK)
            decision = await asyncio.to_thread(inspect, root, ahead=ahead)
            if decision.make or decision.remove:
                await asyncio.to_thread(apply, root, decision)
                yield decision
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESCAN_S):
                    await inotify.get()


def find_place(root: Path, *, here: Path = Path("/")) -> Path | None:
    """Return the root below whose /dev the host's links are this process's to keep; None: nothing is to be done.

    Args: root: where this process sees the host's root.   here: its own root, in a container another one.
    """
    if not (root / "run/systemd/system").is_dir():  # as sd_booted(3)
        return None
    dev = here / "dev"
    try:
        is_the_hosts = dev.samefile(root / "dev")
    except OSError:
        return None
    return here if is_the_hosts and os.access(dev, os.W_OK) else None


async def serve(root: Path, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
    """Keep the links of the host whose root is seen at `root`, for ever; return at once where `find_place` says so.

    A folder that refuses is logged and left: containers start without the links, too.
    """
    place = await asyncio.to_thread(find_place, root)
    if place is None:
        return
    try:
        async with aclosing(keep(place, meter=meter)) as decisions:
            async for decision in decisions:
                count = len(decision.make) + len(decision.remove)
                telemetry.log.info("char links changed", path=str(place / "dev/char"), count=count)
    except errors.Unavailable as error:
        telemetry.log.warning("char links not kept", reason=error.reason, error=errors.sentence(error))
    except OSError as error:  # of inotify: no instance is left to this user
        telemetry.log.warning("char links not kept", reason="WatchRefused", error=str(error))

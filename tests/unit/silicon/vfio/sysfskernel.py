"""What Linux makes of writes to sysfs, on a made-up tree: functions move between drivers, resets are counted."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from fairlead.frozen import frozen
from fairlead.silicon.vfio import holder, writer
from tests.unit.silicon.vfio.pcitree import Tree

DEVICES = "sys/bus/pci/devices"


@frozen
class User:
    """A process that has devices open."""

    pid: int
    name: str = "qemu-system-x86"
    devices: tuple[holder.Number, ...] = ()
    doubt: str = ""


class Kernel:
    """A kernel with one driver of a vendor, and VFIO's."""

    def __init__(self, tree: Tree, *, native: str = "nvidia") -> None:
        self.tree, self.native = tree, native
        self.writes: list[str] = []
        """Every write as `NAME ADDRESS TEXT`, in order."""
        self.faults: dict[str, Exception | None] = {}
        """What a write ends in, by `NAME ADDRESS`; None: it is taken and does nothing."""
        self.resets: Counter[tuple[str, str]] = Counter()
        """How often a function was reset, by address and way."""
        self.users: tuple[User, ...] = ()
        self.looks = 0
        self.opened = 0

    def find_users(self, numbers: Collection[holder.Number]) -> Sequence[User]:
        """Return who has something open, or a doubt."""
        self.looks += 1
        return [one for one in self.users if one.doubt or set(one.devices) & set(numbers)]

    @contextlib.asynccontextmanager
    async def open_writer(self) -> AsyncIterator[writer.Writer]:
        """Give what writes."""
        self.opened += 1
        yield self

    async def begin(self) -> None:
        """Have nothing to start."""

    async def announce(self, writes: Sequence[writer.Write]) -> None:
        """Wait for each write."""

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        """React to one write."""
        assert limit_s > 0
        name = path.name
        at = text if name in {"drivers_probe", "unbind"} else path.parent.name
        self.writes.append(f"{name} {at} {text}")
        if f"{name} {at}" in self.faults:
            fault = self.faults[f"{name} {at}"]
            if fault is not None:
                raise fault
            return
        self._react(path, name, at, text)

    def _react(self, path: Path, name: str, at: str, text: str) -> None:
        if name == "driver_override":
            _replace(path, f"{text or '(null)'}\n")
        elif name == "unbind":
            if not path.parent.exists():
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            self.tree.bind(at, "")
        elif name == "drivers_probe":
            self._probe(at)
        elif name == "reset_method":
            if not set(text.split()) <= {"flr", "bus", "pm", "default"}:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            _replace(path, "flr bus\n" if text == "default" else f"{text}\n")
        elif name == "reset":
            self.resets[at, (path.parent / "reset_method").read_text().split()[0]] += 1
        else:
            raise AssertionError(f"{path} is not written")

    def _probe(self, at: str) -> None:
        folder = self.tree.folder(at)
        override = (folder / "driver_override").read_text().strip()
        wanted = self.native if override == "(null)" else override
        if not (folder / "driver").is_symlink() and (self.tree.root / "sys/bus/pci/drivers" / wanted).is_dir():
            self.tree.bind(at, wanted)

    def driver(self, address: str) -> str:
        """Return which driver has a function."""
        link = self.tree.folder(address) / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def override(self, address: str) -> str:
        """Return what a function's override says."""
        return (self.tree.folder(address) / "driver_override").read_text().strip()


def _replace(path: Path, text: str) -> None:
    """Write a file as the kernel takes a write: whole or not at all, also where the writer is killed."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.replace(path)

"""The tar that a container gives to `fairlead cp`: every field of its headers, and its bytes cut and damaged."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from fairlead.client import calls, transport
from fairlead.client.session import copying
from tests.fuzz import hostile
from tests.fuzz.doors.text import OURS
from tests.fuzz.harness import Door, Feed

_FRAME: Final = 4096
_OUTPUT: Final = b"\x01"
_DATA: Final = b"hello"
_MEMBERS: Final = {
    "members": [
        {"name": "results", "type": "5"},
        {"name": "results/a", "type": "0", "mode": 0o644, "mtime": 1.5, "uid": 7, "gid": 7, "uname": "x", "gname": "x"},
        {"name": "results/long", "type": "0", "pax": {"comment": "x", "SCHILY.xattr.user.x": "x", "atime": "1.5"}},
        {"name": "results/link", "type": "2", "link": "a"},
        {"name": "results/hard", "type": "1", "link": "results/a"},
        {"name": "results/last", "type": "0", "size": 5},
    ]
}


def encode(document: Any) -> bytes:
    """Pack members as a container may, with fields that tar has no place for in extended headers.

    Raises: ValueError, TypeError, AttributeError: no tar has such a value.
    """
    packed = bytearray()
    for row in document["members"]:
        member = tarfile.TarInfo(row.get("name", ""))
        member.type, member.linkname = row.get("type", "0").encode("latin-1"), row.get("link", "")
        for name in ("mode", "mtime", "uid", "gid", "uname", "gname"):
            setattr(member, name, row.get(name, getattr(member, name)))
        member.pax_headers = row.get("pax", {})
        member.size = row.get("size", len(_DATA) if member.isreg() else 0)
        try:
            packed += member.tobuf(tarfile.PAX_FORMAT)
        except (OverflowError, struct.error) as error:
            raise ValueError(str(error)) from error
        packed += _DATA.ljust(tarfile.BLOCKSIZE, b"\0") if member.isreg() else b""
    return bytes(packed) + bytes(2 * tarfile.BLOCKSIZE)


class _Session:
    """A connection on which a service sends these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def frames(self) -> Iterator[bytes | str]:
        for at in range(0, len(self._data), _FRAME):
            yield _OUTPUT + self._data[at : at + _FRAME]
        yield '{"exit_code": 0}'

    def send(self, frame: bytes | str) -> None:
        raise AssertionError(f"{len(frame)} bytes were sent to a container that gives")


class _Service(calls.Calls):
    def __init__(self, data: bytes) -> None:
        self._data = data

    @contextlib.contextmanager
    def connect(self, *_: Any) -> Iterator[transport.Session]:
        yield _Session(self._data)


@contextlib.asynccontextmanager
async def _received(folder: Path) -> AsyncIterator[Feed]:
    """Copy into a folder where a link leads out, as what is asked for and as what is in it."""
    outside = folder / "outside"
    outside.write_text("mine")

    async def feed(data: bytes) -> None:
        for path in ("/srv/results", "/srv/results/."):
            target = folder / "target"
            target.mkdir()
            (target / "there").symlink_to(outside)
            try:
                end = copying.End(path=path, container="box")
                await asyncio.to_thread(copying.copy_out, _Service(data), end, target)
            finally:
                _assert_kept(folder, outside)
                await asyncio.to_thread(shutil.rmtree, target)

    yield feed


def _assert_kept(folder: Path, outside: Path) -> None:
    """Nothing but files, folders and links is below the target, and nothing beside it was touched."""
    if outside.read_text() != "mine" or {one.name for one in folder.iterdir()} != {"outside", "target"}:
        raise AssertionError(f"written beside the target: {sorted(folder.iterdir())}")
    for path in (folder / "target").rglob("*"):
        if not (path.is_symlink() or path.is_dir() or path.is_file()):
            raise AssertionError(f"a node was made: {path}")
        if not path.is_symlink() and path.stat().st_mode & 0o7022:
            raise AssertionError(f"a file that others may write or become: {path}")


DOORS: Final = (
    Door(
        name="tar of a container",
        opened=_received,
        specimens=(("tar", _MEMBERS),),
        encode=encode,
        values=(*hostile.TEXTS, *(one for one in hostile.SHAPES if not isinstance(one.value, hostile.Raw))),
        binary=(("tar", encode({"members": _MEMBERS["members"][:3]})),),
        refusals=OURS,
        sample=150,
    ),
)

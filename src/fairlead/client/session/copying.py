"""Copies files into a container and out of it, as a stream of tar.

What a tenant packed is written with care: no member leaves the folder it is copied to, by its name or through a link,
and no device node is made.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from fairlead import errors
from fairlead.client import calls, transport
from fairlead.client.session import header, process, standstill

_CHUNK: Final = process.CHUNK
_UNTOLD_S: Final = standstill.LIMIT_S
"""How long a program that wrote to standard error may read nothing and not end, before it counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a copy."""

    path: str
    container: str = ""
    """Empty: it is a path of this machine."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Query parameters that say which container is meant: `namespace`, `container`."""


def check_ends(one: str, other: str) -> None:
    """Refuse a copy unless one end is a path of a container (with a colon before it) and one of this machine.

    Raises: Invalid (`CopyEnds`).
    """
    if one.startswith(":") == other.startswith(":"):
        message = f'of "{one}" and "{other}" one is a path of the container, with a colon before it'
        raise errors.Invalid(message, reason="CopyEnds", hint='cp("data", ":/data") copies in, cp(":/data", ".") out')


def rooted(path: str) -> str:
    """Return a path of a container as it is from / on."""
    return "/" + path.lstrip("/")


def _connected(
    service: calls.Calls, end: End, *, path: str, into: bool
) -> contextlib.AbstractContextManager[transport.Session]:
    params = [("path", path), ("into", str(into).lower()), *((key, value) for key, value in end.where.items() if value)]
    return service.connect(f"{calls.container_path(end.container)}/copy", params)


class _Received(io.RawIOBase):
    """The tar that a WebSocket carries, as a file to read; the far end's standard error is kept."""

    def __init__(self, connection: transport.Session) -> None:
        self._frames = connection.frames()
        self._rest = b""
        self.is_empty = True
        self.said = b""
        self.last: dict[str, object] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # tarfile and io pass a writable buffer
        while not self._rest:
            frame = next(self._frames, None)
            if frame is None:
                return 0
            if isinstance(frame, str):
                self.last = json.loads(frame)
            elif frame[:1] == process.ERRORS:
                self.said += frame[1:]
            else:
                self._rest = frame[1:]
                self.is_empty = False
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def finish(self, what: str) -> None:
        """Read to the end. Raises: what the service's problem says; Invalid (`CopyFailed`)."""
        while self.read(_CHUNK):
            pass
        _check(self.last, self.said, what)


def _check(last: dict[str, object] | None, said: bytes, what: str) -> None:
    """Raise the error in the closing frame of a copy, if it has one."""
    if code := process.exit_code(last):
        lines = said.decode(errors="replace").strip().splitlines()
        why = lines[-1].removeprefix("Error: ") if lines else f"it ended with {code}"
        raise errors.Invalid(f"cannot copy {what}: {why}", reason="CopyFailed", hint="is the path there?")


def copy_out(service: calls.Calls, source: End, target: Path | BinaryIO) -> None:
    """Copy a path of a container to a path of this machine, or as a tar into a file that is open.

    Raises: Invalid: `CopyUnsafe`, `CopyFailed`; what the service's problem says; Unavailable (`ServiceBrokeOff`).
    """
    what = f"{source.container}:{source.path}"
    with _connected(service, source, path=source.path, into=False) as connection:
        received, is_whole = _Received(connection), True
        if isinstance(target, Path):
            is_whole = _extract(cast("IO[bytes]", received), target, source)
        else:
            while data := received.read(_CHUNK):
                target.write(data)
            target.flush()
        received.finish(what)
    if not is_whole and not received.is_empty:
        message = f"what came of {what} is not a whole archive; what was written of it stays"
        raise errors.Invalid(message, reason="CopyFailed", hint=f"fairlead cp {what} - | tar -t shows where it ends")


def _extract(data: IO[bytes], target: Path, source: End) -> bool:
    """Write a tar's members below a folder, or as the target itself where it is not there.

    One thing was asked for by its name, and nothing beside it is written; it gets the name that it was asked for by,
    whatever the container calls it. A path that ends in `.` or `/` asks for what is in a folder.

    Returns: whether the tar came to its end.
    Raises:  Invalid (`CopyUnsafe`): a member would leave the folder, or was not asked for; (`CopyFailed`): it cannot be
             written.
    """
    what, asked = f"{source.container}:{source.path}", _base(source.path)
    root: str | None = None
    try:
        into_folder = target.is_dir()
        name = asked if into_folder else target.name
        folder = target if into_folder or not asked else target.parent
        with tarfile.open(fileobj=data, mode="r|", tarinfo=header.Header) as archive:
            # Newer Pythons ask for one of their own filters; Debian 12's Python has none, and `_danger` does the work.
            archive.extraction_filter = lambda member, _path: member
            for member in archive:
                member.name = member.name.lstrip("/").removeprefix("./").rstrip("/")
                if asked:
                    root = _head(member.name) if root is None else root
                    why = _rename(member, root, name)
                elif member.name in {"", "."}:
                    continue
                else:
                    folder.mkdir(exist_ok=True)
                    why = ""
                if why := why or _danger(member, folder):
                    message = f"{what} holds what would leave {folder}: {member.name} {why}"
                    raise errors.Invalid(message, reason="CopyUnsafe", hint=f"fairlead cp {what} - | tar -t lists it")
                archive.extract(_own(member), folder)
    except tarfile.TarError:
        return False  # the far end's closing frame may say why
    except OSError as error:
        message = f"cannot write {error.filename or target}: {error.strerror}"
        raise errors.Invalid(message, reason="CopyFailed", hint="is the folder there, and yours to write?") from error
    # a NUL in a name, a time of the year 300,000, a second name of a file that is not there
    except (ValueError, OverflowError, KeyError) as error:
        message = f"cannot write {target}: {what} holds what no file system takes: {error.args[0]}"
        raise errors.Invalid(message, reason="CopyFailed", hint="the container's tar is damaged, or lies") from error
    return True


def _base(path: str) -> str:
    """Return the name of what is asked for; empty where it is what is in a folder."""
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name in {".", ".."} else name


def _head(name: str) -> str:
    return name.partition("/")[0]


def _rename(member: tarfile.TarInfo, root: str, name: str) -> str:
    """Give a member, and what a hard link names, the root's new name; return what is wrong, empty: nothing."""
    if _head(member.name) != root:
        return "was not asked for"
    if root not in {".", ".."}:
        member.name = name + member.name[len(root) :]
        linked = member.linkname.lstrip("/").removeprefix("./")
        if member.islnk() and _head(linked) == root:
            member.linkname = name + linked[len(root) :]
    return ""


def _danger(member: tarfile.TarInfo, folder: Path) -> str:
    """Return why a member may not be written; empty: it may.

    Nothing is written through a link, whether an earlier member made it or it was there before, so the target of a link
    need not be checked.
    """
    member.name = member.name.lstrip("/")
    parts = Path(member.name).parts
    if ".." in parts:
        return "goes up by its name"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is a device, a pipe or a socket"
    is_link = member.issym() or member.islnk()
    # A link that is there already is replaced by a new one; anything else would be written through it.
    if any(path.is_symlink() for path in _down(folder, parts[:-1] if is_link else parts)):
        return "goes through a link"
    if is_link:
        target = os.path.normpath("/".join((*(parts[:-1] if member.issym() else ()), member.linkname)))
        if member.linkname.startswith("/") or target.split("/", 1)[0] == "..":
            return f"is a link to {member.linkname}"
        if member.islnk() and any(path.is_symlink() for path in _down(folder, Path(target).parts)):
            return f"is a link through another: {member.linkname}"
    return ""


def _down(folder: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    return (folder.joinpath(*parts[: count + 1]) for count in range(len(parts)))


def _own(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member owned by this user, without setuid, setgid, sticky and write bits for others."""
    member.uid, member.gid = os.getuid(), os.getgid()
    member.uname = member.gname = ""
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
    return member


@dataclass(frozen=True, slots=True)
class _Last:
    """The closing frame; None: the connection broke off."""

    word: dict[str, object] | None


Ends = queue.SimpleQueue["bytes | _Last | BaseException"]
"""The far end's standard error, b"" after each sent frame, its closing frame; or why no more input can be read here."""


class _Sent(io.RawIOBase):
    """A file to write whose bytes go to a WebSocket. It is written by a thread of its own, since writes block."""

    def __init__(self, connection: transport.Session, ends: Ends) -> None:
        self._connection, self._ends = connection, ends
        self.is_waiting = False
        """Whether the program is waited for: to take what is sent, or to end once it has all."""
        self.is_over = False
        """Whether the program is not waited for any more."""
        self.failure: BaseException | None = None
        """Why not all could be sent."""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # bytes are all that is written here
        for start in range(0, len(data), _CHUNK):
            self._send(bytes(data[start : start + _CHUNK]))
            self.is_waiting = False
        return len(data)

    def end(self) -> None:
        """Say that this is all."""
        self._send(process.END_OF_INPUT)

    def _send(self, frame: bytes | str) -> None:
        if self.is_over:
            raise _Over
        self.is_waiting = True
        self._connection.send(frame)
        self._ends.put(b"")


class _Over(Exception):
    """The program has ended: nothing more is sent."""


def copy_in(
    service: calls.Calls,
    source: str | BinaryIO,
    target: End,
    *,
    keeps_owners: bool = False,
    stands: Callable[[], None] = lambda: None,
) -> None:
    """Copy a path of this machine, or a tar that an open file holds, to a path of a container.

    Args:   keeps_owners: of what is copied; else it is root's.   stands: called once where nothing moves any more.
    Raises: Invalid (`CopyFailed`); what the service's problem says; Unavailable (`ServiceBrokeOff`).
    """
    what, folder, name = "a tar", target.path, ""
    if isinstance(source, str):
        what = source
        folder, name = _placed(service, source, target)
    with _connected(service, target, path=folder, into=True) as connection:
        ends: Ends = queue.SimpleQueue()
        sent = _Sent(connection, ends)

        def send() -> None:
            try:
                if isinstance(source, str):
                    _pack(source, name, sent, keeps_owners=keeps_owners)
                else:
                    while data := source.read(_CHUNK):
                        sent.write(data)
                sent.end()
            except BaseException as error:  # noqa: BLE001 it is raised where the end is awaited
                sent.failure = error
                ends.put(error)

        threading.Thread(target=_hear, args=(connection, ends), name="copy", daemon=True).start()
        sender = threading.Thread(target=send, name="copy-input", daemon=True)
        sender.start()
        try:
            last, said = _await_last(ends, sent, stands)
            if last is not None and not last.get("exit_code", 1):
                sender.join()  # it is a copy only if all of it was read and sent
                if sent.failure is not None:
                    raise sent.failure
        finally:
            sent.is_over = True
    _check(last, said, f"{what} to {target.container}:{target.path}")


def _pack(source: str, name: str, sent: _Sent, *, keeps_owners: bool) -> None:
    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        if not keeps_owners:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
        return member

    try:
        with tarfile.open(fileobj=cast("IO[bytes]", sent), mode="w|", format=tarfile.PAX_FORMAT) as archive:
            archive.add(source, name, filter=owned)
    except OSError as error:
        message = f"cannot read {error.filename or source}: {error.strerror}"
        raise errors.Invalid(message, reason="CopyFailed", hint="is it there, and yours to read?") from error


def _placed(service: calls.Calls, source: str, target: End) -> tuple[str, str]:
    """Return the folder of the container that receives a source, and the name it gets there, as cp(1) has it."""
    if not os.path.lexists(source):
        message = f"cannot read {source}: no such file or directory"
        raise errors.Invalid(message, reason="CopyFailed", hint="is it there, and yours to read?")
    if source.endswith("/."):
        return target.path, "."
    own = Path(os.path.abspath(source)).name  # noqa: PTH100 a link is copied under its own name
    if target.path.endswith("/") or _is_folder(service, target):
        return target.path, own
    folder, _, name = target.path.rpartition("/")
    return folder or "/", name or own


def _is_folder(service: calls.Calls, end: End) -> bool:
    """Return whether a path of the container is a folder, by the first member of its tar."""
    with _connected(service, end, path=end.path, into=False) as connection:
        received = _Received(connection)
        with (
            contextlib.suppress(tarfile.ReadError),
            tarfile.open(fileobj=cast("IO[bytes]", received), mode="r|", tarinfo=header.Header) as found,
        ):
            first = next(iter(found), None)
            return first is not None and first.isdir()
        if received.last and "problem" in received.last:
            _check(received.last, received.said, end.path)
    return False


def _hear(connection: transport.Session, ends: Ends) -> None:
    """Pass on what the far end says of errors, and its last word."""
    for frame in connection.frames():
        if isinstance(frame, str):
            ends.put(_Last(json.loads(frame)))
            return
        ends.put(frame[1:])
    ends.put(_Last(None))


def _await_last(ends: Ends, sent: _Sent, stands: Callable[[], None]) -> tuple[dict[str, object] | None, bytes]:
    """Return the closing frame and all standard error before it.

    API servers do not always report the end of a program that left its input unread (`standstill`). A program that
    wrote to standard error, and then neither reads nor writes, counts as failed; one that wrote nothing may be at work.
    """
    said, was_told = b"", False
    while True:
        try:
            found = ends.get(timeout=_UNTOLD_S)
        except queue.Empty:
            if said and sent.is_waiting:
                return {"exit_code": 1}, said.rstrip() + b" (how it ended was not told)"
            if sent.is_waiting and not was_told:
                stands()
                was_told = True
            continue
        match found:
            case _Last():
                return found.word, said
            case BaseException():
                raise found
            case _:
                said += found

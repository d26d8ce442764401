"""Names accounts and other engines' containers from the machine's files, within a time.

An account may be of a directory service that does not answer, and a rootless engine's files lie in a home that may be
on a server that is away: so each look-up runs in a thread of its own, is waited for shortly, and is known from then on.
What files of users say is bounded and made printable; a file that is no plain one, or not its user's, is not read.
Source: passwd(5); containers/storage containers.json; moby daemon/container config.v2.json; dockerd `data-root`.
"""

from __future__ import annotations

import concurrent.futures
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from fairlead import daemonthread
from fairlead.kernel import processid
from fairlead.wire.text import typedjson
from fairlead.wire.text.cgroupplace import Place

_WAIT_S: Final = 0.2
_MOST_KNOWN: Final = 1024
_MOST_WAITING: Final = 4
_MOST_BYTES: Final = 8 << 20
_LONGEST_NAME: Final = 128
_KEPT_S: Final = 300.0
"""How long a name counts: an account or container may be renamed."""
_SHORT_ID: Final = 12
_GRAPHROOT: Final = re.compile(rb'^\s*graphroot\s*=\s*"([^"\n]{1,4096})"', re.MULTILINE)


class _Stored(msgspec.Struct, frozen=True):
    id: str
    names: tuple[str, ...] = ()


class _Docker(msgspec.Struct, frozen=True, rename="pascal"):
    name: str = ""


class _Daemon(msgspec.Struct, frozen=True, rename="kebab"):
    data_root: str = "/var/lib/docker"


class Names:
    """What accounts and containers are called."""

    def __init__(self, root: Path, *, wait_s: float = _WAIT_S) -> None:
        """Know nothing yet. Args: root: of the machine.   wait_s: longest wait for one name that is not known yet."""
        self._root, self._wait_s = root, wait_s
        self._known: dict[object, tuple[float, str]] = {}
        self._waiting: dict[object, concurrent.futures.Future[str]] = {}

    def account(self, uid: int) -> str:
        """Return an account's name, `uid 1000` where it has none that is known by now."""
        return self._name(uid, lambda: _account(self._root, uid)) or f"uid {uid}"

    def container(self, place: Place, uid: int) -> str:
        """Return a container in words, by its id where its name is not known; empty: it is none."""
        if not place.container:
            return ""
        found = self._name(place, lambda: _container(self._root, place, uid))
        return f"{place.engine} container {found or place.container[:_SHORT_ID]}"

    def _name(self, key: object, find: Callable[[], str]) -> str:
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < _KEPT_S:
            return known[1]
        future = self._waiting.get(key)
        if future is None:
            if len(self._waiting) >= _MOST_WAITING:
                return known[1] if known else ""
            try:
                future = daemonthread.start("neighbours: name", find, ended=lambda: None)
            except RuntimeError:
                return ""
            self._waiting[key] = future
        try:
            found = future.result(timeout=self._wait_s)
        except TimeoutError:
            return known[1] if known else ""
        except Exception:  # noqa: BLE001  (a name service's own: the program is shown without a name)
            found = ""
        self._waiting.pop(key, None)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = (time.monotonic(), found)
        return found


def _account(root: Path, uid: int) -> str:
    for line in _read(root / "etc/passwd").decode(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2] == str(uid):
            return _plain(fields[0])
    if root != Path("/"):
        return ""
    try:
        return _plain(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return ""


def _container(root: Path, place: Place, uid: int) -> str:
    homes = _homes(root, uid)
    if place.engine == "docker":
        return next(filter(None, (_docker(folder, place.container) for folder in _docker_roots(root, homes))), "")
    if place.engine == "podman":
        return next(filter(None, (_podman(folder, place.container) for folder in _podman_roots(root, homes))), "")
    return ""


def _homes(root: Path, uid: int) -> list[Path]:
    """Return the home of an account, whose rootless engine may have the container."""
    if uid == 0:
        return []
    for line in _read(root / "etc/passwd").decode(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2] == str(uid) and fields[5].startswith("/"):
            return [root / fields[5].lstrip("/")]
    return []


def _docker_roots(root: Path, homes: list[Path]) -> Iterator[Path]:
    yield from (home / ".local/share/docker" for home in homes)
    try:
        named = typedjson.decode(_read(root / "etc/docker/daemon.json") or b"{}", type=_Daemon).data_root
    except msgspec.MsgspecError:
        named = ""
    for folder in dict.fromkeys((named, "/var/lib/docker")):
        if folder.startswith("/"):
            yield root / folder.lstrip("/")


def _docker(folder: Path, container: str) -> str:
    try:
        found = typedjson.decode(_read(folder / "containers" / container / "config.v2.json") or b"{}", type=_Docker)
    except msgspec.MsgspecError:
        return ""
    return _plain(found.name.removeprefix("/"))


def _podman_roots(root: Path, homes: list[Path]) -> Iterator[Path]:
    yield from (home / ".local/share/containers/storage" for home in homes)
    named = _GRAPHROOT.search(_read(root / "etc/containers/storage.conf"))
    folders = (os.fsdecode(named.group(1)) if named else "", "/var/lib/containers/storage")
    yield from (root / folder.lstrip("/") for folder in dict.fromkeys(folders) if folder.startswith("/"))


def _podman(folder: Path, container: str) -> str:
    for driver in ("overlay", "vfs", "btrfs", "zfs"):
        for name in ("containers.json", "volatile-containers.json"):
            try:
                stored = typedjson.decode(
                    _read(folder / f"{driver}-containers" / name) or b"[]", type=tuple[_Stored, ...]
                )
            except msgspec.MsgspecError:
                continue
            found = next((one.names for one in stored if one.id == container), ())
            if found:
                return _plain(found[0])
    return ""


def _read(path: Path) -> bytes:
    """Return a plain file's content; empty: there is none, it is no plain file, or it is too large."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return b""
        return file.read(_MOST_BYTES)


def _plain(text: str) -> str:
    return processid.plain(text)[:_LONGEST_NAME]

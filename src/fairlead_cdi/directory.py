"""Spec folders of a host: scanned into a registry of devices, with every file's error kept beside it.

Folders are given in rising priority; a device in a later folder shadows its namesakes in earlier ones. Two files of
one folder that define the same device are in conflict and neither counts. A bad file disables itself only, and an
unreadable folder hides itself only. The reference library is harsher on two points, which `mimic_go` reproduces for
comparison: a conflict deletes a valid override in a higher folder too, and an unreadable folder hides all later ones.

A scan can be handed the registry of an earlier one: files whose identity, size and times are unchanged are not read
again. No pathlib and no YAML here: this is on a container's start.
Source: CDI SPEC.md "CDI JSON Specification", pkg/cdi/{cache,spec-dirs}.go.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead_cdi import names, parse
from fairlead_cdi import spec as cdi

DEFAULT_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
"""Static specs, then generated ones."""
JSON_ONLY: Final[Mapping[str, parse.Decoder]] = {".json": parse.decode_json}
SUFFIXES: Final = (".json", ".yaml")
MAX_FILE_BYTES: Final = 16 * 2**20
_SHOWN: Final = 8
"""Names listed in a hint."""
_SETTLED_NS: Final = 100_000_000
"""A file changed this recently may change again within one tick of its clock: its fingerprint proves nothing yet."""

Fingerprint = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """One spec file as it was read."""

    path: str
    priority: int
    """Position of its folder in the list."""
    spec: cdi.Spec | None
    """None: it could not be used, see `error`."""
    error: errors.FairleadError | None = None
    fingerprint: Fingerprint | None = None
    """Device, inode, size, change and modification time; None: do not trust it next time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One device that was asked for, and the spec file that defines it."""

    name: str
    """Fully qualified."""
    device: cdi.Device
    file: SpecFile

    @property
    def spec(self) -> cdi.Spec:
        """The spec of the file; a device is only ever taken from a file that has one."""
        if self.file.spec is None:
            raise AssertionError(self.file.path)
        return self.file.spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What one scan of the spec folders found."""

    directories: tuple[str, ...]
    files: tuple[SpecFile, ...] = ()
    """In folder order, then by name; bad ones included."""
    devices: Mapping[str, Resolved] = field(default_factory=dict)
    """By fully qualified name, in name order; conflicts left out."""
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Devices defined more than once at one priority: name to the paths concerned."""
    directory_errors: Mapping[str, errors.FairleadError] = field(default_factory=dict)
    mimic_go: bool = False
    """How conflicts and unreadable folders were judged."""

    @property
    def problems(self) -> dict[str, tuple[errors.FairleadError, ...]]:
        """Everything wrong, by path of file or folder, in path order."""
        found: dict[str, list[errors.FairleadError]] = {}
        for path, error in self.directory_errors.items():
            found.setdefault(path, []).append(error)
        for file in self.files:
            if file.error is not None:
                found.setdefault(file.path, []).append(file.error)
        for name, paths in self.conflicts.items():
            for path in paths:
                others = ", ".join(other for other in paths if other != path) or "the same file"
                message = f'device "{name}" is defined in {others} too'
                found.setdefault(path, []).append(errors.ProtocolError(message, reason="DeviceConflict", device=name))
        return {path: tuple(found[path]) for path in sorted(found)}

    def resolve(self, wanted: Iterable[str]) -> tuple[Resolved, ...]:
        """Look devices up, all or nothing, each once, in the order first asked for.

        Raises: NotFound: at least one is not there; the message names all of them and the hint says why or what is
                near.   Invalid: a name is not fully qualified and nothing of that name is there.
        """
        unique = tuple(dict.fromkeys(wanted))
        missing = [name for name in unique if name not in self.devices]
        if missing:
            raise self._unresolvable(missing)
        return tuple(self.devices[name] for name in unique)

    def _unresolvable(self, missing: Sequence[str]) -> errors.FairleadError:
        for name in missing:
            names.parse_qualified_name(name)
        message = f"no CDI spec defines {', '.join(missing)}"
        hint = "; ".join(dict.fromkeys(self._reason(name) for name in missing))
        return errors.NotFound(message, reason="DeviceUnresolvable", hint=hint, devices=list(missing))

    def _reason(self, name: str) -> str:
        if name in self.conflicts:
            return f"{name} is in conflict between {' and '.join(dict.fromkeys(self.conflicts[name]))}"
        kind = name.partition("=")[0]
        siblings = [item.device.name for item in self.devices.values() if item.name.partition("=")[0] == kind]
        if siblings:
            more = f" and {len(siblings) - _SHOWN} more" if len(siblings) > _SHOWN else ""
            return f"{kind} offers {', '.join(siblings[:_SHOWN])}{more}"
        bad = [file.path for file in self.files if file.error is not None]
        if bad or self.directory_errors:
            return f"not usable: {', '.join([*self.directory_errors, *bad])}"
        return f"{len(self.devices)} devices in {', '.join(self.directories)}"


def scan(
    directories: Iterable[str | os.PathLike[str]] = DEFAULT_DIRECTORIES,
    *,
    decoders: Mapping[str, parse.Decoder] = JSON_ONLY,
    previous: Registry | None = None,
    mimic_go: bool = False,
) -> Registry:
    """Read all spec folders now. Never raises for what it finds there: see `Registry.problems`.

    Args:    directories: in rising priority; missing ones are fine; none at all means the default ones.
             decoders: by suffix; a spec file of another known suffix is listed with an error (`yamlfile.DECODERS`
             reads both).   previous: files unchanged since that scan are not read again.
             mimic_go: reproduce the reference library's loss of overrides and of later folders.
    """
    folders = tuple(os.fspath(item) for item in directories) or DEFAULT_DIRECTORIES
    known = {(file.path, file.priority): file for file in previous.files} if previous else {}
    reader = _Reader(decoders=decoders, known=known, now_ns=time.time_ns())
    files: list[SpecFile] = []
    broken: dict[str, errors.FairleadError] = {}
    for priority, folder in enumerate(folders):
        try:
            paths = _spec_paths(folder)
        except OSError as error:
            message = f"cannot read folder {folder}: {error.strerror}"
            broken[folder] = errors.Unavailable(message, reason="SpecFolderUnreadable", path=folder)
            if mimic_go:
                break
            continue
        files.extend(file for path in paths if (file := reader.read(path, priority)) is not None)
    if previous is not None and _is_same(previous, folders, files, broken, mimic_go=mimic_go):
        return previous
    devices, conflicts = _index(files, mimic_go=mimic_go)
    return Registry(
        directories=folders,
        files=tuple(files),
        devices=devices,
        conflicts=conflicts,
        directory_errors=broken,
        mimic_go=mimic_go,
    )


def _is_same(
    previous: Registry,
    folders: tuple[str, ...],
    files: Sequence[SpecFile],
    broken: Mapping[str, errors.FairleadError],
    *,
    mimic_go: bool,
) -> bool:
    """Whether nothing at all was read anew: then the earlier index still holds."""
    if (previous.directories, previous.mimic_go, len(previous.files)) != (folders, mimic_go, len(files)):
        return False
    no_errors = not broken and not previous.directory_errors
    return no_errors and all(old is new for old, new in zip(previous.files, files, strict=True))


def _spec_paths(folder: str) -> list[str]:
    """List spec files of one folder by name; symbolic links count as files. Raises: OSError: unreadable."""
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if entry.name.endswith(SUFFIXES)]
            return sorted(entry.path for entry in found if not entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _index(files: Sequence[SpecFile], *, mimic_go: bool) -> tuple[dict[str, Resolved], dict[str, tuple[str, ...]]]:
    """Decide for each name which file defines it: the highest folder wins, a tie there means nobody does."""
    claims: dict[str, list[Resolved]] = {}
    for file in files:
        if file.spec is not None:
            for device in file.spec.devices:
                name = f"{file.spec.kind}={device.name}"
                claims.setdefault(name, []).append(Resolved(name=name, device=device, file=file))
    devices: dict[str, Resolved] = {}
    conflicts: dict[str, tuple[str, ...]] = {}
    for name in sorted(claims):
        tied = _tied(claims[name])
        if tied:
            conflicts[name] = tuple(claim.file.path for claim in tied)
        winner = claims[name][-1]
        is_disputed = tied and (mimic_go or winner.file.priority == tied[-1].file.priority)
        if not is_disputed:
            devices[name] = winner
    return devices, conflicts


def _tied(claims: Sequence[Resolved]) -> list[Resolved]:
    """Return the claims that share their priority with another; claims come in rising priority."""
    if len(claims) == 1:
        return []
    counts: dict[int, int] = {}
    for claim in claims:
        counts[claim.file.priority] = counts.get(claim.file.priority, 0) + 1
    return [claim for claim in claims if counts[claim.file.priority] > 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads spec files of one scan."""

    decoders: Mapping[str, parse.Decoder]
    known: Mapping[tuple[str, int], SpecFile]
    now_ns: int

    def read(self, path: str, priority: int) -> SpecFile | None:
        """Read one file, or take it over from the earlier scan; None: it vanished meanwhile."""
        try:
            if self._is_unchanged(path, priority):
                return self.known[path, priority]
            data, fingerprint = self._load(path)
        except FileNotFoundError:
            # A name that is still there leads nowhere.
            is_link = os.path.islink(path)  # noqa: PTH114 - no pathlib on a container's start
            return self._failed(path, priority, "broken symbolic link", "SpecFileUnreadable") if is_link else None
        except (OSError, ValueError) as error:
            return self._failed(path, priority, str(error), "SpecFileUnreadable")
        decode = self.decoders.get(path[path.rindex(".") :])
        if decode is None:
            return self._failed(path, priority, "no decoder for this suffix was given", "SpecFormatUnread")
        try:
            spec = parse.parse_spec(data, decode=decode)
        except errors.ProtocolError as error:
            return SpecFile(path=path, priority=priority, spec=None, error=error, fingerprint=fingerprint)
        return SpecFile(path=path, priority=priority, spec=spec, fingerprint=fingerprint)

    def _is_unchanged(self, path: str, priority: int) -> bool:
        old = self.known.get((path, priority))
        if old is None or old.fingerprint is None:
            return False
        return old.fingerprint == self._fingerprint(os.stat(path))  # noqa: PTH116 - no pathlib on a container's start

    def _failed(self, path: str, priority: int, why: str, reason: str) -> SpecFile:
        error = errors.ProtocolError(f"cannot read {path}: {why}", reason=reason, path=path)
        return SpecFile(path=path, priority=priority, spec=None, error=error)

    def _load(self, path: str) -> tuple[bytes, Fingerprint | None]:
        # O_NONBLOCK: a named pipe in a spec folder must not hold a container's start.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("not a regular file")
            if found.st_size > MAX_FILE_BYTES:
                raise ValueError(f"{found.st_size} bytes, at most {MAX_FILE_BYTES} are read")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(MAX_FILE_BYTES), self._fingerprint(found)
        finally:
            os.close(handle)

    def _fingerprint(self, found: os.stat_result) -> Fingerprint | None:
        if abs(self.now_ns - found.st_ctime_ns) < _SETTLED_NS:
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mtime_ns)

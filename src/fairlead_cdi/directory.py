"""Reads every spec file of a host into a registry of devices, which resolves names and injects them.

Folders are given in rising priority: a device in a later folder shadows its namesakes in earlier ones. Two files of one
folder that define the same device are in conflict, and neither counts. A bad file disables only itself, and an
unreadable folder hides only itself; `Registry.problems` has every error by path. The Go library is harsher on two
points, which `mimic_go` reproduces for comparison: a conflict also deletes a valid override in a higher folder, and an
unreadable folder hides all later ones.

A scan can take the registry of an earlier scan: it does not read files again whose identity, size and times are
unchanged. YAML is read with PyYAML where that is installed; the module that needs it is loaded when the first YAML file
is read. Without PyYAML each YAML file is a problem with reason `SpecFormatUnread`. No pathlib is used here, because
this code runs at a container's start.
Source: CDI SPEC.md "CDI JSON Specification", pkg/cdi/{cache,spec-dirs}.go.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead_cdi import errors, names, parse
from fairlead_cdi import inject as injection
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node

DEFAULT_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
"""Static specs, then generated ones."""
UNREAD: Final = "SpecFormatUnread"
"""Reason of the error of a spec file that no decoder could read."""


def decode_yaml(data: bytes) -> object:
    """Decode the first YAML document of a file; PyYAML is loaded now, so that programs that read JSON go without.

    Raises: DocumentError: PyYAML is not installed, or as there.
    """
    try:
        from fairlead_cdi import yamlfile
    except ImportError as error:
        hint = "pip install 'fairlead-cdi[yaml]', or write the spec as JSON"
        message = "YAML specs are read with PyYAML, which is not installed"
        raise errors.DocumentError(message, reason=UNREAD, hint=hint) from error
    return yamlfile.decode_yaml(data)


DECODERS: Final[Mapping[str, parse.Decoder]] = {".json": parse.decode_json, ".yaml": decode_yaml}
"""Decoders by suffix: JSON, and YAML where PyYAML is installed."""
JSON_ONLY: Final[Mapping[str, parse.Decoder]] = {".json": parse.decode_json}
"""Decoders by suffix: JSON; YAML files are listed with an error."""
SUFFIXES: Final = (".json", ".yaml")
"""Engines read files of these suffixes and no others."""
MAX_FILE_BYTES: Final = 16 * 2**20
"""Larger files are not read."""
_SHOWN: Final = 8
"""Names listed in a hint."""
_SETTLED_NS: Final = 100_000_000
"""A file changed this recently may change again within one tick of its clock: its fingerprint proves nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What one scan of the spec folders found: `Registry.default()`, or `scan` for folders of your own."""

    directories: tuple[str, ...]
    files: tuple[cdi.SpecFile, ...] = ()
    """In folder order, then by name; bad ones included."""
    devices: Mapping[str, cdi.Resolved] = field(default_factory=dict)
    """By fully qualified name, in name order; conflicts left out."""
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Devices defined more than once at one priority: name to the paths concerned."""
    directory_errors: Mapping[str, errors.CDIError] = field(default_factory=dict)
    mimic_go: bool = False
    """How conflicts and unreadable folders were judged."""

    @property
    def problems(self) -> dict[str, tuple[errors.CDIError, ...]]:
        """Everything wrong, by path of file or folder, in path order."""
        found: dict[str, list[errors.CDIError]] = {}
        for path, error in self.directory_errors.items():
            found.setdefault(path, []).append(error)
        for file in self.files:
            if file.error is not None:
                found.setdefault(file.path, []).append(file.error)
        for name, paths in self.conflicts.items():
            for path in paths:
                others = ", ".join(other for other in paths if other != path) or "the same file"
                message = f'device "{name}" is defined in {others} too'
                found.setdefault(path, []).append(errors.DocumentError(message, reason="DeviceConflict", device=name))
        return {path: tuple(found[path]) for path in sorted(found)}

    @classmethod
    def default(cls) -> Registry:
        """Scan the folders that engines read, `DEFAULT_DIRECTORIES`, JSON and YAML. Never raises for what is there."""
        return scan(())

    def inject(
        self, config: dict[str, Any], wanted: Iterable[str], *, stat: node.StatNode = node.stat_node
    ) -> dict[str, Any]:
        """Return the runtime spec with these devices in it; the given one is not changed.

        Args:    config: a decoded config.json; unknown fields are kept.   wanted: qualified names, in the order in
                 which their edits apply; a repeated name counts once.   stat: reads one host path now.
        Raises:  DeviceNotFound, InvalidRequest, WrongType: as `resolve`.   HostError, DocumentError: as
                 `inject.inject`.
        """
        return injection.inject(config, self.resolve(wanted), stat=stat)

    def explain(
        self, config: dict[str, Any], wanted: Iterable[str], *, stat: node.StatNode = node.stat_node
    ) -> tuple[injection.Change, ...]:
        """Return what `inject` would change, in the order of application. Args, Raises: as `inject`."""
        return injection.explain(config, self.resolve(wanted), stat=stat)

    def resolve(self, wanted: Iterable[str]) -> tuple[cdi.Resolved, ...]:
        """Look devices up, all or none, each once, in the order in which they were first asked for.

        Raises: DeviceNotFound: at least one name is not defined; the message has all of them, the hint says why or
                what is near.   InvalidRequest: a name is not fully qualified and no device has it.
                WrongType: a single text instead of a list of names.
        """
        errors.refuse_text(wanted, "the device names")
        unique = tuple(dict.fromkeys(wanted))
        missing = [name for name in unique if name not in self.devices]
        if missing:
            raise self._unresolvable(missing)
        return tuple(self.devices[name] for name in unique)

    def _unresolvable(self, missing: Sequence[str]) -> errors.CDIError:
        for name in missing:
            names.parse_qualified_name(name)
        message = f"no CDI spec defines {', '.join(missing)}"
        reasons = [*(self._reason(name) for name in missing), *self._unusable()]
        return errors.DeviceNotFound(
            message, reason="DeviceUnresolvable", hint="; ".join(dict.fromkeys(reasons)), devices=list(missing)
        )

    def _unusable(self) -> list[str]:
        """Say which files and folders were left out: what is missing may be in there."""
        paths = [*self.directory_errors, *(file.path for file in self.files if file.error is not None)]
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        return [f"not usable: {', '.join(paths[:_SHOWN])}{more}"] if paths else []

    def _reason(self, name: str) -> str:
        if name in self.conflicts:
            return f"{name} is in conflict between {' and '.join(dict.fromkeys(self.conflicts[name]))}"
        kind = name.partition("=")[0]
        siblings = [item.device.name for item in self.devices.values() if item.name.partition("=")[0] == kind]
        if siblings:
            more = f" and {len(siblings) - _SHOWN} more" if len(siblings) > _SHOWN else ""
            return f"{kind} offers {', '.join(siblings[:_SHOWN])}{more}"
        return f"{len(self.devices)} devices in {', '.join(self.directories)}"


def scan(
    directories: Iterable[str | os.PathLike[str]] = DEFAULT_DIRECTORIES,
    *,
    decoders: Mapping[str, parse.Decoder] = DECODERS,
    previous: Registry | None = None,
    mimic_go: bool = False,
) -> Registry:
    """Read all spec folders now. Never raises for what is in them: see `Registry.problems`.

    Args:    directories: in rising priority; missing ones are left out, an empty list means `DEFAULT_DIRECTORIES`.
             decoders: by suffix; a spec file of another suffix of `SUFFIXES` is listed with an error.
             previous: files that are unchanged since that scan are not read again.
             mimic_go: reproduce the Go library's loss of overrides and of later folders.
    Raises:  WrongType: a single path instead of a list of folders.
    """
    folders = folders_of(directories)
    known = {(file.path, file.priority): file for file in previous.files} if previous else {}
    reader = _Reader(decoders=decoders, known=known, now_ns=time.time_ns())
    files: list[cdi.SpecFile] = []
    broken: dict[str, errors.CDIError] = {}
    for priority, folder in enumerate(folders):
        try:
            paths = _spec_paths(folder)
        except (OSError, ValueError) as error:
            message = f"cannot read folder {folder}: {getattr(error, 'strerror', None) or error}"
            broken[folder] = errors.HostError(message, reason="SpecFolderUnreadable", path=folder)
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


def folders_of(directories: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return folders as text; `DEFAULT_DIRECTORIES` for an empty list. Raises: WrongType: not a list of paths."""
    errors.refuse_text(directories, "the folders")
    if isinstance(directories, os.PathLike):
        message = f"the folders must be a list, not the single path {directories!r:.200}"
        raise errors.WrongType(message, reason="ListExpected", hint="write [path]")
    folders = []
    for item in directories:
        if isinstance(item, bytes) or not isinstance(item, str | os.PathLike):
            raise errors.WrongType(f"a folder must be a path, not {item!r:.200}", reason="WrongType")
        folders.append(os.fspath(item))
    return tuple(folders) or DEFAULT_DIRECTORIES


def _is_same(
    previous: Registry,
    folders: tuple[str, ...],
    files: Sequence[cdi.SpecFile],
    broken: Mapping[str, errors.CDIError],
    *,
    mimic_go: bool,
) -> bool:
    """Whether no file was read anew: then the index of the earlier scan still holds."""
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


def _index(
    files: Sequence[cdi.SpecFile], *, mimic_go: bool
) -> tuple[dict[str, cdi.Resolved], dict[str, tuple[str, ...]]]:
    """Choose for each name the file that defines it: the highest folder wins, and a tie in it means no file does."""
    claims: dict[str, list[cdi.Resolved]] = {}
    for file in files:
        if file.spec is not None:
            for device in file.spec.devices:
                name = f"{file.spec.kind}={device.name}"
                claims.setdefault(name, []).append(cdi.Resolved(name=name, device=device, file=file))
    devices: dict[str, cdi.Resolved] = {}
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


def _tied(claims: Sequence[cdi.Resolved]) -> list[cdi.Resolved]:
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
    known: Mapping[tuple[str, int], cdi.SpecFile]
    now_ns: int

    def read(self, path: str, priority: int) -> cdi.SpecFile | None:
        """Read one file, or take it over from the earlier scan; None: it vanished meanwhile."""
        try:
            if self._is_unchanged(path, priority):
                return self.known[path, priority]
            data, fingerprint, owner = self._load(path)
        except FileNotFoundError:
            # A name that is still there leads nowhere.
            is_link = os.path.islink(path)  # noqa: PTH114 - no pathlib on a container's start
            return self._failed(path, priority, "broken symbolic link", "SpecFileUnreadable") if is_link else None
        except (OSError, ValueError) as error:
            return self._failed(path, priority, str(error), "SpecFileUnreadable")
        decode = self.decoders.get(path[path.rindex(".") :])
        if decode is None:
            return self._failed(path, priority, "no decoder is given for this suffix", UNREAD)
        try:
            spec = parse.parse_spec(data, decode=decode)
        except errors.DocumentError as error:
            return cdi.SpecFile(
                path=path, priority=priority, spec=None, error=error, fingerprint=fingerprint, owner=owner
            )
        return cdi.SpecFile(path=path, priority=priority, spec=spec, fingerprint=fingerprint, owner=owner)

    def _is_unchanged(self, path: str, priority: int) -> bool:
        old = self.known.get((path, priority))
        if old is None or old.fingerprint is None:
            return False
        return old.fingerprint == self._fingerprint(os.stat(path))  # noqa: PTH116 - no pathlib on a container's start

    def _failed(self, path: str, priority: int, why: str, reason: str) -> cdi.SpecFile:
        error = errors.DocumentError(f"cannot read {path}: {why}", reason=reason, path=path)
        return cdi.SpecFile(path=path, priority=priority, spec=None, error=error)

    def _load(self, path: str) -> tuple[bytes, cdi.Fingerprint | None, tuple[int, int]]:
        # O_NONBLOCK: a named pipe in a spec folder must not hold a container's start.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("not a regular file")
            if found.st_size > MAX_FILE_BYTES:
                raise ValueError(f"{found.st_size} bytes, at most {MAX_FILE_BYTES} are read")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(MAX_FILE_BYTES), self._fingerprint(found), (found.st_uid, found.st_mode)
        finally:
            os.close(handle)

    def _fingerprint(self, found: os.stat_result) -> cdi.Fingerprint | None:
        if abs(self.now_ns - found.st_ctime_ns) < _SETTLED_NS:
            return None
        return (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mtime_ns)

"""Resolves this machine's devices as its engine would: the same folders, the same rules, the same files.

Collecting reads the folders that the engine reads, and carries out a resolution of each device that the agent would
hand out, up to the device nodes, mounts and hooks that its edits name. Checking turns what failed into findings, equal
failures of several devices into one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead.cli.doctor.finding import Finding
from fairlead.plan.cdi import conflict
from fairlead.plan.pod import device
from fairlead.silicon import running
from fairlead.wire.cdi import stamp
from fairlead_cdi import directory, lint
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node

_EMPTY: Final[dict[str, Any]] = {"ociVersion": "1.0.2"}
_WRITABLE: Final = 0o022


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a resolution found."""

    engine: str = ""
    """Name and version of the engine; empty: not known, the default folders were read."""
    folders: tuple[str, ...] = directory.DEFAULT_DIRECTORIES
    """Where the engine looks, lowest priority first."""
    own_folder: Path
    """Where our specs are written."""
    is_read: bool = True
    """Whether the engine looks into our folder."""
    broken: tuple[tuple[str, str], ...] = ()
    """Files and folders that engines pass over, each with the error."""
    newer: tuple[tuple[str, str], ...] = ()
    """Files of a version that this engine does not read, each with the version."""
    open_to: tuple[str, ...] = ()
    """Files that others than root may change."""
    stale: tuple[str, ...] = ()
    """Files of another boot or driver, one line each."""
    gone: tuple[str, ...] = ()
    """Files of others that name what this host does not have, one line each."""
    conflicts: tuple[conflict.Conflict, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    """Devices that would not come into a container, each with the reason."""
    resolved: tuple[tuple[str, str], ...] = ()
    """Devices that would, each with the file that defines it."""
    undefined: tuple[str, ...] = ()
    """Devices that the setting `api.devices` lists and no spec defines."""
    withheld: int = 0
    """GPUs that have no entry now because the node's ledger gives them to no container."""


def collect(
    *,
    engine: str,
    ceiling: str,
    folders: Sequence[str],
    own_folder: Path,
    wanted: Sequence[str],
    ours: Sequence[str],
    listed: Sequence[str] = (),
    silicon_root: Path,
) -> Facts:
    """Read and resolve.

    Args:    engine, ceiling: the engine's name and the newest CDI version that it reads; empty: not known.
             folders: where it looks.   wanted: qualified names; none: every device of our own files.
             ours: paths of our files.   listed: devices of the setting `api.devices`.
             silicon_root: whose drivers the stamps are held to.
    """
    registry = directory.scan(list(folders))
    mine = frozenset(ours)
    names = list(wanted) or [name for name, one in registry.devices.items() if one.file.path in mine]
    failures, resolved = [], []
    for name in names:
        why = _resolve(registry, name)
        if why:
            failures.append((name, why))
        else:
            resolved.append((name, registry.devices[name].file.path))
    read = {os.path.realpath(folder) for folder in folders}
    return Facts(
        engine=engine,
        folders=tuple(folders),
        own_folder=own_folder,
        is_read=os.path.realpath(own_folder) in read,
        broken=tuple((path, found[0].message) for path, found in registry.problems.items() if not _is_conflict(found)),
        newer=tuple(_newer(registry, ceiling)),
        open_to=tuple(file.path for file in registry.files if _is_open(file)),
        stale=tuple(_stale(registry, silicon_root)),
        gone=tuple(_gone(registry, mine)),
        conflicts=conflict.find_any(registry, mine),
        failures=tuple(failures),
        resolved=tuple(resolved),
        undefined=tuple(name for name in listed if not _is_defined(registry, name)),
    )


def _is_defined(registry: directory.Registry, name: str) -> bool:
    """Return whether a spec defines a device; of `vendor/class=*`, one of the kind."""
    if name.endswith("=*"):
        return any(known.startswith(name.removesuffix("*")) for known in registry.devices)
    return name in registry.devices


def _is_conflict(found: Sequence[cdi_errors.CDIError]) -> bool:
    return all(one.reason == "DeviceConflict" for one in found)


def _resolve(registry: directory.Registry, name: str) -> str:
    """Return why a container with this device would not start as it should; empty: it would."""
    try:
        registry.inject(_EMPTY, [name])
    except cdi_errors.CDIError as error:
        return str(error)
    (found,) = registry.resolve([name])
    return next(_missing(found), "")


def _missing(found: cdi.Resolved) -> Iterator[str]:
    for edits in (found.spec.edits, found.device.edits):
        yield from (
            f"{found.file.path} {what}" for what in lint.missing(edits, stat_file=node.stat_file, has_nodes=False)
        )


def _gone(registry: directory.Registry, ours: Collection[str]) -> Iterator[str]:
    """Yield what other files than ours name in vain, as a vendor's does after an update of the driver."""
    for file in registry.files:
        if file.spec is not None and file.path not in ours:
            every = (file.spec.edits, *(one.edits for one in file.spec.devices))
            found = dict.fromkeys(what for edits in every for what in lint.missing(edits, stat_file=node.stat_file))
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield from (f"{file.path} {what}{more}" for what in list(found)[:1])


def _newer(registry: directory.Registry, ceiling: str) -> Iterator[tuple[str, str]]:
    if not ceiling:
        return
    for file in registry.files:
        if file.spec is not None and _number(file.spec.cdi_version) > _number(ceiling):
            yield file.path, file.spec.cdi_version


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _is_open(file: cdi.SpecFile) -> bool:
    uid, mode = file.owner or (0, 0)
    return bool(uid or mode & _WRITABLE)


def _stale(registry: directory.Registry, root: Path) -> Iterator[str]:
    """Hold the stamps to the boot and the drivers that run now."""
    now = running.read_running(root)
    for file in registry.files:
        mark = stamp.read(Path(file.path), file.spec.annotations) if file.spec is not None else None
        for why in mark.staleness(now.boot_id, now.versions) if mark else ():
            yield f"{file.path} {why}"


def check(seen: Facts, *, expects: bool) -> Iterator[Finding]:
    """Yield what is wrong, then what is right. Args: expects: a service with GPUs runs, so its devices must resolve."""
    reader = seen.engine or "the engine"
    places = " and ".join(seen.folders)
    if not seen.is_read:
        yield Finding(
            check="cdi",
            level="fail",
            what=f"{reader} reads {places}, not {seen.own_folder}, where our specs are written",
            why="containers would get no devices, or those of other specs",
            fix="leave node.cdi_folder at its default (`fairlead settings` says where it is set)",
        )
    for one in seen.conflicts:
        yield Finding(
            check="cdi",
            level="fail",
            what=one.message,
            why="two files of one folder define it, so every engine refuses both: no container with it starts",
            fix=one.remedy,
        )
    for path, version in seen.newer:
        yield Finding(
            check="cdi",
            level="fail",
            what=f"{path} is of CDI {version}, which {reader} does not read",
            why="an old engine passes such a file over, or refuses every device",
            fix=f"write it anew with what made it, for an older version; until then `mv {path} {path}.before`",
        )
    yield from _failures(seen, reader)
    for path, why in seen.broken:
        yield Finding(
            check="cdi",
            level="warn",
            what=f"{path}: {why}",
            why="engines pass it over: its devices are unknown, the other files count",
            fix=f"`fairlead cdi validate {path}` says what is wrong; `mv {path} {path}.before` takes it out",
        )
    for path in seen.open_to:
        yield Finding(
            check="cdi",
            level="warn",
            what=f"{path} may be changed by others than root",
            why="engines do as root what it says",
            fix=f"look at what it says, then `chown root {path}; chmod go-w {path}`",
        )
    yield from _outdated(seen)
    if seen.undefined:
        yield Finding(
            check="cdi",
            level="warn",
            what=f"the setting {device.SETTING} lists {', '.join(seen.undefined)}, which no spec in {places} defines",
            why="people may ask for it by `run --device`, and the container does not start",
            fix="put the spec into /etc/cdi, or take it out of the setting; `fairlead cdi list` shows what is defined",
        )
    if seen.resolved:
        files = ", ".join(sorted({path for _, path in seen.resolved}))
        many = f"{len(seen.resolved)} device{'s' if len(seen.resolved) > 1 else ''}"
        yield Finding(check="cdi", level="ok", what=f"{reader} would find {many} in {files}")
    elif not expects:
        yield Finding(check="cdi", level="ok", what=f"no spec of ours in {seen.own_folder} yet: the service writes it")
    if seen.withheld:
        what = f"{seen.withheld} GPUs have no entry until a container gets them, as the ledger wants it"
        yield Finding(check="cdi", level="ok", what=what)


def _outdated(seen: Facts) -> Iterator[Finding]:
    for text in seen.stale:
        why = "device numbers and library names in it may be another machine state's"
        fix = "`fairlead cdi generate` once more, or leave `fairlead cdi watch` running"
        yield Finding(check="cdi", level="warn", what=text, why=why, fix=fix)
    for text in seen.gone:
        why = "engines load it, and a container that asks for its devices does not start, or lacks them"
        fix = "write it anew with what made it (`nvidia-ctk cdi generate`, `fairlead cdi generate`), or move it away"
        yield Finding(check="cdi", level="warn", what=text, why=why, fix=fix)


def _failures(seen: Facts, reader: str) -> Iterator[Finding]:
    disputed = {name for one in seen.conflicts for name in one.devices}
    by_reason: dict[str, list[str]] = {}
    for name, why in seen.failures:
        if name not in disputed:
            # The reason names its own device: equal but for that, it is one finding.
            by_reason.setdefault(why.replace(name, "it"), []).append(name)
    for why, names in by_reason.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding(
            check="cdi",
            level="fail",
            what=f"{reader} cannot resolve {names[0]}{more}: {why}",
            why="no container with it starts",
            fix="`fairlead cdi list` shows what is defined; a running service writes its own specs again,"
            " `fairlead cdi generate` those of the vendor's kind",
        )

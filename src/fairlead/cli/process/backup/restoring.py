"""Puts a backup back into a state folder that no service uses: all of it, or nothing.

Everything is unpacked into a folder inside the state folder and checked there; until then nothing that was there is
touched. Then what was there is moved into `set-aside-N`, if that is wanted, and the new files are renamed into place. A
note stands in the folder while files move: a service refuses to start beside it, and the restore can be repeated.

The ledger that is there is newer than any backup and is never replaced: it knows which tenant a GPU had last, and its
numbers of leases never go back. On another machine, or in another folder, what describes GPUs and containers of the old
one (`parts.MACHINE`) is left out; the folder has an identity of its own there, so that two services never take each
other's containers for their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from fairlead import errors, files, temporary
from fairlead.cli.process import owner
from fairlead.cli.process.backup import archive, making, parts, schemas
from fairlead.node.kubelet.devices import checkpoint

_PREFIX: Final = ".restore-"
_MOST_ASIDE: Final = 10_000
_IDENTITY: Final = f"kubelet/{checkpoint.HOME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did."""

    manifest: archive.Manifest
    laid: tuple[str, ...]
    skipped: tuple[parts.Left, ...]
    """What of the backup was not put back, and why."""
    set_aside: Path | None
    """Where what was there is now; None: there was nothing."""
    is_same_place: bool


def restore(file: IO[bytes], path: Path, folder: Path, *, sets_aside: bool) -> Restored:
    """Put a backup back. The state folder is this process's alone (`owner.own_state`).

    Raises: ProtocolError: the backup is damaged, foreign or newer; Conflict (`StateExists`); Unavailable.
    """
    opened = archive.read(file, path)
    is_same = _is_same_place(opened.manifest, folder)
    there = _present(folder, is_same=is_same)
    if there and not sets_aside:
        message = f"{folder} has state already: {', '.join(there[:4])}{' and more' if len(there) > 4 else ''}"
        hint = "`--set-aside` moves it into a folder beside, from which it can be taken back; nothing was changed"
        raise errors.Conflict(message, reason="StateExists", hint=hint)
    _check_room(opened.manifest, folder)
    chosen, skipped = _choose(opened.manifest, folder, is_same=is_same)
    try:
        temporary.sweep((_PREFIX,), folder)
        with temporary.folder(_PREFIX, folder) as staged:
            _unpack(opened, chosen, staged)
            aside = _move(folder, staged, there, chosen)
    except OSError as error:
        message = f"cannot restore into {folder}: {error.strerror}: {error.filename or folder}"
        raise errors.Unavailable(message, reason="RestoreFailed", hint=files.next_step(error)) from error
    return Restored(
        manifest=opened.manifest,
        laid=tuple(part.path for part in chosen),
        skipped=tuple(skipped),
        set_aside=aside,
        is_same_place=is_same,
    )


def _present(folder: Path, *, is_same: bool) -> tuple[str, ...]:
    """Return the files that a restore would have to move."""
    found, _ = parts.find(folder)
    logs = (f"{path}-wal" for path in (parts.STATE, parts.ACCOUNTS) if (folder / f"{path}-wal").exists())
    own = () if is_same else (_IDENTITY,)
    return tuple(path for path in (*found, *logs) if path not in own and not _stays(path, folder))


def _stays(path: str, folder: Path) -> bool:
    return path.startswith("lease/") and (folder / parts.LEDGER).exists()


def _is_same_place(manifest: archive.Manifest, folder: Path) -> bool:
    here = making.machine_digest(Path("/"))
    return bool(here) and manifest.machine == here and manifest.state_folder == str(folder.resolve())


def _choose(manifest: archive.Manifest, folder: Path, *, is_same: bool) -> tuple[list[archive.Part], list[parts.Left]]:
    chosen, skipped = [], []
    for part in manifest.parts:
        if parts.is_of_machine(part.path) and not is_same:
            skipped.append(parts.Left(path=part.path, why="it describes another machine, or another state folder"))
        elif _stays(part.path, folder):
            skipped.append(parts.Left(path=part.path, why="the ledger that is here is newer, and stays"))
        else:
            chosen.append(part)
    return chosen, skipped


def _check_room(manifest: archive.Manifest, folder: Path) -> None:
    files.check_room(folder, sum(part.size_bytes for part in manifest.parts) + (1 << 20))


def _unpack(opened: archive.Opened, chosen: list[archive.Part], staged: Path) -> None:
    for part in chosen:
        target = staged / part.path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            for chunk in opened.chunks(part):
                out.write(chunk)
            out.flush()
            os.fsync(handle)
        if archive.digest(target) != (part.size_bytes, part.sha256):
            message = f"the backup changed while {part.path} was read from it"
            raise errors.ProtocolError(message, reason="BackupDamaged", hint="nothing was changed: try it again")
    for part in chosen:
        if parts.is_database(part.path):
            schemas.check(staged / part.path, part.path)


def _move(folder: Path, staged: Path, there: tuple[str, ...], chosen: list[archive.Part]) -> Path | None:
    note = folder / owner.RESTORING
    files.write_atomic(note, b"a restore moves files here: repeat it with --set-aside\n", mode=0o600)
    aside = _new_aside(folder) if there else None
    if aside:
        for path in _with_logs(folder, there):
            _rename(folder / path, aside / path)
    for part in sorted(chosen, key=lambda one: one.path == parts.STATE):  # the database of objects last
        _rename(staged / part.path, folder / part.path)
    files.flush_folder(folder)
    note.unlink()
    files.flush_folder(folder)
    return aside


def _with_logs(folder: Path, there: tuple[str, ...]) -> Iterator[str]:
    """Yield files and the logs of databases among them: a log goes before its database, never behind."""
    for path in there:
        if parts.is_database(path):
            yield from (log for log in (f"{path}-wal", f"{path}-shm") if (folder / log).exists())
        if (folder / path).exists():
            yield path


def _new_aside(folder: Path) -> Path:
    for number in range(1, _MOST_ASIDE):
        target = folder / f"set-aside-{number}"
        if not os.path.lexists(target):
            target.mkdir(mode=0o700)
            return target
    message = f"{folder} has {_MOST_ASIDE - 1} folders of earlier restores"
    raise errors.Unavailable(message, reason="StateSetAsideFull", hint="remove old ones you no longer need")


def _rename(source: Path, target: Path) -> None:
    if not source.exists():
        return  # moved already, as the log of its database
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.exists():
        message = f"{target} appeared while a backup was restored"
        raise errors.Conflict(message, reason="StateExists", hint="no other program may use the folder meanwhile")
    source.rename(target)
    files.flush_folder(target.parent)

"""Applies what `plan.engineconfig` decides to an engine's files, and reverts it.

Decisions are always made from the files as they were before us (`_View`), so configuring twice is configuring once,
and other requests replace earlier ones. Going back, a file that still is what we wrote gets its old bytes; one that
an administrator has changed since loses our part and keeps theirs. Nothing is written where nothing changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead import command, errors, files
from fairlead.node.engines import records
from fairlead.plan.engineconfig import change, gvisor, table, tree
from fairlead.plan.engineconfig.model import HEADER, Edit, Location, Proposal, Request
from fairlead.plan.gpu.allocation import enginesupport

_ASK_S: Final = 20
_NEW_MODE: Final = 0o644
_LARGEST_BYTES: Final = 4 << 20
_NOTHING: Final[tuple[list[bytes], ...]] = ([], [b"{}"], [b"{", b"}"])


@dataclass(frozen=True, slots=True)
class Step:
    """One file, as it is and as it will be or has become; None: it is not there."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done, or would be."""

    steps: tuple[Step, ...]
    """Only files that change."""
    notes: tuple[str, ...] = ()
    program: str = ""
    runtimes: tuple[str, ...] = ()
    """What the shim becomes; none: its own choice."""


@dataclass(frozen=True, slots=True)
class Release:
    """What an engine's program said of itself."""

    program: str
    """Path of the one that answered."""
    version: tuple[int, ...] | None
    """None: it says none that can be read."""


async def ask_release(engine: str, *, program: str = "") -> Release | None:
    """Ask an engine's program for its release; None: it is not installed.

    The program is looked for on the PATH of who asks, then on ours: an engine in an unusual folder, as k3s and the like
    have it, must not pass for one of unknown release.

    Args: program: the path of the one that runs, if that is known; it is asked first.
    """
    for name in (*([program] if program else ()), *table.ENGINES[engine].programs):
        path = shutil.which(name) or name
        try:
            done = await command.run((path, "--version"), env=command.base_env(), timeout_s=_ASK_S)
        except errors.Unavailable:
            continue
        if done.code == 0:
            return Release(path, enginesupport.parse_version(done.stdout.decode(errors="replace")))
    return None


def _read(path: str) -> bytes | None:
    # Not pathlib's is_dir: a name too long is an error there, and here something that is not a folder.
    is_folder = os.path.isdir(path)  # noqa: PTH112
    return None if is_folder else files.read_regular(Path(path), limit_bytes=_LARGEST_BYTES)


@dataclass(frozen=True, slots=True)
class _View:
    """The host's files as they would be had we never been there."""

    entries: dict[str, records.Entry] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        current, entry = _read(path), self.entries.get(path)
        if current is None:
            return None
        if entry is None or not entry.changes:
            # The header marks our own file, also one whose record is lost; a file put in its place lacks it.
            return None if current.startswith(HEADER.encode()) else current
        if records.digest(current) == entry.digest:
            return entry.original
        rest = change.revert(current, entry.original or b"", entry.changes, path=path)
        return None if entry.original is None and rest.split() in _NOTHING else rest

    def glob(self, pattern: str) -> Sequence[str]:
        # Not pathlib's: to engines `**` is one folder, not the whole disk. They sort folder by folder.
        found = glob.glob(pattern, include_hidden=True)  # noqa: PTH207
        return sorted((path for path in found if self.read(path) is not None), key=lambda path: path.split("/"))


def _view(record: records.Record | None) -> _View:
    return _View({entry.path: entry for entry in record.entries} if record else {})


def configure(
    engine: str, place: Location, request: Request, *, recorded: records.ChangeRecords, is_dry: bool = False
) -> tuple[Outcome, Proposal]:
    """Bring an engine's files to what is requested; idempotent.

    Args:    is_dry: only say what would change.
    Raises:  as `propose` of the engine; Unavailable: a file cannot be read or written.
    """
    with contextlib.nullcontext() if is_dry else recorded.locked():
        old = recorded.load(engine, place.config)
        view = _view(old)
        tree.check_asked(place, request)
        gvisor.check(request)
        proposal = table.ENGINES[engine].propose(place, request, view)
        for edit in proposal.edits:
            _refuse_somebodys(edit, view)
        wanted = {edit.path: edit.after for edit in proposal.edits}
        # What an earlier request needed and this one does not goes back.
        left = {path: view.read(path) for path in view.entries if path not in wanted}
        steps = _steps({**wanted, **left})
        if not is_dry:
            kept = _keep_edited(steps, view, recorded)
            record = _record(engine, place, request, proposal, old=old)
            recorded.save(record)
            _write(steps)
            return _outcome(proposal, steps, kept), proposal
        return _outcome(proposal, steps, ()), proposal


def _refuse_somebodys(edit: Edit, view: _View) -> None:
    if not edit.changes and view.read(edit.path) is not None:
        message = f"{edit.path} is there already and was not written by fairlead"
        raise errors.Conflict(message, reason="DropInTaken", hint="move it, or choose another path with --drop-in")


def _outcome(proposal: Proposal, steps: tuple[Step, ...], kept: Sequence[str]) -> Outcome:
    return Outcome(steps=steps, notes=(*proposal.notes, *kept), program=proposal.program, runtimes=proposal.runtimes)


def _steps(wanted: dict[str, bytes | None]) -> tuple[Step, ...]:
    steps = (Step(path, _read(path), after) for path, after in wanted.items())
    return tuple(step for step in steps if step.before != step.after)


def _keep_edited(steps: Iterable[Step], view: _View, recorded: records.ChangeRecords) -> tuple[str, ...]:
    """Keep what people wrote into files that are wholly ours before it goes."""
    notes = []
    for step in steps:
        entry = view.entries.get(step.path)
        if step.before is None or entry is None or entry.changes:
            continue
        if records.digest(step.before) != entry.digest:
            kept = recorded.keep(step.path, step.before)
            notes.append(f"{step.path} was edited since; what it said is kept in {kept}")
    return tuple(notes)


def _record(
    engine: str, place: Location, request: Request, proposal: Proposal, *, old: records.Record | None
) -> records.Record:
    entries = tuple(
        records.Entry(path=edit.path, original=edit.before, digest=records.digest(edit.after), changes=edit.changes)
        for edit in proposal.edits
    )
    made = [*(old.folders if old else ()), *_missing_folders(proposal.edits)]
    folders = tuple(dict.fromkeys(made))
    return records.Record(engine=engine, place=place, request=request, entries=entries, folders=folders)


def _missing_folders(edits: Iterable[Edit]) -> list[str]:
    folders = (folder for edit in edits for folder in reversed(Path(edit.path).parents))
    return [str(folder) for folder in folders if not folder.exists()]


def _write(steps: Iterable[Step]) -> None:
    for step in steps:
        path = Path(step.path)
        if step.after is None:
            path.unlink(missing_ok=True)
        elif step.before is None:
            try:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            except OSError as error:
                message = f"cannot make {path.parent}: {error.strerror}"
                raise errors.Unavailable(message, reason="FileWriteFailed", hint="run as root") from error
            files.write_atomic(path, step.after, mode=_NEW_MODE)
        else:
            files.rewrite(path, step.after)


def unconfigure(
    engine: str, config: str, *, recorded: records.ChangeRecords, drop_in: str = "", is_dry: bool = False
) -> Outcome:
    """Bring an engine's files back to what they were before us; without a record nothing is done.

    Args:    drop_in: refuse where ours is another file than this one; empty: whichever it is.
    Raises:  NotFound (`DropInUnknown`): as said.   Unavailable: as above.
             ProtocolError: the record, or a file that was changed since, cannot be read.
    """
    with contextlib.nullcontext() if is_dry else recorded.locked():
        record = recorded.load(engine, config)
        if record is None:
            return Outcome(steps=())
        ours = [entry.path for entry in record.entries if not entry.changes]
        if drop_in and drop_in not in ours:
            message = (
                f"{drop_in} was not written by fairlead for {engine} ({config}); {', '.join(ours) or 'no file'} was"
            )
            raise errors.NotFound(message, reason="DropInUnknown", hint="leave --drop-in out, or name that file")
        view = _view(record)
        # The main file first: from then on nothing leads to our drop-in.
        steps = _steps({entry.path: view.read(entry.path) for entry in reversed(record.entries)})
        if is_dry:
            return Outcome(steps=steps)
        kept = _keep_edited(steps, view, recorded)
        _write(steps)
        for folder in reversed(record.folders):
            with contextlib.suppress(OSError):  # others' files are in it, or it is gone
                Path(folder).rmdir()
        recorded.forget(record)
        return Outcome(steps=steps, notes=kept)


def _gvisor_findings(engine: str, request: Request) -> Iterator[str]:
    """Yield what is not as the handler of gVisor needs it."""
    for path, (content, _) in gvisor.made(engine, request).items():
        if _read(path) != content:
            yield f"{path}: it is not as it was written, and gVisor's handler needs it"
    needed = (request.gvisor, gvisor.shim(request)) if engine == "containerd" else (request.gvisor,)
    if request.gvisor:
        yield from (f"{path}: gVisor's program is not there" for path in needed if not Path(path).exists())


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What stands on disk, held against what `configure` would write now."""

    place: Location
    request: Request
    proposal: Proposal
    findings: tuple[str, ...]
    """What is not as it would be left; none: all is."""


def review(
    engine: str, config: str, *, recorded: records.ChangeRecords, version: tuple[int, ...] | None = None
) -> Review:
    """Hold an engine's files against what `configure` would make of them now.

    Args:    version: the engine's release now; None: what it was when it was configured.
    Raises:  NotFound (`EngineUnconfigured`): we never configured it.   Others as `configure`.
    """
    record = recorded.load(engine, config)
    if record is None:
        message = f"{engine} is not configured by fairlead ({config})"
        hint = f"fairlead runtime configure --engine {engine}"
        raise errors.NotFound(message, reason="EngineUnconfigured", hint=hint)
    place = dataclasses.replace(record.place, version=version or record.place.version)
    outcome, proposal = configure(engine, place, record.request, recorded=recorded, is_dry=True)
    digests = {entry.path: entry.digest for entry in record.entries}
    found = []
    for step in outcome.steps:
        is_ours = step.before is not None and records.digest(step.before) == digests.get(step.path)
        why = "the files it was made from have changed" if is_ours else "it is not as it was written"
        found.append(f"{step.path}: {why}")
    if not Path(proposal.program).exists():
        found.append(f"{proposal.program}: the handler's program is not there")
    found += _gvisor_findings(engine, record.request)
    return Review(place=place, request=record.request, proposal=proposal, findings=tuple(found))

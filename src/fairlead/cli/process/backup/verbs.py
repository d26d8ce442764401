"""`fairlead state backup`, `restore` and `list`: one file of all that a service keeps, and the way back."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import click
import msgspec

from fairlead import errors, files, settings
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.output import Column
from fairlead.cli.process import owner
from fairlead.cli.process.backup import archive, making, parts, restoring
from fairlead.node import agent

_STDOUT: Final = "-"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class _Backup(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    size_bytes: int
    manifest: archive.Manifest


class _Restore(msgspec.Struct, frozen=True, kw_only=True):
    state_folder: str
    made_at: str
    node: str
    same_machine: bool
    restored: tuple[str, ...]
    left_out: dict[str, str]
    set_aside: str


@click.command("backup")
@click.argument("file")
@click.option("--replace", "replaces", is_flag=True, help="replace FILE if it is there")
@click.option("--no-keys", is_flag=True, help="leave out keys and credentials; keep secrets.key elsewhere")
@options.json_option
@options.settings_options("state", "node", "database")
def backup(config: settings.Settings, *, file: str, replaces: bool, no_keys: bool, form: str) -> None:
    """Write all that the service keeps into FILE, also while it runs; `-` is standard output.

    Values of secrets stay encrypted. With the keys, which are in FILE unless --no-keys is given, they can be opened:
    keep FILE as you keep the state folder.
    """
    folder = config.state.folder
    if not folder.is_dir():
        message = f"state folder {folder} is not there"
        raise errors.NotFound(message, reason="FolderNotFound", hint="`--state-folder` names another")
    _check_access(folder)
    target = None if file == _STDOUT else Path(file)
    if target is None and form != "text":
        message = "`-o` and a backup cannot both go to standard output"
        raise errors.Invalid(message, reason="OutputInvalid", hint="name a file")
    with _output(target, folder, replaces=replaces) as out:
        made = making.make(folder, out, node=agent.node_name(config), has_keys=not no_keys)
    _show_backup(made, target, config.database.url, form=form)


def _check_access(folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        message = f"state folder {folder} may not be read by this account"
        raise errors.Denied(message, reason="FolderForeign", hint="run it as root")


@contextlib.contextmanager
def _output(target: Path | None, folder: Path, *, replaces: bool) -> Iterator[IO[bytes]]:
    """Give where a backup is written; a file appears when it is whole."""
    if target is None:
        if sys.stdout.isatty():
            message = "a backup is no text for a terminal"
            raise errors.Invalid(
                message, reason="OutputInvalid", hint="`fairlead state backup - | age …`, or name a file"
            )
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    _check_target(target, folder, replaces=replaces)
    new = files.beside(target)
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(handle)
        _put(new, target, replaces=replaces)
    finally:
        new.unlink(missing_ok=True)


def _check_target(target: Path, folder: Path, *, replaces: bool) -> None:
    try:
        if os.path.lexists(target) and not replaces:
            raise _exists(target)
        if target.is_dir() or (os.path.lexists(target) and not target.is_file()):
            message = f"{target} is not a regular file"
            raise errors.Invalid(message, reason="FileInvalid", hint="name a file, or `-` for standard output")
        inside = folder.resolve() in (target.parent.resolve() / target.name).parents
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from error
    if inside:
        message = f"{target} lies in the state folder itself"
        raise errors.Invalid(message, reason="FileInvalid", hint="name a file elsewhere, best on another disk")


def _put(new: Path, target: Path, *, replaces: bool) -> None:
    try:
        if replaces:
            new.replace(target)
        else:
            _put_new(new, target)
        files.flush_folder(target.parent)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError as error:
        raise _unwritable(target, error) from error


def _put_new(new: Path, target: Path) -> None:
    """Name a file where none is. Raises: OSError: FileExistsError where one appeared meanwhile."""
    try:
        target.hardlink_to(new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        target.touch(mode=0o600, exist_ok=False)  # on a disk without hard links, such as exFAT
        new.replace(target)


def _exists(target: Path) -> errors.Conflict:
    message = f"{target} is there already"
    return errors.Conflict(message, reason="FileExists", hint="name another file, or say --replace")


def _unwritable(target: Path, error: OSError | ValueError) -> errors.FairleadError:
    if isinstance(error, ValueError):
        message = f"{str(target)!r} is not a path: {error}"
        return errors.Invalid(message, reason="FileInvalid", hint="name a file")
    message = f"cannot write {target}: {error.strerror}"
    return errors.Unavailable(message, reason="FileUnwritable", hint=files.next_step(error) or "check the path")


def _show_backup(made: archive.Manifest, target: Path | None, database_url: str, *, form: str) -> None:
    size = target.stat().st_size if target else sum(part.size_bytes for part in made.parts)
    if form != "text":
        output.show_value(_Backup(file=str(target), size_bytes=size, manifest=made), form=form)
        return
    is_error = target is None
    where = "standard output" if target is None else str(target)
    plaintext.echo(f"{where}: {len(made.parts)} files, {output.size(size)}", err=is_error)
    for part in made.parts:
        note = f"schema {part.schema}" if part.schema else ""
        plaintext.echo(f"  {part.path:<28} {output.size(part.size_bytes):>9}  {note}".rstrip(), err=is_error)
    plaintext.echo("not in it:", err=is_error)
    for path, why in made.left_out.items():
        _line(path, why, is_error=is_error)
    if database_url:
        _line("accounts", "they are in PostgreSQL (database.url): pg_dump copies them", is_error=is_error)
    if any(parts.is_key(part.path) for part in made.parts):
        for line in output.wrapped("it holds keys: who has the file can open the secrets", indent=0):
            plaintext.echo(line, err=is_error)


def _line(path: str, why: str, *, is_error: bool = False) -> None:
    first, *more = output.wrapped(f"{path}: {why}", indent=2)
    plaintext.echo(f"  {first}", err=is_error)
    for line in more:
        plaintext.echo(f"    {line}", err=is_error)


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set-aside", "sets_aside", is_flag=True, help="move state that is there into a folder set-aside-N")
@options.json_option
@options.settings_options("state")
def restore(config: settings.Settings, *, file: Path, sets_aside: bool, form: str) -> None:
    """Put back what `state backup` wrote to FILE; refused while the service runs.

    FILE is checked whole first. A damaged or foreign one, and one of a newer version, changes nothing.
    """
    with archive.open_file(file) as opened:
        archive.read(opened, file)  # before the folder is made or locked
        opened.seek(0)
        with owner.own_state(config):
            done = restoring.restore(opened, file, config.state.folder, sets_aside=sets_aside)
    if form != "text":
        shown = _Restore(
            state_folder=str(config.state.folder),
            made_at=done.manifest.made_at,
            node=done.manifest.node,
            same_machine=done.is_same_place,
            restored=done.laid,
            left_out={one.path: one.why for one in done.skipped},
            set_aside=str(done.set_aside or ""),
        )
        output.show_value(shown, form=form)
        return
    _show_restore(done, config.state.folder)


def _show_restore(done: restoring.Restored, folder: Path) -> None:
    made = done.manifest
    plaintext.echo(f"{folder}: {len(done.laid)} files as of {made.made_at}, from node {errors.readable(made.node)}")
    if done.set_aside:
        plaintext.echo(f"set aside: {done.set_aside}")
    for one in done.skipped:
        _line(one.path, f"left out: {one.why}")
    if not made.has_keys:
        _line("keys", "the backup has none: put secrets.key into the folder before the next start")
    _line("not in a backup", ", ".join(dict.fromkeys(made.left_out)))
    text = _HERE if done.is_same_place else _ELSEWHERE
    for line in output.wrapped(text, indent=0):
        plaintext.echo(line)


_HERE: Final = (
    "the next start takes over containers that still run, removes those that the backup does not list, and does with "
    "the others what it does after a restart of the machine"
)
_ELSEWHERE: Final = (
    "this is another machine or another folder, and the containers of the old one are not here: the next start starts "
    "those again that have --restart if the node's name is the same (--node-name), the others "
    "are failed (ContainerStatusUnknown), and workloads make theirs anew"
)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    size_bytes: int | None
    kept: str
    setting: str
    backup: str


_COLUMNS: Final = (
    Column[_Row]("PART", lambda one: one.path),
    Column[_Row]("SIZE", lambda one: "-" if one.size_bytes is None else output.size(one.size_bytes)),
    Column[_Row]("KEPT", lambda one: one.kept, is_folded=False),
    Column[_Row]("SETTING", lambda one: one.setting, rank=1),
    Column[_Row]("BACKUP", lambda one: one.backup),
)


@click.command("list")
@options.output_option
@options.settings_options("state", "api", "history", "lease", "control", "engine")
def listed(config: settings.Settings, *, form: str) -> None:
    """List what is kept, how much and for how long, which setting says so, and whether a backup has it."""
    folder = config.state.folder
    if not folder.is_dir():
        message = f"state folder {folder} is not there"
        raise errors.NotFound(message, reason="FolderNotFound", hint="`--state-folder` names another")
    _check_access(folder)
    output.show_listing(tuple(_rows(config)), _COLUMNS, form=form, name=lambda one: one.path)


def _rows(config: settings.Settings) -> Iterator[_Row]:
    folder = config.state.folder
    found, left = parts.find(folder)
    kept = _kept(config)
    for path in found:
        text, setting = kept.get(path, ("always", ""))
        in_it = "yes, a key" if parts.is_key(path) else "yes"
        size = _size(folder, path)
        yield _Row(path=path, size_bytes=size, kept=text, setting=setting, backup=in_it)
        for part, (words, name) in _WITHIN.get(path, {}).items():
            yield _Row(path=f"  {part}", size_bytes=None, kept=words(config), setting=name, backup="yes")
    for one in left:
        yield _Row(path=one.path, size_bytes=None, kept="-", setting="", backup="no")
    most = config.engine.log_max_mib
    text = f"{most} MiB each" if most else "without limit"
    yield _Row(path="output", size_bytes=None, kept=text, setting="engine.log_max_mib", backup="no")


def _days(days: float) -> str:
    return f"{days:g} days" if days else "for ever"


def _kept(config: settings.Settings) -> dict[str, tuple[str, str]]:
    days, most = config.history.days, config.history.megabytes
    return {
        "history.db": (f"{days:g} days, {most:g} MiB" if days else "none is kept", "history.days, history.megabytes"),
    }


_WITHIN: Final[Mapping[str, Mapping[str, tuple[Callable[[settings.Settings], str], str]]]] = {
    parts.STATE: {
        "ended containers": (lambda config: f"the newest {config.control.finished_pods}", "control.finished_pods"),
    },
    parts.ACCOUNTS: {"audit log": (lambda config: _days(config.api.audit_days), "api.audit_days")},
    parts.LEDGER: {"reports": (lambda config: _days(config.lease.keep_days), "lease.keep_days")},
}


def _size(folder: Path, path: str) -> int:
    total = 0
    for one in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            total += (folder / one).stat().st_size
    return total

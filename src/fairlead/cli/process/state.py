"""`fairlead state …`: checks the files of the state folder, sets aside those that keep it from starting, and copies it.

Nothing is overwritten or deleted. The kubelet removes its containers that the database does not list. So when the
database is set aside, `home-id` is too, unless `--remove-containers` is given: under a new id the old containers are
not the kubelet's own, and run on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from fairlead import errors, files, settings
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.output import Column
from fairlead.cli.process import owner
from fairlead.cli.process.backup import verbs as backups
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.kubelet.dra import claimrecord
from fairlead.store import repair as databases
from fairlead.store.sqlite import database
from fairlead.wire.kubernetes import names

_DATABASE: Final = "state.db"
_KUBELET: Final = "kubelet"


class FileState(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the state folder."""

    file: str
    """Path below the state folder."""
    state: str
    """`ok`, `absent`, or the reason why it cannot be used."""
    detail: str


_COLUMNS: Final = (
    Column[FileState]("FILE", lambda item: item.file),
    Column[FileState]("STATE", lambda item: item.state),
    Column[FileState]("DETAIL", lambda item: item.detail),
)


@click.group("state")
def group() -> None:
    """Check and repair the state folder, back it up and restore it."""


group.add_command(backups.listed)
group.add_command(backups.backup)
group.add_command(backups.restore)


@group.command("check")
@options.output_option
@options.settings_options("state")
def check(config: settings.Settings, *, form: str) -> None:
    """Read every file of the state folder and say which cannot be used; changes none, also while the service runs."""
    folder = _existing(config.state.folder)
    found, problems = [], []
    for file, read in _FILES.items():
        try:
            detail = read(folder)
            found.append(FileState(file=file, state="absent" if detail is None else "ok", detail=detail or ""))
        except errors.FairleadError as error:
            found.append(FileState(file=file, state=error.reason, detail=error.message))
            problems.append(error)
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.file)
    if problems:
        raise problems[0]


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        message = f"state folder {folder} is not there"
        raise errors.NotFound(message, reason="FolderNotFound", hint="`--state-folder` names another")
    return folder


def _database(folder: Path) -> str | None:
    schema = database.check(folder / _DATABASE)
    return None if schema is None else f"schema {schema}"


def _identity(folder: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return _home(folder)
    return None


def _home(folder: Path) -> str:
    """Raises: FileNotFoundError, ProtocolError (`HomeIdDamaged`), Unavailable."""
    try:
        return checkpoint.read_home(folder / _KUBELET)
    except FileNotFoundError:
        raise
    except OSError as error:
        message = f"cannot read {folder / _IDENTITY}: {error.strerror}"
        raise errors.Unavailable(message, reason="StateUnreachable", hint="run as root") from error


def _grants(folder: Path) -> str | None:
    if not (folder / _CHECKPOINT).exists():
        return None
    grants = checkpoint.Checkpoint(folder / _KUBELET).peek()
    return f"containers with devices: {len({(grant.pod_uid, grant.container) for grant in grants})}"


def _claims(folder: Path) -> str | None:
    if not (folder / _CLAIMS).exists():
        return None
    return f"claims of containers: {len(claimrecord.state_file(folder / _KUBELET).peek())}"


_IDENTITY: Final = f"{_KUBELET}/{checkpoint.HOME}"
_CHECKPOINT: Final = f"{_KUBELET}/{checkpoint.NAME}"
_CLAIMS: Final = f"{_KUBELET}/{claimrecord.NAME}"
_FILES: Final[dict[str, Callable[[Path], str | None]]] = {
    _DATABASE: _database,
    _IDENTITY: _identity,
    _CHECKPOINT: _grants,
    _CLAIMS: _claims,
}


@group.command("repair")
@click.option(
    "--remove-containers",
    "removes",
    is_flag=True,
    help="keep the folder's identity: the next start removes the containers that the lost database listed",
)
@options.settings_options("state")
def repair(config: settings.Settings, *, removes: bool) -> None:
    """Set a damaged database aside so that the service starts with an empty one; refused while the service runs."""
    folder = _existing(config.state.folder)
    with owner.own_state(config):
        if not _is_damaged(folder / _DATABASE):
            plaintext.echo(f"{folder / _DATABASE} can be read: nothing was changed")
            return
        home = _known_home(folder)
        # The identity goes first: were this interrupted after the database went, the next start would find no pods
        # under the old identity and remove every container.
        moved = [] if removes else [*_set_identity_aside(folder)]
        moved += databases.set_state_aside(folder / _DATABASE)
    for path in moved:
        plaintext.echo(f"set aside: {path}")
    plaintext.echo("the next start begins with an empty database")
    if removes:
        plaintext.echo("it removes the containers that the lost database listed")
    elif home:
        plaintext.echo("containers of the old state run on and keep their GPUs, which the next start hands out again;")
        plaintext.echo(f"list them: {_how_to_list(config, home)}")


def _how_to_list(config: settings.Settings, home: str) -> str:
    from fairlead.engine import machine as engines  # of no use to the other verbs here

    return engines.advice(config.engine).list_labelled.format(label=f"{names.HOME}={home}")


def _is_damaged(path: Path) -> bool:
    """Raises: Unavailable, ProtocolError (`StateFromNewerVersion`): setting it aside would not help or lose data."""
    try:
        database.check(path)
    except errors.ProtocolError as error:
        if error.reason != database.DAMAGED:
            raise
        return True
    return False


def _known_home(folder: Path) -> str | None:
    with contextlib.suppress(errors.FairleadError):
        return _identity(folder)
    return None


def _set_identity_aside(folder: Path) -> Iterator[Path]:
    for name in (_IDENTITY, _CHECKPOINT, _CLAIMS):
        path = folder / name
        if path.exists():
            yield files.set_aside(path, why="old")

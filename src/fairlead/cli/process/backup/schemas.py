"""Checks a copy of each database: that it is whole, ours, and of a schema that this version reads."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from fairlead import errors
from fairlead.cli.process.backup import parts
from fairlead.node.lease import ledgerfile
from fairlead.serve import database as accounts
from fairlead.store.sqlite import database


def check(file: Path, path: str) -> str:
    """Return the schema of a copied database; empty: it is one that this version does not know.

    Args:    file: where the copy lies, in nobody's use.   path: what it is, below a state folder.
    Raises:  ProtocolError: it is damaged, or a newer version wrote it (`StateFromNewerVersion`).
    """
    if path == parts.STATE:
        schema = database.check(file)
        _tidy(file)
        return str(schema)
    try:
        with contextlib.closing(_open(file)) as connection:
            found = _SCHEMAS[path](connection, path) if path in _SCHEMAS else ""
            problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        message = f"{path} is damaged: {error}"
        raise errors.ProtocolError(message, reason=database.DAMAGED, hint="nothing was changed") from error
    if problem != "ok":
        message = f"{path} is damaged: {errors.readable(str(problem))}"
        raise errors.ProtocolError(message, reason=database.DAMAGED, hint="nothing was changed")
    _tidy(file)
    return found


def _tidy(file: Path) -> None:
    """Remove what reading has left beside a copy."""
    for beside in database.sidecars(file):
        beside.unlink(missing_ok=True)


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def _accounts(connection: sqlite3.Connection, path: str) -> str:
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    found = str(row[0]) if row else ""
    folder = Path(next(iter(accounts.__path__))) / "migrations" / "versions"
    known = sorted(one.name.partition("_")[0] for one in folder.glob("s[0-9]*.py"))
    if found not in known:
        _newer(path, found, known[-1] if known else "none")
    return found


def _ledger(connection: sqlite3.Connection, path: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    found = int(row[0]) if row else 0
    if found > ledgerfile.SCHEMA:
        _newer(path, str(found), str(ledgerfile.SCHEMA))
    return str(found)


def _history(connection: sqlite3.Connection, path: str) -> str:
    from fairlead.serve.history import file

    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > file.SCHEMA:
        _newer(path, str(found), str(file.SCHEMA))
    return str(found)


def _newer(path: str, found: str, known: str) -> NoReturn:
    message = f'{path} has schema "{errors.readable(found)[:40]}", this version reads schemas up to {known}'
    hint = "use the version of fairlead that wrote it; nothing was changed"
    raise errors.ProtocolError(message, reason="StateFromNewerVersion", hint=hint)


_SCHEMAS: Final[Mapping[str, Callable[[sqlite3.Connection, str], str]]] = {
    parts.ACCOUNTS: _accounts,
    parts.LEDGER: _ledger,
    "history.db": _history,
}

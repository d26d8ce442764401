"""Opens the service's database, SQLite in the state folder or PostgreSQL, and brings it to the newest schema.

This room and those above it in `serve` that keep rows are the only ones that load SQLAlchemy, and only where the API
listens on TLS. Migrations run in one transaction before anything else is read; on PostgreSQL under an advisory lock, so
that two services that start together do not both make the tables. A database of a newer version is refused as it is.
Source: SQLite, "PRAGMA synchronous" (FULL: a commit is on the disk when it returns).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import event, exc
from sqlalchemy.ext import asyncio as sqla

from fairlead import errors

FILE: Final = "accounts.db"
_FOLDER: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 0x666169726C656164
"""Of PostgreSQL's advisory locks: "fairlead"."""


def url_of(setting: str, folder: Path) -> sa.URL:
    """Return the address of the database.

    Args:    setting: `database.url`; empty: a file in the state folder.
    Raises:  Invalid (`DatabaseURLInvalid`): not an address, of another kind, or it holds a password.
    """
    if not setting:
        return sa.URL.create("sqlite+aiosqlite", database=str(folder / FILE))
    try:
        url = sa.make_url(setting)
    except exc.ArgumentError as error:
        message = "database.url is not an address of a database"
        raise errors.Invalid(message, reason="DatabaseURLInvalid", hint=_HINT) from error
    if url.drivername not in {"postgresql", "postgres", "postgresql+asyncpg"}:
        message = f'database.url names "{url.drivername}", and PostgreSQL is what can be named'
        raise errors.Invalid(message, reason="DatabaseURLInvalid", hint=_HINT)
    if url.password is not None:
        message = "database.url holds a password, which `fairlead settings` and the process list would show"
        raise errors.Invalid(message, reason="DatabaseURLInvalid", hint="put it into ~/.pgpass, as for psql")
    return url.set(drivername="postgresql+asyncpg")


_HINT: Final = "for example postgresql://fairlead@db.example/fairlead, or postgresql:///fairlead?host=/run/postgresql"


@contextlib.asynccontextmanager
async def opened(url: sa.URL, *, revision: str = "head") -> AsyncIterator[sqla.AsyncEngine]:
    """Give the database at its newest schema.

    Args:    revision: where migrations end, for tests.
    Raises:  Unavailable (`DatabaseUnreachable`); ProtocolError: `DatabaseFromNewerVersion`, `DatabaseDamaged`.
    """
    is_file = url.get_backend_name() == "sqlite"
    # One connection to a file: transactions wait for each other in order, and none for a lock.
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0} if is_file else {"pool_pre_ping": True}
    engine = sqla.create_async_engine(url, **options)
    if is_file:
        _make_private(Path(str(url.database)))
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    try:
        with translated():
            async with engine.begin() as connection:
                await connection.run_sync(_upgrade, revision)
        yield engine
    finally:
        await engine.dispose()


def _make_private(path: Path) -> None:
    """Have the file's mode right before SQLite opens it; its journal gets the same."""
    with translated():
        path.touch(mode=0o600)


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # its driver begins no transaction for DDL: we begin each one
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _upgrade(connection: sa.Connection, revision: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)

    def steps(current: Any, _context: Any) -> Any:
        return scripts._upgrade_revs(revision, current)

    with EnvironmentContext(config, scripts, fn=steps, destination_rev=revision) as environment:
        environment.configure(connection=connection, target_metadata=None)
        environment.run_migrations()


@contextlib.asynccontextmanager
async def transaction(database: sqla.AsyncEngine) -> AsyncIterator[sqla.AsyncConnection]:
    """Give a transaction that is committed at its end. Raises: as `translated`."""
    with translated():
        async with database.begin() as connection:
            yield connection


@contextlib.asynccontextmanager
async def reading(database: sqla.AsyncEngine) -> AsyncIterator[sqla.AsyncConnection]:
    """Give a connection for one statement that reads. Raises: as `translated`."""
    if database.url.get_backend_name() == "sqlite":
        async with transaction(database) as connection:
            yield connection
        return
    with translated():
        # A statement alone is a transaction: to begin and to commit one are two more round trips.
        async with database.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            yield connection


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate errors of the database and its driver into FairleadErrors."""
    try:
        yield
    except CommandError as error:
        message = f"the database is of a newer version of fairlead: {error}"
        raise errors.ProtocolError(message, reason="DatabaseFromNewerVersion", hint="start that version") from error
    except (exc.ProgrammingError, exc.IntegrityError):
        raise  # a bug of ours, or what the caller knows the meaning of
    except exc.DBAPIError as error:
        if "not a database" in str(error.orig) or "malformed" in str(error.orig):
            hint = "move it away: accounts and keys are made again, or put a copy back"
            message = f"the database of accounts is damaged: {error.orig}"
            raise errors.ProtocolError(message, reason="DatabaseDamaged", hint=hint) from error
        raise _unreachable(error.orig) from error
    except (OSError, exc.TimeoutError) as error:
        raise _unreachable(error) from error


def _unreachable(error: object) -> errors.Unavailable:
    message = f"the database of accounts does not answer: {error}"
    return errors.Unavailable(message, reason="DatabaseUnreachable", hint="setting database.url names it")

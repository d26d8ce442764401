"""Accounts and keys, the same on SQLite and on a real PostgreSQL; and every migration from the first schema on."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncEngine

from fairlead import errors
from fairlead.serve.accounts import audit, keys, port, sessions, stores
from fairlead.serve.accounts.roles import Membership, Role, Scope
from fairlead.serve.database import engine, schema
from fairlead.serve.database.unchanged import Commits, Unchanged
from tests.contract import postgres

START = 1_700_000_000.0


class Clock:
    """Unix seconds that a test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.started() as address:
        yield address


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[sa.URL]:
    """An address of a database without tables."""
    if request.param == "sqlite":
        yield engine.url_of("", tmp_path)
        return
    found = engine.url_of(request.getfixturevalue("server"), tmp_path)
    await _emptied(found)
    yield found


async def _emptied(url: sa.URL) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    made = create_async_engine(url)
    async with made.begin() as connection:
        await connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        await connection.execute(sa.text("CREATE SCHEMA public"))
    await made.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def accounts(url: sa.URL, clock: Clock) -> AsyncIterator[port.Accounts]:
    async with engine.opened(url) as database:
        yield stores.open_accounts(database, now=clock)


def _wish(account: str = "ann", lifetime_s: float | None = None) -> port.KeySpec:
    return port.KeySpec(account=account, scopes=(Scope.READ, Scope.RUN), lifetime_s=lifetime_s, note="laptop")


async def _ann(accounts: port.Accounts) -> None:
    await accounts.people.create("ann", kind=port.PERSON, is_administrator=False)


def _parsed(text: str) -> keys.Key:
    found = keys.parse(text)
    assert found is not None
    return found


async def _reason(accounts: port.Accounts, key: keys.Key) -> str:
    said = ""
    try:
        await accounts.keys.authenticate(key)
    except errors.Unauthenticated as error:
        said = error.message
    assert key.secret not in said
    return said.partition('" ')[2]


async def test_migrations_end_at_the_tables_that_the_code_declares_and_run_twice(url: sa.URL) -> None:
    for _ in range(2):
        async with engine.opened(url) as database, database.connect() as connection:
            found = await connection.run_sync(
                lambda one: compare_metadata(MigrationContext.configure(one), schema.METADATA)
            )
            assert found == []


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(url: sa.URL) -> None:
    async with engine.opened(url) as database, database.begin() as connection:
        await connection.execute(sa.text("UPDATE alembic_version SET version_num = 's9999'"))
    with pytest.raises(errors.ProtocolError) as refused:
        async with engine.opened(url):
            pass
    assert refused.value.reason == "DatabaseFromNewerVersion"


async def test_a_migration_that_fails_leaves_no_table_behind(url: sa.URL) -> None:
    with pytest.raises(errors.ProtocolError):
        async with engine.opened(url, revision="s9999"):
            pass
    async with engine.opened(url) as database:
        await _ann(stores.open_accounts(database))


async def test_what_was_stored_is_there_after_a_restart(url: sa.URL) -> None:
    async with engine.opened(url) as database:
        found = stores.open_accounts(database)
        await _ann(found)
        made = await found.keys.create(_wish())
    async with engine.opened(url) as database:
        assert (await stores.open_accounts(database).keys.authenticate(_parsed(made.key))).account == "ann"


async def test_an_account_is_made_once_and_goes_with_its_keys_and_roles(accounts: port.Accounts) -> None:
    await _ann(accounts)
    with pytest.raises(errors.Conflict):
        await _ann(accounts)
    await accounts.people.grant("ann", Membership(tenancy="red", uid="u1", role=Role.VIEWER))
    await accounts.people.grant("ann", Membership(tenancy="red", uid="u1", role=Role.OWNER))
    made = await accounts.keys.create(_wish())
    found = (await accounts.people.list())[0]
    assert (found.name, found.keys, [(one.tenancy, one.role) for one in found.memberships]) == (
        "ann",
        1,
        [("red", Role.OWNER)],
    )
    await accounts.people.delete("ann")
    assert await _reason(accounts, _parsed(made.key)) == "is not accepted"
    await _ann(accounts)
    assert await accounts.people.members("u1") == ()
    assert await accounts.keys.list("ann") == ()


async def test_a_key_says_who_holds_it_and_when_it_was_used(accounts: port.Accounts, clock: Clock) -> None:
    await _ann(accounts)
    await accounts.people.grant("ann", Membership(tenancy="red", uid="u1", role=Role.DEVELOPER))
    made = await accounts.keys.create(_wish())
    clock.now += 100
    who = await accounts.keys.authenticate(_parsed(made.key))
    assert (who.account, who.is_administrator, who.scopes) == ("ann", False, frozenset({Scope.READ, Scope.RUN}))
    assert who.memberships == (Membership(tenancy="red", uid="u1", role=Role.DEVELOPER),)
    (shown,) = await accounts.keys.list(None)
    assert (shown.last_used_at, shown.note, shown.expires_at) == ("2023-11-14T22:15:00Z", "laptop", None)


@contextlib.contextmanager
def _statements(database: AsyncEngine) -> Iterator[list[str]]:
    """Give the statements that reach the database."""
    found = list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(database.sync_engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(database.sync_engine, "before_cursor_execute", note)


async def test_a_key_and_a_session_are_read_once_while_nobody_writes(tmp_path: Path, clock: Clock) -> None:
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        accounts = stores.open_accounts(database, now=clock)
        await _ann(accounts)
        key = _parsed((await accounts.keys.create(_wish())).key)
        token = sessions.parse((await accounts.sessions.open("ann", key=key.id, address="192.0.2.1")).text)
        assert token is not None
        for _ in range(2):  # the first use is written, and the second reads what was written
            await accounts.keys.authenticate(key)
            await accounts.sessions.authenticate(token)
        with _statements(database) as found:
            assert (await accounts.keys.authenticate(key)).account == "ann"
            assert (await accounts.sessions.authenticate(token)).account == "ann"
            assert found == []
            clock.now += 60
            await accounts.keys.authenticate(key)
            assert [one for one in found if one.startswith("UPDATE api_key")]
        assert (await accounts.keys.list(None))[0].last_used_at == "2023-11-14T22:14:20Z"


@pytest.mark.parametrize("is_other", [False, True], ids=["here", "elsewhere"])
async def test_what_anybody_changes_holds_from_the_next_request_on(
    url: sa.URL, clock: Clock, *, is_other: bool
) -> None:
    async with engine.opened(url) as database, engine.opened(url) as second:
        accounts = stores.open_accounts(database, now=clock)
        other = stores.open_accounts(second if is_other else database, now=clock)
        await _ann(accounts)
        one, two = [_parsed((await accounts.keys.create(_wish())).key) for _ in range(2)]
        token = sessions.parse((await accounts.sessions.open("ann", key=one.id, address="192.0.2.1")).text)
        assert token is not None
        for _ in range(3):
            for key in (one, two):
                assert (await accounts.keys.authenticate(key)).memberships == ()
            assert (await accounts.sessions.authenticate(token)).memberships == ()
        # What is remembered of a key is for who has all of it.
        assert await _reason(accounts, keys.Key(id=one.id, secret="0" * 64)) == "is not accepted"

        red = Membership(tenancy="red", uid="u1", role=Role.DEVELOPER)
        await other.people.grant("ann", red)
        assert (await accounts.keys.authenticate(one)).memberships == (red,)
        assert (await accounts.sessions.authenticate(token)).memberships == (red,)
        await other.people.revoke("ann", "u1")
        assert (await accounts.keys.authenticate(one)).memberships == ()
        await other.keys.revoke(one.id, None)
        assert (await _reason(accounts, one), await _reason(accounts, two)) == ("is revoked", "")
        with pytest.raises(errors.Unauthenticated):
            await accounts.sessions.authenticate(token)
        await other.people.delete("ann")
        assert await _reason(accounts, two) == "is not accepted"


async def test_nothing_is_remembered_over_what_was_written_while_it_was_read(tmp_path: Path) -> None:
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        commits = Commits(database)
        kept: Unchanged[str] = Unchanged(commits)
        before = kept.mark()
        await _ann(stores.open_accounts(database))
        kept.keep("key", "as it was", read_at=before)
        assert kept.find("key") is None
        kept.keep("key", "as it is", read_at=kept.mark())
        assert kept.find("key") == "as it is"
        for number in range(2000):
            kept.keep(str(number), "x", read_at=kept.mark())
        assert kept.find("key") is None
        assert kept.find("1999") == "x"
    assert commits.mark() is None
    assert kept.find("1999") is None


async def test_only_the_digest_of_a_secret_is_stored(accounts: port.Accounts, url: sa.URL) -> None:
    await _ann(accounts)
    key = _parsed((await accounts.keys.create(_wish())).key)
    async with engine.opened(url) as database, database.connect() as connection:
        rows = str((await connection.execute(sa.select(schema.API_KEY))).all())
    assert key.id in rows
    assert key.secret not in rows


async def test_a_key_that_is_not_in_force_is_refused_with_the_reason(accounts: port.Accounts, clock: Clock) -> None:
    await _ann(accounts)
    short = _parsed((await accounts.keys.create(_wish(lifetime_s=60.0))).key)
    long = _parsed((await accounts.keys.create(_wish())).key)
    assert (await _reason(accounts, short), await _reason(accounts, long)) == ("", "")
    clock.now += 60
    assert await _reason(accounts, short) == "is expired"
    await accounts.keys.revoke(long.id, "ann")
    assert (await accounts.keys.revoke(long.id, None)).state == "revoked"
    assert await _reason(accounts, long) == "is revoked"
    # Who has only the public half hears nothing of how the key stands.
    assert await _reason(accounts, keys.Key(id=long.id, secret="0" * 64)) == "is not accepted"
    assert await _reason(accounts, keys.make()) == "is not accepted"


async def test_a_rotated_key_ends_after_the_overlap_and_its_successor_lives_as_long(
    accounts: port.Accounts, clock: Clock
) -> None:
    await _ann(accounts)
    old = _parsed((await accounts.keys.create(_wish(lifetime_s=1000.0))).key)
    clock.now += 500
    made = await accounts.keys.rotate(old.id, "ann", overlap_s=100, within=tuple(Scope))
    new = _parsed(made.key)
    assert (made.view.expires_at, made.view.scopes) == ("2023-11-14T22:38:20Z", (Scope.READ, Scope.RUN))
    assert (await _reason(accounts, old), await _reason(accounts, new)) == ("", "")
    clock.now += 100
    assert (await _reason(accounts, old), await _reason(accounts, new)) == ("is expired", "")
    with pytest.raises(errors.Conflict):
        await accounts.keys.rotate(old.id, "ann", overlap_s=0, within=tuple(Scope))
    with pytest.raises(errors.Denied):
        await accounts.keys.rotate(new.id, "ann", overlap_s=0, within=(Scope.READ,))


@pytest.mark.parametrize("name", ["", "a\0b", "Ann", "x" * 64, "a b", "../x", "ä"])
async def test_what_is_not_a_name_is_refused_and_found_nowhere(accounts: port.Accounts, name: str) -> None:
    with pytest.raises(errors.Invalid):
        await accounts.people.create(name, kind=port.PERSON, is_administrator=False)
    for asked in (
        accounts.people.delete(name),
        accounts.people.revoke(name, "u1"),
        accounts.keys.create(_wish(name)),
        accounts.keys.revoke(name, None),
    ):
        with pytest.raises(errors.NotFound):
            await asked


def _entry(at: int, account: str = "ann") -> audit.Entry:
    return audit.Entry(request=f"{at:032x}", peer="::1", method="POST", object=f"/{at}", account=account)


async def test_the_first_schema_is_brought_to_the_newest_with_what_is_in_it(url: sa.URL) -> None:
    async with engine.opened(url, revision="s0001") as database:
        await _ann(stores.open_accounts(database))
    async with engine.opened(url) as database:
        found = stores.open_accounts(database)
        assert [one.name for one in await found.people.list()] == ["ann"]
        await found.audit.begin(_entry(1))


async def test_the_audit_log_is_read_newest_first_by_time_account_and_tenancy(
    accounts: port.Accounts, clock: Clock
) -> None:
    log = accounts.audit
    for at, (account, uid) in enumerate((("ann", "u1"), ("ben", "u2"), ("ann", "u2"))):
        clock.now = START + at
        place = audit.Place(namespace=f"n-{uid}", tenancy=uid, uid=uid)
        outcome = audit.Outcome(status=201, reason="", place=place)
        await log.end(await log.begin(_entry(at, account)), outcome)
    clock.now = START + 3
    await log.begin(_entry(3))
    await log.refuse(_entry(4, ""), audit.Outcome(status=401, reason="KeyRefused", place=audit.Place()))

    async def found(**asked: Any) -> list[str]:
        return [one.object for one in (await log.list(audit.Query(**asked)))[0]]

    assert await found() == ["/4", "/3", "/2", "/1", "/0"]
    assert await found(since=START + 1, until=START + 3) == ["/2", "/1"]
    assert (await found(account="ann"), await found(account="a\0b")) == (["/3", "/2", "/0"], [])
    assert (await found(uids=("u2",)), await found(uids=())) == (["/2", "/1"], [])
    page, following = await log.list(audit.Query(limit=3))
    assert [one.status for one in page] == [401, None, 201]
    assert await found(before=following) == ["/1", "/0"]
    assert (await log.list(audit.Query(before=following, limit=2)))[1] is None


async def test_only_the_oldest_audit_entries_are_deleted_and_no_id_comes_twice(
    accounts: port.Accounts, clock: Clock
) -> None:
    log = accounts.audit
    ids = []
    for at in range(4):
        clock.now = START + at
        ids.append(await log.begin(_entry(at)))
        await log.end(ids[-1], audit.Outcome(status=200, reason="", place=audit.Place()))
    assert (await log.prune(START + 2), await log.prune(START + 2)) == (2, 0)
    assert [one.object for one in (await log.list(audit.Query()))[0]] == ["/3", "/2"]
    assert await log.prune(START + 10) == 2
    assert await log.begin(_entry(9)) > ids[-1]


async def test_entries_of_many_requests_at_once_are_all_there(accounts: port.Accounts) -> None:
    async with asyncio.TaskGroup() as tasks:
        for at in range(30):
            tasks.create_task(accounts.audit.begin(_entry(at)))
    page, _ = await accounts.audit.list(audit.Query())
    assert {one.object for one in page} == {f"/{at}" for at in range(30)}


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    async with engine.opened(engine.url_of("", tmp_path)) as database, database.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE more (x INTEGER)"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("text", ["mysql://x/y", "postgresql://u:secret@h/d", "nothing", "sqlite:///x.db"])
def test_an_address_that_is_not_offered_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        engine.url_of(text, Path("/x"))
    assert "secret" not in errors.sentence(refused.value)


async def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / engine.FILE
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(errors.ProtocolError) as refused:
        async with engine.opened(engine.url_of("", tmp_path)):
            pass
    assert refused.value.reason == "DatabaseDamaged"
    assert path.read_bytes().startswith(b"this is not")


async def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    url = engine.url_of(f"postgresql://fairlead@/x?host={tmp_path}", tmp_path)
    with contextlib.ExitStack() as stack:
        refused = stack.enter_context(pytest.raises(errors.Unavailable))
        async with engine.opened(url):
            pass
    assert refused.value.reason == "DatabaseUnreachable"

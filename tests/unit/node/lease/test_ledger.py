"""Holds the ledger to its file: durable, whole, of one writer, and never overwritten where it cannot be read."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.lease import ledgerfile
from fairlead.node.lease.ledger import Ledger
from fairlead.plan.lease import change
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event
from tests import leasesteps

STRACE = shutil.which("strace")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path)
    yield made
    made.close()


def identified(key: str) -> change.Change:
    return change.transition(Row(key=key), Event.IDENTIFIED, Facts(epoch=0, boot_id="b", at=5.0))


def check_file(folder: Path) -> tuple[int, dict[str, Row]]:
    """Hold the file's history to the table; returns its length and the rows."""
    rows, entries = ledgerfile.read(folder / ledgerfile.NAME)
    steps = ((State(one.before), Event(one.event), one.row) for one in entries)
    return leasesteps.check_history(steps, rows), dict(rows)


async def test_what_was_answered_is_there_after_it_is_opened_again(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    await first.act(lambda _: [identified("g0")])
    first.close()
    again = Ledger(tmp_path)
    assert again.rows.value["g0"].state is State.DIRTY
    assert (again.was_set_aside, (tmp_path / ledgerfile.NAME).stat().st_mode & 0o777) == (None, 0o600)
    again.close()


async def test_an_answer_comes_also_where_the_write_fails_in_a_way_that_nobody_foresaw(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(_self: object, *_: object) -> None:
        raise RuntimeError("not foreseen")

    with monkeypatch.context() as patch:
        patch.setattr(ledgerfile.LedgerFile, "commit", break_down)
        async with asyncio.timeout(2):
            with pytest.raises(RuntimeError, match="not foreseen"):
                await ledger.act(lambda _: [identified("g0")])
    await ledger.act(lambda _: [identified("g1")])
    assert set(ledger.rows.value) == {"g1"}


async def test_decisions_that_wait_together_share_a_transaction_and_one_refusal_takes_no_other_along(
    ledger: Ledger,
) -> None:
    def refuse(_: object) -> list[change.Change]:
        raise errors.Conflict("no", reason="No")

    async def act(key: str) -> object:
        return await ledger.act(lambda _: [identified(key)])

    done = await asyncio.gather(act("g0"), ledger.act(refuse), act("g1"), return_exceptions=True)
    assert isinstance(done[1], errors.Conflict)
    assert set(ledger.rows.value) == {"g0", "g1"}


async def test_a_decision_sees_what_the_one_before_it_has_decided(ledger: Ledger) -> None:
    rows = {"g0": Row(key="g0", state=State.FREE, boot_id="b")}
    ask = (change.Ask(key="g0", claims=(Claim(device="g0"),)),)

    async def hold() -> object:
        return await ledger.act(lambda now: change.plan_hold({**rows, **now}, ask, facts=Facts(boot_id="b")))

    done = await asyncio.gather(*(hold() for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(one, tuple) for one in done) == 1
    assert all(isinstance(one, tuple) or getattr(one, "reason", "") == change.HELD for one in done)


def test_a_second_writer_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.rows.value == {}
    with pytest.raises(errors.Conflict) as caught:
        Ledger(tmp_path)
    assert caught.value.reason == "AlreadyRunning"


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00" + b"\x00" * 4096])
async def test_a_damaged_file_is_set_aside_and_nothing_is_known_of_any_gpu(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ledgerfile.NAME
    path.write_bytes(content)
    opened = Ledger(tmp_path)
    assert opened.rows.value == {}
    assert opened.was_set_aside is not None
    assert opened.was_set_aside.read_bytes() == content
    opened.close()


async def test_a_row_that_is_not_one_sets_the_file_aside(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    await first.act(lambda _: [identified("g0")])
    first._file._connection.execute('UPDATE gpu SET document = \'{"state": "Free", "key": 7}\'')
    first.close()
    again = Ledger(tmp_path)
    assert (again.rows.value, again.was_set_aside) == ({}, tmp_path / "ledger.db.damaged-1")
    again.close()


async def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    first._file._connection.execute("UPDATE meta SET value = 2")
    first.close()
    for _ in range(2):
        with pytest.raises(errors.ProtocolError) as caught:
            Ledger(tmp_path)
        assert caught.value.reason == "LedgerFromNewerVersion"


async def test_a_disk_that_refuses_changes_nothing_and_the_ledger_goes_on_when_it_takes_again(ledger: Ledger) -> None:
    connection = ledger._file._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(errors.Unavailable) as caught:
        await ledger.act(lambda _: [identified(f"g{number:0500d}") for number in range(100)])
    assert (caught.value.reason, ledger.rows.value) == ("LedgerUnusable", {})
    connection.execute("PRAGMA max_page_count = 100000")
    await ledger.act(lambda _: [identified("g0")])
    assert set(ledger.rows.value) == {"g0"}


async def test_a_walk_through_everything_that_may_happen_keeps_to_the_table(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    done = await leasesteps.walk(ledger, seed=1, steps=400, at_once=20)
    ledger.close()
    assert check_file(tmp_path)[0] == done > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_hundred_thousand_steps_keep_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgerfile, "KEPT", 10**9)
    ledger = Ledger(tmp_path)
    done = 0
    while done < 200_000:
        done += await leasesteps.walk(ledger, seed=done, steps=6400, at_once=64)
    ledger.close()
    assert check_file(tmp_path)[0] == done


def run_killed(folder: Path, command: list[str], seed: int) -> tuple[int, dict[str, int]]:
    """Run a walk that is killed somewhere; returns its exit code and the newest epoch it had been answered, by GPU."""
    program = [sys.executable, "-m", "tests.leasesteps", str(folder), str(seed), "120"]
    done = subprocess.run([*command, *program], capture_output=True, text=True, check=False, timeout=100)
    answered: dict[str, int] = {}
    for word in done.stdout.split():
        key, _, epoch = word.partition("=")
        answered[key] = int(epoch)
    return done.returncode, answered


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(STRACE is None, reason="needs strace, which kills at a system call")
def test_a_ledger_that_is_killed_at_each_flush_is_whole_and_has_what_was_answered(tmp_path: Path) -> None:
    killed = 0
    for call in ("fsync", "fdatasync"):
        for number in range(1, 40):
            folder = tmp_path / f"{call}{number}"
            strace = [STRACE or "", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
            code, answered = run_killed(folder, [*strace, "-e", f"inject={call}:signal=KILL:when={number}"], number)
            if code == -signal.SIGKILL:
                killed += 1
            if (folder / ledgerfile.NAME).exists():
                _, rows = check_file(folder)
                assert all(rows[key].epoch >= epoch for key, epoch in answered.items())
                again = Ledger(folder)
                assert (again.was_set_aside, dict(again.rows.value)) == (None, rows)
                again.close()
    assert killed > 30

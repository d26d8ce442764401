"""A leader that was stopped (SIGSTOP) and wakes after the lease moved: two real processes, one real file."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from fairlead.store import lease
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import coordination, core, meta

_TERMS = lease.Terms(lease_s=1.0, renew_within_s=0.6, retry_s=0.1)
_LEADER = """
import asyncio, itertools, pathlib, sys
from fairlead import errors
from fairlead.store import lease
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta

async def work(store, leading):
    fenced = store.fenced(leading.fence)
    try:
        for number in itertools.count():
            await fenced.create(core.Node(metadata=meta.ObjectMeta(name=f"old-{number}")))
            await asyncio.sleep(0.001)
    finally:  # cancelled because the lease is lost, it tidies up, and that is a write too
        try:
            await fenced.create(core.Node(metadata=meta.ObjectMeta(name="old-last")))
        except errors.Conflict as error:
            print("refused", error.reason, flush=True)

async def main():
    with sqlite.SQLiteStore(pathlib.Path(sys.argv[1])) as store:
        terms = lease.Terms(lease_s=1.0, renew_within_s=0.6, retry_s=0.1)
        election = lease.Election(store, name="control", namespace="default", identity="old", terms=terms)
        await election.run(lambda leading: work(store, leading))

asyncio.run(main())
"""


async def test_a_leader_that_wakes_after_the_lease_moved_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite.SQLiteStore(path) as store:
        pipe = asyncio.subprocess.PIPE
        old = await asyncio.create_subprocess_exec(sys.executable, "-c", _LEADER, str(path), stdout=pipe, stderr=pipe)
        try:
            await anext(store.watch(core.Node))
            while True:  # stopped outside of a transaction: one that is open keeps the file from everybody
                os.kill(old.pid, signal.SIGSTOP)
                if await _is_free(store):
                    break
                os.kill(old.pid, signal.SIGCONT)
                await asyncio.sleep(0.05)
            moved, done = asyncio.Event(), asyncio.Event()

            async def take_over(leading: lease.Leadership) -> None:
                moved.set()
                await done.wait()

            new = lease.Election(store, name="control", namespace="default", identity="new", terms=_TERMS)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(new.run(take_over))
                await moved.wait()
                before = {node.metadata.name for node in (await store.list(core.Node)).items}
                os.kill(old.pid, signal.SIGCONT)
                printed, _ = await old.communicate()
                after = {node.metadata.name for node in (await store.list(core.Node)).items}
                held = await store.get(coordination.Lease, "control", "default")
                done.set()
        finally:
            if old.returncode is None:
                old.kill()
    assert after == before
    assert held.spec.holder_identity == "new"
    assert b"refused LeaseLost" in printed  # it woke and tried


async def _is_free(store: sqlite.SQLiteStore) -> bool:
    """Tell whether the file can be written within a moment."""
    try:
        async with asyncio.timeout(0.3):
            await store.apply(core.Node(metadata=meta.ObjectMeta(name="probe")), manager="test")
    except TimeoutError:
        return False
    return True

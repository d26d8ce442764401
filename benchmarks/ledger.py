"""What the ledger adds to an Allocate: one transaction on disk for two GPUs, beside a bare commit of SQLite's.

Each round gives two GPUs away, which is timed, and brings them back, which is not. The file is the shipped one, on the
disk of the temporary folder.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import frame
from fairlead.node.lease.ledger import Ledger
from fairlead.plan.lease import change, settle
from fairlead.plan.lease.row import Claim, Facts, Row

ROUNDS = 1000
KEYS = ("GPU-0", "GPU-1")


async def _hold(folder: Path) -> list[float]:
    ledger, samples = Ledger(folder), list[float]()
    asks = [change.Ask(key=key, claims=(Claim(device=key),)) for key in KEYS]
    facts = Facts(at=1, boot_id="b")
    try:
        for number in range(ROUNDS):
            for key in KEYS:
                for at in (number, number + 1e6):  # released, then closed and cleaned
                    row = ledger.rows.value.get(key, Row(key=key, boot_id="b"))
                    steps = settle.plan_steps(row, settle.Seen(asked=frozenset(KEYS)), at=at, boot_id="b")
                    await ledger.act(lambda _, steps=steps: steps)  # type: ignore[misc]  # bound now
            started = time.perf_counter()
            await ledger.act(lambda rows: change.plan_hold(rows, asks, facts=facts))
            samples.append(time.perf_counter() - started)
    finally:
        ledger.close()
    return samples


def _bare(folder: Path) -> list[float]:
    connection, samples = sqlite3.connect(folder / "bare.db", isolation_level=None), list[float]()
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (a)")
    for number in range(ROUNDS):
        started = time.perf_counter()
        connection.execute("INSERT INTO t VALUES (?)", (number,))
        samples.append(time.perf_counter() - started)
    connection.close()
    return samples


@frame.benchmark("ledger")
def ledger_rows() -> Iterator[frame.Row]:
    """Give two GPUs away, a thousand times."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir="/var/tmp") as name:
        held, bare = asyncio.run(_hold(Path(name))), _bare(Path(name))
    for label, samples, goal in (("the ledger's part of an Allocate", held, 5.0), ("a bare SQLite commit", bare, None)):
        for share in (0.5, 0.99):
            yield frame.Row(
                name=f"{label}, p{round(share * 100)}",
                ours=frame.percentile(samples, share) * 1e3,
                unit="ms",
                bar=goal if share > 0.9 else None,
            )

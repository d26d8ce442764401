"""Walks a ledger at random through what may happen to four GPUs; also a program that is killed while it does.

`python -m tests.leasesteps FOLDER SEED STEPS` prints one line for every transaction that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fairlead import errors, telemetry
from fairlead.node.lease.ledger import Ledger
from fairlead.plan.lease import change, table
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event

KEYS = ("g0", "g1", "g2", "g3")
BOOT = "boot"


def decide(rows: Mapping[str, Row], dice: random.Random) -> Sequence[change.Change]:
    """Return what one random step changes. Raises: FairleadError: the rules refuse it."""
    if dice.random() < 0.3:
        keys = dice.sample(KEYS, dice.choice([1, 1, 2]))
        asks = [change.Ask(key=key, claims=(Claim(device=key, resource=f"{len(keys)}"),)) for key in keys]
        return change.plan_hold(rows, asks, facts=Facts(boot_id=BOOT, at=1.0))
    key = dice.choice(KEYS)
    row = rows.get(key, Row(key=key, boot_id=BOOT))
    possible = [event for state, event in table.TABLE if state is row.state]
    facts = Facts(
        epoch=row.epoch - (dice.random() < 0.2),
        boot_id=BOOT,
        is_orphan=True,
        is_listed=dice.random() < 0.3,
        openers=("x",) if dice.random() < 0.1 else (),
        claims=(Claim(device=key, pod="p"),),
        by="root" if dice.random() < 0.5 else "",
    )
    return (change.transition(row, dice.choice(possible), facts),)


def check_history(steps: Iterator[tuple[State, Event, Row]], rows: Mapping[str, Row]) -> int:
    """Hold a ledger's history to the table: every step is a row of it, epochs never fall, slots are whole.

    Returns: how many steps there were.
    """
    last: dict[str, Row] = {}
    count = 0
    for before, event, row in steps:
        old = last.get(row.key, Row(key=row.key))
        rule = table.TABLE[before, event]
        assert before is old.state, f"{row.key}: {event} from {before}, and it was {old.state}"
        assert rule.target is row.state
        assert row.epoch == old.epoch + rule.bumps
        last[row.key] = row
        count += 1
    assert last == dict(rows)
    return count


async def walk(ledger: Ledger, seed: int, steps: int, *, at_once: int = 1) -> int:
    """Take random steps; returns how many changed something."""
    dice, done = random.Random(seed), 0

    async def step() -> int:
        own = random.Random(dice.random())
        try:
            return len(await ledger.act(lambda rows: decide(rows, own)))
        except (errors.Conflict, errors.Unavailable, errors.DeviceFault):
            return 0

    for _ in range(steps // at_once):
        done += sum(await asyncio.gather(*(step() for _ in range(at_once))))
    return done


async def _main(folder: Path, seed: int, steps: int) -> None:
    ledger, dice = Ledger(folder), random.Random(seed)
    for _ in range(steps):
        try:
            changes = await ledger.act(lambda rows: decide(rows, dice))
        except errors.FairleadError:
            continue
        print(" ".join(f"{one.after.key}={one.after.epoch}" for one in changes), flush=True)  # noqa: T201


if __name__ == "__main__":
    telemetry.configure("error", "json")
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

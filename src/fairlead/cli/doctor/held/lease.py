"""Collects and checks the node's ledger: what is kept back from tenants and why, and whether its reports hold.

The ledger's file is read beside the agent that writes it; nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.cli.doctor.finding import Finding
from fairlead.kernel import openfiles
from fairlead.node.lease import ledgerfile, reports
from fairlead.plan.lease.row import Row, State

_NOT_GIVEN: Final = "no container gets this GPU"
_WAITING: Final = frozenset({State.UNKNOWN, State.DIRTY, State.SCRUBBING, State.VERIFYING, State.RELEASING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    rows: Mapping[str, Row] = field(default_factory=dict)
    problem: str = ""
    """Why the ledger cannot be read; empty: it was, or there is none."""
    damaged: tuple[Path, ...] = ()
    """Ledgers that were set aside because they were damaged."""
    is_off: bool = False
    """Whether GPUs are given away without a ledger."""
    shows_in_flight: bool = True
    """Whether the kernel says that a socket has descriptors in flight."""
    reports: int | None = None
    """How many are signed and in their chain; None: there are none."""
    forged: str = ""
    """Why the reports do not hold; empty: they do."""


def collect(folder: Path, *, is_off: bool) -> Facts:
    """Read the ledger and its reports. Args: folder: of the ledger.   is_off: the agent keeps none."""
    damaged = tuple(sorted(folder.glob(f"{ledgerfile.NAME}.damaged-*")))
    path = folder / ledgerfile.NAME
    if not path.exists():
        return Facts(damaged=damaged, is_off=is_off)
    try:
        rows, _ = ledgerfile.read(path)
    except errors.FairleadError as error:
        return Facts(problem=errors.sentence(error), damaged=damaged)
    shows = openfiles.shows_in_flight()
    if not (folder / reports.NAME).exists():
        return Facts(rows=rows, damaged=damaged, shows_in_flight=shows)
    from fairlead.node.lease import signing  # it loads a large library

    try:
        proved = reports.verify(folder, signing.Verifier(folder / signing.PUBLIC), known=reports.named(rows))
    except errors.FairleadError as error:
        return Facts(rows=rows, damaged=damaged, shows_in_flight=shows, forged=errors.sentence(error))
    return Facts(rows=rows, damaged=damaged, shows_in_flight=shows, reports=len(proved))


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where no GPU has passed through the ledger yet."""
    if seen.is_off:
        yield off("the ledger is off")
    for path in seen.damaged:
        yield Finding(
            check="ledger",
            level="warn",
            what=f"a damaged ledger was set aside as {path}",
            why="every GPU was taken for unknown then, and what happened before is in that file alone",
            fix="look at the disk; remove the file once it is no longer needed",
        )
    if not seen.shows_in_flight:
        yield Finding(
            check="ledger",
            level="warn",
            what="this kernel does not say which sockets have descriptors in flight",
            why="a GPU that an ended container sent to another one of its tenant's may be given on while it is open",
            fix="Linux 5.6 and later say it",
        )
    if seen.problem:
        fix = "the agent's next start sets it aside; pods that run keep their GPUs"
        yield Finding(check="ledger", level="fail", what=seen.problem, why="no GPU is given away without it", fix=fix)
    if seen.forged:
        yield Finding(
            check="ledger",
            level="fail",
            what=seen.forged,
            why="what says that GPUs were clean between tenants is not what was written",
            fix="keep the folder aside, and verify it with the public key that was taken away: "
            "`fairlead lease report --verify --key FILE`",
        )
    for key, row in sorted(seen.rows.items()):
        yield from _of(key, row)
    if seen.rows:
        states = Counter(row.state.value for row in seen.rows.values())
        counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        proved = f"; {seen.reports} signed reports hold" if seen.reports is not None else ""
        yield Finding(check="ledger", level="ok", what=f"{len(seen.rows)} GPUs: {counts}{proved}")


def off(what: str) -> Finding:
    """Return what there is to say of GPUs that are given away without a ledger."""
    return Finding(
        check="ledger",
        level="warn",
        what=what,
        why="a pod that is removed by force may share its GPU with the next one, and nothing is counted for usage",
        fix="take `lease.ledger=off` out of the settings: on is the default",
    )


def _of(key: str, row: Row) -> Iterator[Finding]:
    why = row.message or row.reason
    if row.state in {State.QUARANTINED, State.MAINTENANCE}:
        what = f"{key} is in {row.state.value}: {why or 'nobody said why'}"
        fix = f"`fairlead lease history {key}`, mend it, then `fairlead lease release {key}`"
        yield Finding(check="ledger", level="warn", what=what, why=_NOT_GIVEN, fix=fix)
    elif row.state in _WAITING and why:
        fix = "it goes on by itself once that is mended; `fairlead lease report` says what was tried"
        what = f"{key} is {row.state.value} and waits: {why}"
        yield Finding(check="ledger", level="warn", what=what, why=_NOT_GIVEN, fix=fix)

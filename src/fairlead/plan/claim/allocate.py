"""Allocates devices of one node for the claims of a pod, or says why it cannot: the one door of the search.

In the compatible mode the answer is that of kube-scheduler's default allocator: the same devices, in its order. With
preferences, the scored mode, it is the best set of devices; there is one exactly where the compatible mode has one.
`docs/design/allocator.md` says how, and where the reference is not followed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from fairlead.plan.claim import expression
from fairlead.plan.claim.gate import DEFAULTS, Gates
from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.pool.held import Held
from fairlead.plan.claim.pool.pool import NodePools
from fairlead.plan.claim.refusal import Allocation, Refusal, Verdict
from fairlead.plan.claim.search import explain, rank, request, result
from fairlead.plan.claim.search.best import Best
from fairlead.plan.claim.search.fit import Fitting, Misfit
from fairlead.plan.claim.search.ledger import Placed
from fairlead.plan.claim.search.preference import Preferences
from fairlead.plan.claim.search.rank import Ranking
from fairlead.plan.claim.search.request import Fatal, Table, Wanted
from fairlead.plan.claim.search.walk import BudgetSpent, Walk
from fairlead.plan.claim.selector import Derives, Matches
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim

BUDGET_SPENT: Final = "BudgetSpent"
"""Reason of a refusal: the search was given up."""
_DERIVES: Final = expression.deriver()
BUDGET: Final = 20_000
"""Steps of one search: below a second on one core."""


def allocate(  # noqa: PLR0913 - the one door of the search
    claims: Sequence[ResourceClaim],
    classes: Mapping[str, DeviceClass],
    pools: NodePools,
    held: Held,
    *,
    matches: Matches,
    derives: Derives = _DERIVES,
    gates: Gates = DEFAULTS,
    budget: int = BUDGET,
    preferences: Preferences | None = None,
    is_brief: bool = False,
    share_ids: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> Allocation | Refusal:
    """Return devices for all claims of a pod on one node, or why there are none.

    Args:    claims: those of the pod that are not allocated yet.   classes: by name.
             pools: of the node, read with the same gates.   held: by claims that are allocated, or are being allocated.
             matches, derives: ask expressions about devices.
             budget: steps after which the search gives up.   share_ids: makes ids for shares of devices.
             preferences: the best devices by these are chosen, as far as the steps go; None: the first.
             is_brief: a refusal has no device's own words, so that nodes that refuse alike say the same.
    """
    fitting = Fitting(pools, held, gates, matches, derives)
    table: Table | None = None
    walk: Walk | None = None
    try:
        table = request.read(claims, classes, gates, lambda row: _all_of(fitting, row))
        walk = Walk(fitting, table, budget)
        if walk.run():
            answer = _first(fitting, walk) if preferences is None else _best(fitting, table, walk, preferences, budget)
            found = result.results(table, answer.placed, answer.chosen, pools.site.name, gates, share_ids)
            return Allocation(results=found, steps=answer.steps, penalty=answer.penalty, is_best=answer.is_best)
        reason, message, is_fatal = *explain.why(fitting, table, is_brief=is_brief), False
    except Fatal as error:
        reason, message, is_fatal = error.reason, error.brief if is_brief else str(error), True
    except BudgetSpent:
        reason, is_fatal = BUDGET_SPENT, False
        message = f"the search was given up after {budget} steps; what is asked for may or may not be there"
    fitting.ledger.rollback(0)
    return Refusal(
        reason=reason,
        message=message,
        is_fatal=is_fatal,
        steps=walk.steps if walk is not None else 0,
        judge=lambda: _judge(fitting, table),
    )


class _Answer(NamedTuple):
    placed: Sequence[Placed]
    chosen: Mapping[tuple[int, int], int]
    """By claim and request, the alternative."""
    steps: int
    penalty: int | None = None
    is_best: bool = True


def _first(fitting: Fitting, walk: Walk) -> _Answer:
    return _Answer(fitting.ledger.placed, fitting.ledger.chosen, walk.steps)


def _best(fitting: Fitting, table: Table, walk: Walk, preferences: Preferences, budget: int) -> _Answer:
    """Return the best answer after the first one, which the ledger holds."""
    left = min(preferences.steps, budget - walk.steps)
    ranking = Ranking(fitting, table, fitting.ledger.chosen, left)
    best = Best(fitting.afresh(), rank.only(table, ranking.chosen), preferences, ranking.placed)
    best.run(left - ranking.steps)
    steps = walk.steps + ranking.steps + best.steps
    return _Answer(best.placed, ranking.chosen, steps, best.penalty, best.is_best and ranking.is_done)


def _judge(fitting: Fitting, table: Table | None) -> tuple[Verdict, ...]:
    return tuple(explain.verdicts(fitting, table)) if table is not None else ()


def _all_of(fitting: Fitting, row: Wanted) -> tuple[Candidate, ...]:
    """Return all devices that a row matches, those that are held too. Raises: Fatal: a pool is not whole."""
    where = f"claim {row.owner}, request {row.name}: asks for all devices, but resource pool"
    found: list[Candidate] = []
    for pool in fitting.pools.pools:
        if pool.is_incomplete:
            raise Fatal(f"{where} {pool} is currently being updated", "PoolIncomplete")
        if pool.invalid:
            raise Fatal(f"{where} {pool} is currently invalid: {pool.invalid}", "PoolInvalid")
        found += [one for one in pool.candidates if _is_of_all(fitting, row, one)]
    return tuple(found)


def _is_of_all(fitting: Fitting, row: Wanted, candidate: Candidate) -> bool:
    return fitting.selects(row, candidate) is None and not isinstance(fitting.consumed(row, candidate), Misfit)

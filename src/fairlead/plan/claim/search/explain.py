"""Says why a search found nothing: first what each request alone lacks, then what requests lack together.

Source: none; the reference says no more than that it failed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.plan.claim import refusal
from fairlead.plan.claim.refusal import Verdict
from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.request import MOST, Constraint, Fatal, Table, Wanted


def verdicts(fitting: Fitting, table: Table) -> Iterator[Verdict]:
    """Yield what refuses each device for each row; the ledger must be empty, and is so again afterwards."""
    for row in table.rows:
        yield from of_row(fitting, row)


def of_row(fitting: Fitting, row: Wanted) -> Iterator[Verdict]:
    """Yield what refuses each device for one row."""
    for candidate in fitting.pools.candidates:
        mark = fitting.ledger.checkpoint()
        try:
            misfit = fitting.place(row, candidate)
            test, text = (misfit.test, misfit.text) if misfit is not None else ("", "")
        except Fatal as error:
            test, text = "error", str(error)
        fitting.ledger.rollback(mark)
        yield Verdict(claim=row.owner, request=row.label, device=candidate.id, test=test, text=text)


def why(fitting: Fitting, table: Table, *, is_brief: bool = False) -> tuple[str, str]:
    """Return the reason and the message of a search that found nothing. Args: is_brief: with no device's own words."""
    fitting.ledger.rollback(0)
    problem = _pools(fitting)
    if problem is not None:
        return problem
    for claim in table.requests:
        for rows in claim:
            alone = [_alone(fitting, table, row, is_brief=is_brief) for row in rows]
            if all(text for _, text in alone):
                return alone[0][0], "; ".join(text for _, text in alone)
    return "TooFewTogether", _together(fitting, table, is_brief=is_brief)


def _pools(fitting: Fitting) -> tuple[str, str] | None:
    wrong = [f"{pool}: {pool.invalid}" for pool in fitting.pools.pools if pool.invalid]
    if wrong:
        return "PoolInvalid", f"invalid resource pools were encountered ({'; '.join(wrong)})"
    return None


def _alone(fitting: Fitting, table: Table, row: Wanted, *, is_brief: bool) -> tuple[str, str]:
    """Return why a row cannot have its devices even where it is the only one; empty: it can, as far as is seen here."""
    where = f"request {row.label} of claim {row.owner}"
    every = table.every.get(row.at)
    judged = list(of_row(fitting, row))
    if every is not None:
        names = {one.id for one in every}
        bad = [one for one in judged if one.test and one.device in names]
        if not every:
            return "NoneOfAll", f"{where} wants all devices, and {_none(fitting, judged, is_brief=is_brief)}"
        first = refusal.summary(bad, is_brief=True) if is_brief else str(bad[0]) if bad else ""
        return ("NoneOfAll", f"{where} wants all {len(every)} devices: {first}") if bad else ("", "")
    fits = [one for one in judged if not one.test]
    if len(fits) < row.count:
        refused = refusal.summary(judged, is_brief=is_brief)
        message = f"{where} wants {row.count} of {len(judged)} devices, and {len(fits)} fit"
        return "TooFew", f"{message}: {refused}" if refused else f"{message}{_waiting(fitting)}"
    for one in row.constraints:
        most = _most(fitting, one, row, {each.device for each in fits})
        if most < row.count:
            kind = "one value" if one.is_match else "different values"
            return "TooFew", f"{where} wants {row.count} devices with {kind} of {one.attribute}, and there are {most}"
    return "", ""


def _none(fitting: Fitting, judged: list[Verdict], *, is_brief: bool) -> str:
    return refusal.summary(judged, is_brief=is_brief) or f"none is offered{_waiting(fitting)}"


def _waiting(fitting: Fitting) -> str:
    """Return which pools are not read, because not all of their slices are there yet."""
    names = [str(pool) for pool in fitting.pools.pools if pool.is_incomplete]
    return f"; pools that are being updated: {', '.join(names)}" if names else ""


def _most(fitting: Fitting, constraint: Constraint, row: Wanted, fits: set[object]) -> int:
    """Return how many of the devices a constraint lets take part together, at most."""
    counts: dict[object, int] = {}
    for candidate in fitting.pools.candidates:
        if candidate.id in fits:
            for one in fitting.value(constraint, candidate, row) or ():
                counts[one] = counts.get(one, 0) + 1
    if not constraint.is_match:
        return len(counts)
    return max(counts.values(), default=0)


def _together(fitting: Fitting, table: Table, *, is_brief: bool) -> str:
    """Return where requests get stuck that each could be met alone, if devices are taken as they come."""
    fitting.ledger.rollback(0)
    for claim in table.requests:
        for rows in claim:
            stuck: list[str] = []
            while len(stuck) < len(rows) and (words := _stuck(fitting, table, rows[len(stuck)], is_brief=is_brief)):
                stuck.append(words)
            if len(stuck) == len(rows):
                return "; ".join(stuck)
    return f"no choice of alternatives meets every request with the {MOST} devices that a claim can record"


def _stuck(fitting: Fitting, table: Table, row: Wanted, *, is_brief: bool) -> str:
    """Take devices for a row; where there are too few, say why and take none."""
    mark, got = fitting.ledger.checkpoint(), 0
    count = len(table.every[row.at]) if row.is_all else row.count
    for candidate in table.every[row.at] if row.is_all else fitting.pools.candidates:
        got += got < count and fitting.place(row, candidate) is None
    if got == count:
        return ""
    refused = refusal.summary(list(of_row(fitting, row)), is_brief=is_brief)
    before = f" beside {len(fitting.ledger.placed) - got} for requests before it" if mark else ""
    fitting.ledger.rollback(mark)
    return f"request {row.label} of claim {row.owner} wants {count} devices and gets {got}{before}: {refused}"

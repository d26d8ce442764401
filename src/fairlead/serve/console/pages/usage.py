"""Shows usage: who held GPUs for how long, day by day, and what that costs."""

from __future__ import annotations

import datetime as dt
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Final

import litestar

from fairlead import errors
from fairlead.serve.console.draw import charts
from fairlead.serve.console.visit import Visitor
from fairlead.serve.v1.usage.view import UsageReport, UsageRow
from fairlead.wire.text import timestamp

PERIODS: Final[Mapping[str, str]] = {
    "month": "this month",
    "7": "last 7 days",
    "30": "last 30 days",
    "90": "last 90 days",
}
GROUPS: Final[Mapping[str, str]] = {"tenancy": "tenancy", "model": "model of GPU", "node": "node", "gpu": "GPU"}


@litestar.get("/console/usage", include_in_schema=False)
async def usage(visit: Visitor) -> litestar.Response[bytes]:
    """Show usage."""
    period = visit.query.get("period", "") if visit.query.get("period") in PERIODS else "month"
    group = visit.query.get("group", "") if visit.query.get("group") in GROUPS else "tenancy"
    chosen: dict[str, Any] = {"periods": PERIODS, "groups": GROUPS, "period": period, "group": group}
    since, until = _period(period, time.time())
    asked = {"since": timestamp.emit(since), "until": timestamp.emit(until)}
    try:
        by_day = await visit.api.get(UsageReport, "/v1/usage", **asked, group_by=f"day,{group}")
        report = await visit.api.get(UsageReport, "/v1/usage", **asked, group_by=group)
    except errors.NotFound as error:
        return visit.page("usage", report=None, problem=error, **chosen)
    values = {(row.group["day"], row.group[group] or "not known"): row.gpu_seconds / 3600 for row in by_day.items}
    return visit.page(
        "usage",
        report=report,
        chart=charts.by_day(values, charts.days(since, until), "GPU hours"),
        rows=[(row, row.group[group] or "not known", _share(row, report)) for row in report.items],
        export=f"/v1/usage/focus?{urllib.parse.urlencode(asked)}",
        **chosen,
        has_cost=any(row.cost not in {"", "0"} for row in _all(report)),
    )


def _period(word: str, now: float) -> tuple[float, float]:
    """Return begin and end: whole days of UTC up to now."""
    today = dt.datetime.fromtimestamp(now, dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today.replace(day=1) if word == "month" else today - dt.timedelta(days=int(word) - 1)
    return first.timestamp(), now


def _share(row: UsageRow, report: UsageReport) -> float:
    return 100 * row.gpu_seconds / report.total.gpu_seconds if report.total.gpu_seconds else 0.0


def _all(report: UsageReport) -> Iterable[UsageRow]:
    return (*report.items, report.total)


ROUTES: Final = (usage,)

"""Says how queues stand, as the status of their objects: what each has, waits for and is due. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead.plan.schedule.fairshare import tree
from fairlead.plan.schedule.fairshare.ledger import shown
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.scheduling import queue
from fairlead.wire.text import timestamp

USAGE_S: Final = 60.0
"""Between two reports of the usage alone."""


def changed(workloads: Workloads, now: float) -> list[queue.Queue]:
    """Return the queues whose status is another than their objects say; `now`: Unix seconds."""
    found, ledger = [], workloads.ledger
    pending, counts, allocated, shares = ledger.pending(), ledger.counts(), ledger.allocated, ledger.shares
    for name, item in workloads.queues().items():
        status = msgspec.structs.replace(
            item.status,
            allocated=_amounts(allocated.get(name, {})),
            pending=_amounts(pending.get(name, {})),
            share=_amounts(shares.get(name, {})),
            running_pods=counts.get(name, (0, 0))[0],
            pending_pods=counts.get(name, (0, 0))[1],
            conditions=_conditions(item, workloads.invalid.get(name, "")),
        )
        status = _with_usage(status, ledger.usage().get(name, {}), now)
        if status != item.status:
            found.append(msgspec.structs.replace(item, status=status))
    return found


def _with_usage(status: queue.QueueStatus, usage: Mapping[str, float], now: float) -> queue.QueueStatus:
    is_old = now - timestamp.unix_seconds(status.usage_at) > USAGE_S
    if not usage or not is_old:
        return status
    said = {name: round(value / tree.UNIT, 3) for name, value in usage.items()}
    return msgspec.structs.replace(status, usage=said, usage_at=meta.emit_time(now))


def _amounts(thousandths: Mapping[str, int]) -> dict[str, str]:
    return {name: shown(value) for name, value in sorted(thousandths.items()) if value}


def _conditions(item: queue.Queue, problem: str) -> tuple[meta.Condition, ...]:
    wanted = meta.Condition(
        type="Valid",
        status="False" if problem else "True",
        reason="QueueInvalid" if problem else "Valid",
        message=problem,
        last_transition_time=meta.now(),
    )
    return meta.with_condition(item.status.conditions, wanted)

"""Composes notices to people: when they are told, and what is said of those given up."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from fairlead.model.container.step import TraceStep
from fairlead.serve.webhooks import foresight
from fairlead.serve.webhooks.port import Due
from fairlead.settings.serving import NotifySettings
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core


def times(given: NotifySettings) -> foresight.Times:
    """Return when people are told."""
    return foresight.Times(wait_s=given.wait_min * 60, ahead_s=given.ahead_min * 60)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Says of a container that a notice about it was given up."""

    store: Store

    async def record(self, item: Due, _why: str) -> None:
        """Record an event of the container, if the notice is of one."""
        data = json.loads(item.body).get("data", {})
        if not data.get("name") or not data.get("namespace"):
            return
        about = core.ObjectReference(
            api_version=core.Pod.API_VERSION,
            kind=core.Pod.KIND,
            name=str(data["name"]),
            namespace=str(data["namespace"]),
            uid=str(data.get("uid", "")),
        )
        # Where it was to go is its owner's alone to know, and who sees the container may be somebody else.
        message = f"a notice of it was given up ({item.format}): `fairlead notify show` or `webhook show` say why"
        step = TraceStep(layer="api", reason="NoticeGivenUp", message=message, at=time.time(), is_warning=True)
        await tracerecorder.record(self.store, about, step, once=f"notice {item.webhook}")

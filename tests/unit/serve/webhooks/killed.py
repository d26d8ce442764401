"""A program that writes an event and delivers it, and kills itself where it is told to."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fairlead import telemetry
from fairlead.serve.database import engine
from fairlead.serve.webhooks import address, port, store
from fairlead.serve.webhooks.delivery import Sender

ALLOWED = address.read_networks("127.0.0.0/8")


async def main(folder: str, point: str) -> None:
    telemetry.arm_crash_point(point)
    async with engine.opened(engine.url_of("", Path(folder))) as database:
        kept = store.StoredWebhooks(database=database, allowed=ALLOWED)
        event = port.Event(type="container.running", uid="", data={"name": "train"})
        await kept.record("pod:1", "running", [event])
        telemetry.crash_point("webhook-recorded")
        await Sender(outbox=kept, allowed=ALLOWED).deliver()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Serves the API of a machine whose node is away, over a real SQLite store: a process that a test kills.

python -m tests.contract.apiprocess FOLDER [CRASH_POINT]
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from fairlead import telemetry
from fairlead.engine.fake import engine
from fairlead.model.gpu import Inventory
from fairlead.serve import server
from fairlead.serve.backend import local
from fairlead.serve.backend.containers import lifecycle
from fairlead.serve.v1 import app, dependencies
from fairlead.store.sqlite import store as sqlite


async def main(folder: Path, point: str) -> None:
    with sqlite.SQLiteStore(folder / "state.db") as store:
        living = lifecycle.LocalLifecycle(store=store)
        backend = local.backend(
            store=store,
            engine=engine.FakeEngine(),
            node="one",
            readings=local.Readings(scan=lambda: Inventory(gpus=(), links=(), is_simulated=True), drivers=tuple),
            faults=None,
            state_folder=folder,
            living=living,
        )
        info = dependencies.ServiceInfo(
            version="0",
            node="one",
            started_at=time.time(),
            scheduler_name="fairlead",
            resource="nvidia.com/gpu",
            socket=folder / "api.sock",
            state_folder=folder,
            cdi_folder=folder / "cdi",
        )
        services = dependencies.Services(store=store, backend=backend, info=info, callers=dependencies.Callers())
        telemetry.arm_crash_point(point)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(living.keep())
            ready = asyncio.Event()
            tasks.create_task(server.serve_unix(app.create_app(services), info.socket, ready=ready))
            await ready.wait()
            print("ready", flush=True)  # noqa: T201 read by the test


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), (sys.argv[2:] or [""])[0]))

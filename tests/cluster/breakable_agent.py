"""`fairlead agent` with a door for faults: the same agent and silicon, and a socket that breaks and mends GPUs.

Run as `python breakable_agent.py SOCKET`; a line `FAULT GPU [VALUE]` is answered with `done …` or `refused …`. The
product has such a door in `fairlead up` only: an agent on a cluster takes no orders from a socket.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from pathlib import Path

from fairlead import errors, settings, telemetry
from fairlead.node import agent
from fairlead.silicon.sim import silicon


async def main(path: Path) -> None:
    defaults = settings.Settings()
    plugins = Path("/var/lib/kubelet/device-plugins")
    config = dataclasses.replace(defaults, node=dataclasses.replace(defaults.node, kubelet_folder=plugins))
    folder = config.state.folder / "silicon"
    folder.mkdir(parents=True, exist_ok=True)
    gpus = silicon.SimulatedSilicon(folder, "h100x8")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault, gpu, *value = (await reader.readline()).decode().split()
        try:
            said = gpus.inject(fault, gpu=int(gpu), value=value[0] if value else None)
            writer.write(f"done {said}\n".encode())
        except errors.FairleadError as error:
            writer.write(f"refused {error.message}\n".encode())
        await writer.drain()
        writer.close()

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    path.unlink(missing_ok=True)
    door = await asyncio.start_unix_server(answer, path)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(agent.run_agent(config, gpus, None, ready=None))
            await stop.wait()
            task.cancel()
    finally:
        door.close()
        await gpus.close()


if __name__ == "__main__":
    telemetry.configure("info", "json")
    asyncio.run(main(Path(sys.argv[1])))

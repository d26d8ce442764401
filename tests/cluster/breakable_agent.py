"""`fairlead agent` with a door for faults: the same agent and silicon, and a socket that breaks and mends GPUs.

Run as `python breakable_agent.py SOCKET [KUBECONFIG NODE]`; a line `FAULT GPU [VALUE]` is answered with `done …` or
`refused …`. With a kubeconfig the agent publishes to that cluster as this node. The product has such a door in
`fairlead up` only: an agent on a cluster takes no orders from a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import sys
from pathlib import Path

from fairlead import errors, settings, telemetry
from fairlead.node import agent
from fairlead.silicon.sim import silicon
from fairlead.store.kubernetes import credentials, store


async def main(path: Path, kubeconfig: str = "", node: str = "") -> None:
    defaults = settings.Settings()
    plugins = Path("/var/lib/kubelet/device-plugins")
    config = dataclasses.replace(defaults, node=dataclasses.replace(defaults.node, kubelet_folder=plugins, name=node))
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
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(gpus.close)
        stack.callback(door.close)
        objects: store.KubernetesStore | None = None
        if kubeconfig:
            access = credentials.from_files([Path(kubeconfig)], env={})
            objects = await stack.enter_async_context(store.KubernetesStore(access))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        around = agent.Surroundings(is_kubelet_foreign=objects is not None)
        run = agent.run_agent(config, gpus, objects, ready=None, around=around)
        task = tasks.create_task(run)
        await stop.wait()
        task.cancel()


if __name__ == "__main__":
    telemetry.configure("info", "json")
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))

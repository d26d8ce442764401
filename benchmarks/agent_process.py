"""The node agent in a process of its own, on simulated silicon, as the node benchmarks measure it.

`python -m benchmarks.agent_process FOLDER PROFILE` prints one JSON line when its imports are done and one when it is
ready (monotonic seconds, the clock all processes share), then obeys lines on standard input: `inject FAULT GPU [VALUE]`
answers with the time right before the fault, `memory` with the resident bytes. End of input ends it. With a tree and a
value of `node.vfio` behind them, GPUs of the tree are passed through by the ledger; with a library and the address of a
Fabric Manager behind those, in slots of several.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from fairlead import settings, telemetry
from fairlead.node import agent
from fairlead.silicon.sim import silicon as simulated

ENGINE = "containerd://2.2.1"
"""What serves the kubelet: without it the agent refuses Allocate."""


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def obey(line: str, silicon: simulated.SimulatedSilicon) -> None:
    match line.split():
        case ["inject", fault, gpu, *value]:
            at = time.monotonic()
            say(event="injected", at=at, done=silicon.inject(fault, gpu=int(gpu), value=value[0] if value else None))
        case ["memory"]:
            say(event="memory", bytes=resident_bytes())
        case _:
            say(event="unknown", line=line)


async def commands() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main(
    folder: Path, profile: str, tree: str = "", vfio: str = "off", library: str = "", manager: str = ""
) -> None:
    config = settings.Settings(
        state=settings.StateSettings(folder=folder, run=folder / "run"),
        node=settings.NodeSettings(
            name="bench", cdi_folder=folder / "cdi", engine=ENGINE, vfio=vfio, fabric="on" if manager else "off"
        ),
        silicon=settings.SiliconSettings(root=Path(tree or "/")),
        # The same GPUs are asked for a thousand times, which a ledger refuses; its part is a row of its own.
        lease=settings.LeaseSettings(ledger="on" if tree else "off"),
    )
    if manager:
        config = settings.override(config, {"fabric.library": library, "fabric.manager": manager})
    silicon = simulated.SimulatedSilicon(folder / "silicon", profile)
    started = time.monotonic()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(
                agent.run_agent(
                    config, silicon, None, ready=lambda _: say(event="ready", started=started, at=time.monotonic())
                )
            )
            reader = await commands()
            while line := await reader.readline():
                obey(line.decode(), silicon)
            running.cancel()
    finally:
        await silicon.close()


if __name__ == "__main__":
    say(event="imported", at=time.monotonic())
    telemetry.configure("warning", "json")
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))

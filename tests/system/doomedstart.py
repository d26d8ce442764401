"""Creates and starts one container in a process that its own OCI runtime kills: what a crash of ours leaves.

    python tests/system/doomedstart.py RUNTIME VICTIMS SPEC

SPEC is the container's name, image, label and script as JSON. Process ids (podman's service and this process) are
written to VICTIMS between create and start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from fairlead import settings
from fairlead.engine import port
from fairlead.engine.podman import engine as podman


async def main(runtime: str, victims: Path, name: str, image: str, tag: str, script: str) -> None:
    wanted = port.ContainerSpec(
        name=name, image=image, labels={"fairlead.test": tag}, command=("/bin/sh", "-c"), args=(script,)
    )
    group = settings.EngineSettings(network="none", runtime=runtime)
    async with podman.PodmanEngine(group).served() as engine:
        await engine.create(wanted)
        assert engine.service is not None
        victims.write_text(f"{engine.service.pid} {os.getpid()}")
        await engine.start(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *json.loads(sys.argv[3])))

"""Has GPUs read by the shipped verifier in the node's machine: how long one takes, and several at once.

Between the third gate, which really holds their nodes, and the report all is the agent's own: nothing but the ledger
is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path


def read(image: str, emulator: str, memory_mib: int, addresses: list[str], limit_s: float) -> dict[str, float]:
    """Return seconds from the asking until all GPUs at these addresses were read, and how many were, by one machine.

    Args: image, emulator, memory_mib: of the verifier's machine.   limit_s: for it.
    """
    return asyncio.run(_read(image, emulator, memory_mib, addresses, limit_s))


async def _read(image: str, emulator: str, memory_mib: int, addresses: list[str], limit_s: float) -> dict[str, float]:
    from fairlead.node.vfio import busevents, gpus, modules, nodes, thirdgate
    from fairlead.node.vm import verifier

    async def reset(_: str) -> None:
        raise AssertionError("nothing is reset here")

    gate = thirdgate.ThirdGate(nodes.take_hold, patience_s=limit_s)
    found = gpus.PassthroughGPUs(
        Path("/"),
        modules.ModuleMemory(Path("/run/verifying")),
        nodes.take_hold,
        reset,
        held=lambda: gate.held,
        bus=busevents.BusEvents(lambda: None),
    )
    seen = [gpu for driver in await found.scan() for gpu in driver.passthrough]
    wanted = [gpu for gpu in seen if gpu.address in addresses]
    assert len(wanted) == len(addresses), seen
    gate.update(seen)
    refused = await gate.take(str(gpu.key) for gpu in wanted)
    assert not refused, refused
    options = verifier.Options(
        image=image, emulator=emulator, firmware="", memory_mib=memory_mib, processors=1, limit_s=limit_s
    )
    machine = verifier.MachineVerifier(options, gate.lend)
    began = time.monotonic()
    with contextlib.ExitStack() as coming:
        for gpu in wanted:
            coming.enter_context(machine.expecting(str(gpu.key)))
        readings = await asyncio.gather(*(machine.read(gpu) for gpu in wanted))
    took = time.monotonic() - began
    gate.close()
    assert len({one.seconds for one in readings}) == 1, "they were read by several machines"
    return {"seconds": took, "machine": readings[0].seconds, "gpus": len(readings)}

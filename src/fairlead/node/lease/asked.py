"""Carries out what administrators ask for on GPUDevice objects: quarantine, and nothing else.

An object may take a GPU out of service and never give it back, so that no writer of one can free a GPU. While it asks,
a GPU that is released on its node goes into quarantine again. Where the node keeps no ledger, the GPU is not offered as
long as the object asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from fairlead import errors, telemetry
from fairlead.node.inventory import latest
from fairlead.plan.lease.row import State

if TYPE_CHECKING:
    from fairlead.node.lease import gate

BY: Final = "GPUDevice"
"""Who asked, in the ledger's history."""
REASON: Final = "QuarantineAsked"
_AGAIN_S: Final = 5.0


async def carry_out(gate: gate.Gate, quarantines: latest.Latest[Mapping[str, str]]) -> None:
    """Keep GPUs back in the ledger for ever. Args: quarantines: why, by UUID."""
    due = asyncio.Event()

    async def wake(source: latest.Latest[Mapping[str, object]]) -> None:
        await source.follow(lambda _: due.set())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wake(quarantines), name="quarantine: asked")  # type: ignore[arg-type]  # read alone
        tasks.create_task(wake(gate.rows), name="quarantine: ledger")  # type: ignore[arg-type]  # read alone
        while True:
            await due.wait()
            due.clear()
            for gpu, why in quarantines.value.items():
                row = gate.rows.value.get(gpu)
                if row is None or row.state is State.QUARANTINED or row.is_condemned:
                    continue
                try:
                    await gate.quarantine(gpu, why, BY)
                except errors.FairleadError as error:
                    telemetry.log.warning("quarantine failed, will retry", gpu=gpu, reason=error.reason)
                    asyncio.get_running_loop().call_later(_AGAIN_S, due.set)


async def keep_unoffered(quarantines: latest.Latest[Mapping[str, str]], changed: Callable[[], None]) -> None:
    """Have GPUs judged anew whenever others are asked for, where there is no ledger, for ever."""
    await quarantines.follow(lambda _: changed())

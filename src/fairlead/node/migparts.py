"""Composes the agent's part that keeps MIG partitions: silicon that can be partitioned, the Node's label, the kubelet.

The part is there where a configuration may be chosen: by a setting, or by the label of a Node.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping

from fairlead import telemetry
from fairlead.model import replica
from fairlead.node import storeparts
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest
from fairlead.node.mig import configurator, drain
from fairlead.plan import supply
from fairlead.plan.gpu.attribution import Holding
from fairlead.settings import NodeSettings
from fairlead.silicon.port import Partitionable
from fairlead.store.port import Store
from fairlead.store.subresource import Placement


class MIGPart:
    """Runs the configurator between the kubelet's list, which wakes it, and the plugins, which keep devices back."""

    def __init__(
        self, found: configurator.Configurator, holdings: podresources.Holdings, changed: Callable[[], None]
    ) -> None:
        """Take who configures. Args: changed: called whenever other devices are kept back, or none any more."""
        self._found, self._holdings, self._changed = found, holdings, changed

    def withheld(self) -> Mapping[str, supply.Problem]:
        """Return the GPUs and MIG devices that must not be given away now, each with why."""
        return dict.fromkeys(self._found.blocked.value, (configurator.REASON, "its GPU is being partitioned anew"))

    async def run(self, meter: telemetry.Meter) -> None:
        """Keep the partitions as the chosen configuration says, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._found.run(meter), name="mig")
            tasks.create_task(self._follow(self._found.blocked.changes(), self._changed), name="mig: kept back")
            tasks.create_task(self._follow(self._holdings.latest.changes(), self._found.poke), name="mig: holders")

    @staticmethod
    async def _follow(changes: AsyncIterator[object], act: Callable[[], None]) -> None:
        async for _ in changes:
            act()


def compose(
    settings: NodeSettings,
    silicon: object,
    of_store: storeparts.StoreParts | None,
    *,
    holdings: podresources.Holdings,
    changed: Callable[[], None],
    told: configurator.Told,
    store: Store | None = None,
    placement: Placement | None = None,
) -> MIGPart | None:
    """Return who keeps the partitions; None: the silicon cannot be partitioned, or nothing can choose a configuration.

    Args:   of_store: knows the Node; None: the agent has no store.   changed, told: see MIGPart and Configurator.
            store, placement: with which pods are evicted where a node may be drained; None: none is.
    """
    partitioner = silicon.partitioner() if isinstance(silicon, Partitionable) else None
    if partitioner is None or (of_store is None and not settings.mig_config):
        return None
    labels = of_store.node.labels if of_store is not None else None
    found = configurator.Configurator(
        partitioner,
        file=settings.mig_config_file,
        default=settings.mig_config,
        labels=labels,
        in_use=functools.partial(_ask_in_use, holdings),
        state=of_store.mig.state if of_store is not None else latest.Latest(""),
        told=told,
    )
    if placement is not None and store is not None:
        found.drain = drain.Drain(
            settings.mig_drain,
            store,
            placement,
            labels=labels,
            ask=functools.partial(_ask, holdings),
        )
    return MIGPart(found, holdings, changed)


async def _ask_in_use(holdings: podresources.Holdings) -> frozenset[str]:
    """Ask the kubelet which GPUs and MIG devices are held, by UUID. Raises: as `_ask`."""
    return frozenset(replica.origin(name) for one in await _ask(holdings) for name in one.ids)


async def _ask(holdings: podresources.Holdings) -> tuple[Holding, ...]:
    """Ask the kubelet who holds what; nothing where there is no kubelet. Raises: Unavailable: it does not say."""
    if not await asyncio.to_thread(holdings.socket.exists):
        return ()
    return await holdings.read()

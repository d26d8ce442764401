"""Measures what was held of GPUs from the GPULease objects, on one machine and on a cluster alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from fairlead import errors
from fairlead.plan.metering import price, usage
from fairlead.plan.metering.price import Pricing
from fairlead.plan.tenancy import baseline
from fairlead.serve.metering.port import Measured
from fairlead.settings import MeteringSettings
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)


def pricing(settings: MeteringSettings) -> Pricing:
    """Return the prices that settings say. Raises: Invalid (`PricesInvalid`)."""
    return price.read(settings.prices, settings.currency)


_NOTHING_YET: Final = "no GPU was held yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMetering:
    """A `port.Metering` over a store."""

    store: Store
    pricing: Pricing
    clock: Callable[[], float] = time.time
    is_kept: bool = True
    """Whether possessions are written down here; a service of a cluster takes it that its agents do."""

    async def measure(self, *, begin: int, end: int) -> Measured:
        """See `port.Metering.measure`."""
        leases = (await self.store.list(GPULease)).items
        if not leases and not self.is_kept:
            message = "no possession of a GPU is written down here: the ledger is off"
            hint = "set `lease.ledger=on`, which is the default: usage counts from the next container on"
            raise errors.NotFound(message, reason="NoLeases", hint=hint)
        models = {one.metadata.name: one.spec.product for one in await self._all(GPUDevice)}
        tenancies = {baseline.namespace_name(one): one.metadata.name for one in await self._all(Tenancy)}
        found = usage.intervals(leases, models, now=self.clock())
        return Measured(
            charges=usage.charges((one for one in found.items if one.namespaces), begin=begin, end=end),
            unattributed=usage.held((one for one in found.items if not one.namespaces), begin=begin, end=end),
            notes=found.notes if leases else (_NOTHING_YET,),
            tenancies=tenancies,
        )

    async def _all(self, kind: type[T]) -> tuple[T, ...]:
        """Return the objects of a kind; none where the cluster does not know it."""
        try:
            return tuple((await self.store.list(kind)).items)
        except errors.NotFound:
            return ()

"""Holds a pod of a tenancy back until its tenancy is ready and its packets are filtered, read back from the kernel.

The status of a tenancy may be of before a reboot, or of before a flush of the tables: the rules are read right
before the process is let go, and a process without them is not started.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.kernel.network import netfilter
from fairlead.node.tenancy import exports, network
from fairlead.plan.tenancy import baseline, firewall
from fairlead.store.port import Store
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta

PATIENT: Final = frozenset(
    {"TenancyNotReady", "NetworkNotIsolated", "NetfilterUnusable", exports.SILENT, exports.NOT_MOUNTED}
)
"""Reasons of ours that end by themselves: a pod waits for them however often it was tried."""


async def find(store: Store, pod: core.Pod) -> Tenancy | None:
    """Return the tenancy of a pod, ready; None where its namespace is a plain one.

    Raises: Denied: it is gone, or suspended; Unavailable (`TenancyNotReady`).
    """
    try:
        place = (await store.get(core.Namespace, pod.metadata.namespace)).metadata
    except errors.NotFound:
        place = meta.ObjectMeta(name=pod.metadata.namespace)
    tenancies = (await store.list(Tenancy)).items if baseline.UID in place.labels else ()
    found = baseline.find_owner(place, tenancies)
    if found is not None and (problem := baseline.refusal(found)):
        raise problem
    return found


async def check(item: Tenancy, home: str, *, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the families in which the tenancy's rules were found in force; none where it has no network.

    Raises: Unavailable (`NetworkNotIsolated`, `NetfilterUnusable`).
    """
    status = item.status.network
    if item.spec.network.mode == kind.NONE or not status.name:
        return ()
    plain = firewall.Net(interface=status.interface, subnets=status.subnets, gateways=status.gateways)
    wanted, own = network.of_spec(plain, item), firewall.chains(home)
    families = netfilter.families(root)
    tables = await asyncio.gather(*(netfilter.saved(family) for family in families))
    for family, saved in zip(families, tables, strict=True):
        if absent := firewall.missing(saved, wanted, own, family):
            name = item.metadata.name
            message = f'tenancy "{name}" is not isolated: of its rules for IPv{family} {len(absent)} are not in force'
            hint = f"first: {absent[0]}; the service writes them anew within seconds"
            raise errors.Unavailable(message, reason="NetworkNotIsolated", hint=hint)
    return tuple(f"IPv{family}" for family in families)

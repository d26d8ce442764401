"""Describes tenancies and what was tried of their networks; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.plan.tenancy import baseline
from fairlead.wire.fairlead import tenancy
from fairlead.wire.kubernetes.meta import Condition


class TenancyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenancy to make; `name` is the only field that must be there."""

    name: Annotated[str, msgspec.Meta(description="a DNS label of at most 53 characters")]
    display_name: str = ""
    quota: Annotated[Mapping[str, str], msgspec.Meta(description='as a ResourceQuota, {"pods": "20"}')] = {}
    mode: Annotated[str, msgspec.Meta(description="bridge: a network of its own; none: no network")] = tenancy.BRIDGE
    internet: Annotated[str, msgspec.Meta(description="allow or deny")] = tenancy.ALLOW
    dns: Annotated[bool, msgspec.Meta(description="names are resolved")] = True
    publish: Annotated[bool, msgspec.Meta(description="published ports lead in")] = True
    egress: Annotated[tuple[str, ...], msgspec.Meta(description="CIDRs that are allowed all the same")] = ()
    images: Annotated[tuple[str, ...], msgspec.Meta(description="that its containers may have; none: any")] = ()


class TenancyView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenancy as it stands."""

    name: str
    uid: str
    phase: Annotated[str, msgspec.Meta(description="Pending, Ready, Suspended or Terminating")]
    problem: Annotated[str, msgspec.Meta(description="what keeps it from its next phase; empty: nothing")]
    namespace: Annotated[str, msgspec.Meta(description="of its containers, volumes and quota")]
    spec: tenancy.TenancySpec
    network: tenancy.NetworkStatus
    conditions: tuple[Condition, ...]
    used: Annotated[Mapping[str, str], msgspec.Meta(description="of its quota")]
    containers: Annotated[int, msgspec.Meta(description="that have not ended")]
    created_at: str | None


class TenancyList(msgspec.Struct, frozen=True, kw_only=True):
    """Tenancies."""

    items: tuple[TenancyView, ...]


def view(item: tenancy.Tenancy, *, used: Mapping[str, str], containers: int) -> TenancyView:
    """Return a tenancy as the API shows it."""
    status, about = item.status, item.metadata
    is_ending = about.deletion_timestamp is not None
    old = status.observed_generation != about.generation
    phase = tenancy.TERMINATING if is_ending else tenancy.PENDING if old else status.phase
    ready = next((one for one in status.conditions if one.type == tenancy.READY), None)
    is_good = ready is not None and ready.status == "True" and not old
    return TenancyView(
        name=about.name,
        uid=about.uid,
        phase=phase or tenancy.PENDING,
        problem="" if ready is None or is_good else ready.message,
        namespace=status.namespace or baseline.namespace_name(item),
        spec=item.spec,
        network=status.network,
        conditions=status.conditions,
        used=used,
        containers=containers,
        created_at=about.creation_timestamp,
    )

"""Describes tenancies and what was tried of their networks; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.plan.tenancy import baseline, export
from fairlead.wire.fairlead import listing, tenancy


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
    host_users: Annotated[
        bool, msgspec.Meta(description="on a cluster, false: each pod must have a user namespace of its own")
    ] = True
    isolation: Annotated[
        str, msgspec.Meta(description="none, gvisor or vm, for each of its containers; empty: each chooses")
    ] = ""
    nfs: Annotated[str, msgspec.Meta(description="export that its volumes are on, SERVER:/PATH; empty: on disk")] = ""
    nfs_options: Annotated[tuple[str, ...], msgspec.Meta(description="mount options of the export, vers=4.2")] = ()


class TenancyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a tenancy is to be other than it is; what is not named stays."""

    display_name: str | None = None
    quota: Annotated[
        Mapping[str, str | None], msgspec.Meta(description='limits by resource, {"pods": "20"}; null: no limit')
    ] = {}


class RegistryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credentials of a tenancy for one registry; they are never shown again."""

    registry: Annotated[str, msgspec.Meta(description="host, with a port and path where it has them")]
    username: str
    password: Annotated[str, msgspec.Meta(description="a password or token", extra_json_schema={"writeOnly": True})]

    def __repr__(self) -> str:
        """Return what may be in a log."""
        return f"RegistryRequest(registry={self.registry!r}, username={self.username!r})"


class NetworkView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenancy's network as the engine made it."""

    name: Annotated[str, msgspec.Meta(description="of the engine's network; empty: there is none")]
    interface: Annotated[str, msgspec.Meta(description="bridge on the host")]
    subnets: Annotated[tuple[str, ...], msgspec.Meta(description="one of IPv4, one of IPv6 where the host has it")]
    gateways: Annotated[tuple[str, ...], msgspec.Meta(description="the host's address in each, where names are asked")]


class ConditionView(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a tenancy, and whether it is as it should be."""

    type: Annotated[
        str, msgspec.Meta(description="NamespaceReady, NetworkIsolated, QuotaApplied, VolumesMounted or Ready")
    ]
    status: Annotated[str, msgspec.Meta(description="True, False or Unknown")]
    reason: str
    message: str
    since: Annotated[str | None, msgspec.Meta(description="since when it is so; null: nothing says")]


class TenancyView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenancy as it stands; what was asked for has the names of `TenancyRequest`."""

    name: str
    uid: str
    phase: Annotated[str, msgspec.Meta(description="Pending, Ready, Suspended or Terminating")]
    problem: Annotated[str, msgspec.Meta(description="what keeps it from its next phase; empty: nothing")]
    namespace: Annotated[str, msgspec.Meta(description="of its containers, volumes and quota")]
    display_name: str
    quota: Mapping[str, str]
    mode: str
    internet: str
    dns: bool
    publish: bool
    egress: tuple[str, ...]
    images: tuple[str, ...]
    host_users: bool
    isolation: Annotated[str, msgspec.Meta(description="of each of its containers; empty: each chooses")]
    nfs: Annotated[str, msgspec.Meta(description="export that its volumes are on; empty: on disk")]
    registries: Annotated[tuple[str, ...], msgspec.Meta(description="registries that it has credentials for")]
    suspended: bool
    network: NetworkView
    conditions: tuple[ConditionView, ...]
    used: Annotated[Mapping[str, str], msgspec.Meta(description="of its quota")]
    containers: Annotated[int, msgspec.Meta(description="number of containers that have not ended")]
    created_at: str | None


class TenancyList(msgspec.Struct, frozen=True, kw_only=True):
    """Tenancies."""

    items: tuple[TenancyView, ...]
    next: listing.Next = ""


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
        display_name=item.spec.display_name,
        quota=item.spec.quota,
        mode=item.spec.network.mode,
        internet=item.spec.network.internet,
        dns=item.spec.network.dns,
        publish=item.spec.network.publish,
        egress=item.spec.network.egress,
        images=item.spec.images,
        host_users=item.spec.host_users,
        isolation=item.spec.isolation,
        nfs=export.source(item.spec.storage.nfs) if item.spec.storage.nfs is not None else "",
        registries=item.spec.registries,
        suspended=item.spec.suspended,
        network=NetworkView(
            name=status.network.name,
            interface=status.network.interface,
            subnets=status.network.subnets,
            gateways=status.network.gateways,
        ),
        conditions=tuple(
            ConditionView(
                type=one.type,
                status=one.status,
                reason=one.reason,
                message=one.message,
                since=one.last_transition_time,
            )
            for one in status.conditions
        ),
        used=used,
        containers=containers,
        created_at=about.creation_timestamp,
    )

"""Describes named volumes; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import core


class VolumeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume to make."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = {}
    size: Annotated[str | int, msgspec.Meta(description="bytes asked of a cluster, `10Gi`; a machine takes none")] = ""


class VolumeView(msgspec.Struct, frozen=True, kw_only=True):
    """One named volume."""

    name: str
    namespace: str
    state: Annotated[str, msgspec.Meta(description="ready, pending (a cluster has not made it yet) or removing")]
    used_by: Annotated[tuple[str, ...], msgspec.Meta(description="containers that mount it, ended ones too")]
    path: Annotated[str, msgspec.Meta(description="folder of this machine, for its administrators; empty on a cluster")]
    size: Annotated[str, msgspec.Meta(description="capacity on a cluster; empty on one machine: the disk is the limit")]
    storage_class: str
    labels: Mapping[str, str]
    created_at: str | None


class VolumeList(msgspec.Struct, frozen=True, kw_only=True):
    """Volumes."""

    items: tuple[VolumeView, ...]
    next: listing.Next = ""


class PrunedVolumes(msgspec.Struct, frozen=True, kw_only=True):
    """Volumes that were removed."""

    names: tuple[str, ...]


def volume_view(claim: core.PersistentVolumeClaim, *, used_by: tuple[str, ...], path: str) -> VolumeView:
    """Describe a claim; one with a folder needs no controller to bind it."""
    about = claim.metadata
    is_ready = bool(path) or claim.status.phase == "Bound"
    return VolumeView(
        name=about.name,
        namespace=about.namespace,
        state="removing" if about.deletion_timestamp else "ready" if is_ready else "pending",
        used_by=used_by,
        path=path,
        size=str(claim.status.capacity.get("storage", "")),
        storage_class=claim.spec.storage_class_name or "",
        labels=about.labels,
        created_at=about.creation_timestamp,
    )

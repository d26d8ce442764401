"""Renders a tenancy's NFS export as the volume and the claim by which a cluster's kubelets mount it. Pure.

The volume names the one claim that may have it (`claimRef`), so no other binds to it, whatever that one asks for. It is
retained: Kubernetes removes no file. Pods mount the claim, or a folder of it by `subPath`.
Source: k8s.io/api/core/v1 types.go, PersistentVolumeSpec; Kubernetes documentation, "Reserving a PersistentVolume".
"""

from __future__ import annotations

from typing import Final

from fairlead.plan.tenancy import baseline, export
from fairlead.wire.fairlead.tenancy import NFSExport, Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage

CLAIM: Final = "export"
"""Name of the claim in the tenancy's namespace."""
_MODES: Final = ("ReadWriteMany",)
_SIZE: Final = "1Mi"
"""Kubernetes asks for one, and a quota counts it; on NFS it limits nothing."""


def name(namespace: str) -> str:
    """Return the name of the volume of a tenancy's namespace."""
    return f"{namespace}-{CLAIM}"


def volume(item: Tenancy, found: NFSExport) -> storage.PersistentVolume:
    """Return the volume."""
    space = baseline.namespace_name(item)
    owner = core.ObjectReference(api_version="v1", kind=core.PersistentVolumeClaim.KIND, name=CLAIM, namespace=space)
    spec = storage.VolumeSpec(
        capacity={"storage": _SIZE},
        access_modes=_MODES,
        persistent_volume_reclaim_policy="Retain",
        claim_ref=owner,
        mount_options=tuple(export.options(found).split(",")),
        nfs=storage.NFSVolume(server=found.server, path=found.path),
    )
    return storage.PersistentVolume(metadata=meta.ObjectMeta(name=name(space), labels=_labels(item)), spec=spec)


def claim(item: Tenancy) -> core.PersistentVolumeClaim:
    """Return the claim; an empty class keeps a default one away from it."""
    space = baseline.namespace_name(item)
    about = meta.ObjectMeta(name=CLAIM, namespace=space, labels=_labels(item))
    spec = core.ClaimSpec(
        access_modes=_MODES,
        resources=core.ResourceRequirements(requests={"storage": _SIZE}),
        storage_class_name="",
        volume_name=name(space),
    )
    return core.PersistentVolumeClaim(metadata=about, spec=spec)


def is_own(item: Tenancy, about: meta.ObjectMeta) -> bool:
    """Return whether a volume or a claim was made for this very tenancy."""
    return about.labels.get(baseline.UID) == item.metadata.uid


def is_same(one: storage.VolumeSpec, other: storage.VolumeSpec) -> bool:
    """Return whether two volumes are of one export and for one claim; what else there is can change."""

    def shown(spec: storage.VolumeSpec) -> tuple[object, ...]:
        of = spec.claim_ref or core.ObjectReference()
        return spec.nfs, of.namespace, of.name

    return shown(one) == shown(other)


def _labels(item: Tenancy) -> dict[str, str]:
    return {baseline.UID: item.metadata.uid}

"""Keeps named volumes: PersistentVolumeClaims, on one machine with a folder each below the state folder.

A machine's claim carries Kubernetes' own finalizer. Its removal marks it first: from then on no pod that names it is
accepted, so that the list of pods read afterwards is complete. Then its folder goes, and the object last. A removal
that a crash interrupted is finished by the next call.
Source: Kubernetes documentation, "Storage Object in Use Protection".
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.plan.pod import admission, quota, volume
from fairlead.plan.tenancy import baseline, exportvolume
from fairlead.serve.backend.place import Place
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store.port import AdmittingStore, Reader, Selector, Store
from fairlead.wire.kubernetes import core, meta

_PROTECTION: Final = "kubernetes.io/pvc-protection"
_MANAGED: Final = {"app.kubernetes.io/managed-by": "fairlead"}
"""Label of the volumes that a prune may remove."""


async def _anywhere(namespace: str) -> None:
    """Raise nothing: without exports every namespace's files are on this machine's disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalVolumes:
    """A `port.Volumes` of folders."""

    store: AdmittingStore
    folder: Path
    """Folder that holds the folders of all volumes."""
    reach: Callable[[str], Awaitable[None]] = _anywhere
    """Raises where the files of a namespace are on an export that does not answer."""

    async def find(self, name: str, namespace: str) -> core.PersistentVolumeClaim:
        """See `port.Volumes.find`."""
        return await _find(self.store, name, namespace)

    async def create(
        self, name: str, place: Place, *, labels: Mapping[str, str], size: str
    ) -> core.PersistentVolumeClaim:
        """See `port.Volumes.create`."""
        volume.check_name(name)
        if size:
            message = f'volume "{name}" would be a folder of this machine, whose size is not limited'
            raise errors.Invalid(message, reason="VolumeSizeInvalid", hint="leave the size out")
        await self._sweep()
        claim = _claim(name, place.namespace, labels, finalizers=(_PROTECTION,))
        await namespaces.ensure(self.store, place.namespace, labels=place.labels)
        try:
            return await self.store.create_checked(claim, lambda seen: _check_quota(seen, claim))
        except errors.Conflict:
            return await self.find(name, place.namespace)

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Volumes.remove`."""
        claim = await self.find(name, namespace)
        await _refuse_used(self.store, claim)
        await self.store.delete(core.PersistentVolumeClaim, name, namespace, uid=claim.metadata.uid)
        await self._sweep()

    async def prune(self, namespace: str | None) -> tuple[str, ...]:
        """See `port.Volumes.prune`."""
        removed = await _prune(self.store, namespace)
        await self._sweep()
        return removed

    def path(self, claim: core.PersistentVolumeClaim) -> str:
        """See `port.Volumes.path`."""
        return str(volume.folder(self.folder, claim))

    async def _sweep(self) -> None:
        """Remove marked claims that no pod names, with their folders; after the last, the namespace's folder too."""
        every = (await self.store.list(core.PersistentVolumeClaim)).items
        kept = collections.Counter(claim.metadata.namespace for claim in every)
        for claim in every:
            if claim.metadata.deletion_timestamp is None or await _users(self.store, claim):
                continue
            folder = volume.folder(self.folder, claim)
            try:
                await self.reach(claim.metadata.namespace)
                with contextlib.suppress(FileNotFoundError):
                    await asyncio.to_thread(shutil.rmtree, folder)
            except (OSError, errors.FairleadError) as error:  # the claim stays marked, and the next call tries again
                about = claim.metadata
                telemetry.log.warning(
                    "volume not removed", namespace=about.namespace, path=str(folder), error=str(error)
                )
                continue
            kept[claim.metadata.namespace] -= 1
            if not kept[claim.metadata.namespace]:
                with contextlib.suppress(OSError):  # it never was there, or is in use again
                    await asyncio.to_thread(folder.parent.rmdir)
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                about = msgspec.structs.replace(claim.metadata, finalizers=())
                await self.store.update(msgspec.structs.replace(claim, metadata=about))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterVolumes:
    """A `port.Volumes` of what the cluster's storage classes make."""

    store: Store

    async def find(self, name: str, namespace: str) -> core.PersistentVolumeClaim:
        """See `port.Volumes.find`."""
        return await _find(self.store, name, namespace)

    async def create(
        self, name: str, place: Place, *, labels: Mapping[str, str], size: str
    ) -> core.PersistentVolumeClaim:
        """See `port.Volumes.create`; a cluster makes no volume without a size, and namespaces are not made for it."""
        volume.check_name(name)
        namespace = place.namespace
        claim = _claim(name, namespace, labels)
        with contextlib.suppress(errors.NotFound):
            return await self.find(name, namespace)
        if not size:
            message = f'volume "{name}" is not there, and a cluster makes none without a size'
            hint = f"`fairlead volume create {name} --size 10Gi`"
            if await self._has_export(namespace):
                hint = f"-v {exportvolume.CLAIM}:/PATH mounts the tenancy's export; or {hint}"
            raise errors.Invalid(message, reason="VolumeSizeRequired", hint=hint)
        spec = core.ClaimSpec(
            access_modes=("ReadWriteOnce",), resources=core.ResourceRequirements(requests={"storage": size})
        )
        return await self.store.create(msgspec.structs.replace(claim, spec=spec))

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Volumes.remove`."""
        claim = await self.find(name, namespace)
        if _is_export(claim):
            message = f'volume "{name}" is the export that the tenancy was given, which its end takes away'
            raise errors.Denied(message, reason="ExportKept", hint="remove files of it in a container that mounts it")
        await _refuse_used(self.store, claim)
        await self.store.delete(core.PersistentVolumeClaim, name, namespace, uid=claim.metadata.uid)

    async def prune(self, namespace: str | None) -> tuple[str, ...]:
        """See `port.Volumes.prune`."""
        return await _prune(self.store, namespace)

    async def _has_export(self, namespace: str) -> bool:
        try:
            return _is_export(await self.find(exportvolume.CLAIM, namespace))
        except errors.NotFound:
            return False

    def path(self, claim: core.PersistentVolumeClaim) -> str:  # noqa: ARG002 on whatever node it is mounted
        """See `port.Volumes.path`."""
        return ""


def _is_export(claim: core.PersistentVolumeClaim) -> bool:
    return baseline.UID in claim.metadata.labels


def _claim(
    name: str, namespace: str, labels: Mapping[str, str], *, finalizers: Sequence[str] = ()
) -> core.PersistentVolumeClaim:
    about = meta.ObjectMeta(name=name, namespace=namespace, labels=labels, finalizers=tuple(finalizers))
    admission.refuse_own_names(core.PersistentVolumeClaim(metadata=about))
    return core.PersistentVolumeClaim(metadata=msgspec.structs.replace(about, labels={**labels, **_MANAGED}))


async def _find(store: Store, name: str, namespace: str) -> core.PersistentVolumeClaim:
    try:
        return await store.get(core.PersistentVolumeClaim, name, namespace)
    except errors.NotFound as error:
        message = f'volume "{name}" not found in namespace "{namespace}"'
        raise errors.NotFound(message, reason="VolumeNotFound", hint="`fairlead volume ls` lists them") from error


async def _users(store: Store, claim: core.PersistentVolumeClaim) -> tuple[str, ...]:
    pods = await store.list(core.Pod, Selector(namespace=claim.metadata.namespace))
    return volume.users(pods.items).get(claim.metadata.name, ())


async def _refuse_used(store: Store, claim: core.PersistentVolumeClaim) -> None:
    if users := await _users(store, claim):
        message = f'volume "{claim.metadata.name}" is in use by {", ".join(users)}'
        raise errors.Conflict(message, reason="VolumeInUse", hint=f"remove what uses it: `fairlead rm {users[0]}`")


async def _prune(store: Store, namespace: str | None) -> tuple[str, ...]:
    found = await store.list(core.PersistentVolumeClaim, Selector(namespace=namespace, labels=_MANAGED))
    removed = []
    for claim in found.items:
        about = claim.metadata
        if about.deletion_timestamp is None and not await _users(store, claim):
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await store.delete(core.PersistentVolumeClaim, about.name, about.namespace, uid=about.uid)
                removed.append(about.name)
    return tuple(removed)


def _check_quota(seen: Reader, claim: core.PersistentVolumeClaim) -> None:
    namespace = claim.metadata.namespace
    present = seen.list(core.PersistentVolumeClaim, namespace)
    if all(one.metadata.name != claim.metadata.name for one in present):
        quota.check_claims(claim.metadata.name, seen.list(core.ResourceQuota, namespace), len(present))

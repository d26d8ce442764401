"""Keeps the NFS exports of tenancies on a cluster: one volume and one claim each, which kubelets mount.

A volume whose claim was deleted is Released and binds to no other claim, so both are recreated. Files stay on the
server.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.tenancy import export, exportvolume
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import NFSExport, Tenancy
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling.storage import PersistentVolume

_MANAGER: Final = "fairlead-tenancy"
_BOUND: Final = "Bound"
_OVER: Final = frozenset({"Released", "Failed"})


@dataclass(frozen=True, slots=True)
class ClusterExports:
    """The exports of a cluster's tenancies, over an API server."""

    store: Store

    async def ensure(self, item: Tenancy) -> None:
        """Have a tenancy's export bound to the claim in its namespace. Idempotent.

        Raises: Invalid (`ExportInvalid`); Conflict (`ExportTaken`, `ExportChanged`); Unavailable (`ExportNotBound`).
        """
        wanted = item.spec.storage.nfs
        if wanted is None:
            return
        if trouble := next(export.problems(wanted), None):
            raise errors.Invalid(trouble, reason="ExportInvalid", hint="change spec.storage.nfs of a new tenancy")
        await self._volume(item, wanted)
        telemetry.crash_point("tenancy.export-made")
        await self._claim(item)

    async def release(self, namespace: str) -> None:
        """Remove a namespace's claim and its volume; what is on the server stays there. Idempotent.

        Raises: Unavailable (`ExportBound`): one of them is not gone yet.
        """
        for kind, name, space in (
            (core.PersistentVolumeClaim, exportvolume.CLAIM, namespace),
            (PersistentVolume, exportvolume.name(namespace), ""),
        ):
            with contextlib.suppress(errors.NotFound):
                there = await self.store.get(kind, name, space)
                if there.metadata.deletion_timestamp is None:
                    await self.store.delete(kind, name, space, uid=there.metadata.uid)
                await self.store.get(kind, name, space)
                message = f'{kind.KIND} "{name}" is still there'
                raise errors.Unavailable(message, reason="ExportBound", hint="does a pod still mount it?")

    async def _volume(self, item: Tenancy, wanted: NFSExport) -> None:
        made = exportvolume.volume(item, wanted)
        name = made.metadata.name
        try:
            there = await self.store.get(PersistentVolume, name)
        except errors.NotFound:
            there = await self.store.apply(made, manager=_MANAGER)
        if not exportvolume.is_own(item, there.metadata):
            raise _taken(there.KIND, name)
        if there.metadata.deletion_timestamp is not None or there.status.phase in _OVER:
            if there.metadata.deletion_timestamp is None:
                await self.store.delete(PersistentVolume, name, uid=there.metadata.uid)
            message = f'the claim of PersistentVolume "{name}" was deleted, and both are made again'
            raise errors.Unavailable(message, reason="ExportNotBound", hint="its files are on the server as before")
        if not exportvolume.is_same(there.spec, made.spec):
            message = f'PersistentVolume "{name}" is not of {export.source(wanted)}'
            raise errors.Conflict(
                message, reason="ExportChanged", hint="an export never changes: create the tenancy again"
            )

    async def _claim(self, item: Tenancy) -> None:
        made = exportvolume.claim(item)
        name, space = made.metadata.name, made.metadata.namespace
        try:
            there = await self.store.get(core.PersistentVolumeClaim, name, space)
        except errors.NotFound:
            there = await self.store.apply(made, manager=_MANAGER)
        if not exportvolume.is_own(item, there.metadata) or there.spec.volume_name != made.spec.volume_name:
            raise _taken(there.KIND, f"{space}/{name}")
        if there.status.phase != _BOUND:
            message = f'PersistentVolumeClaim "{name}" of namespace {space} is {there.status.phase or "Pending"}'
            hint = f"`kubectl -n {space} describe pvc {name}` says what it waits for"
            raise errors.Unavailable(message, reason="ExportNotBound", hint=hint)


def _taken(kind: str, name: str) -> errors.Conflict:
    message = f'{kind} "{name}" is there and is not the export of this tenancy'
    return errors.Conflict(message, reason="ExportTaken", hint="whose is it? delete it if nobody needs it")

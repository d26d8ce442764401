"""Keeps Secrets on one machine: objects of its store whose values are encrypted with a key that only root may read.

Only the machine's kubelet opens them, for the containers that name them. They go with their namespace.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fairlead import errors
from fairlead.plan.tenancy import secret
from fairlead.serve.backend.place import Place
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store import retry
from fairlead.store.port import AdmittingStore, Reader, Selector
from fairlead.store.sealing import Seal
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.text import timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSecrets:
    """A `port.Secrets` in the machine's store."""

    store: AdmittingStore
    seal: Seal

    async def list_secrets(self, namespace: str | None) -> tuple[secret.Described, ...]:
        """See `port.Secrets.list_secrets`."""
        found = await self.store.list(core.Secret, Selector(namespace=namespace))
        return tuple(map(_described, found.items))

    async def find(self, name: str, namespace: str) -> secret.Described:
        """See `port.Secrets.find`."""
        try:
            return _described(await self.store.get(core.Secret, name, namespace))
        except errors.NotFound as error:
            raise secret.not_found(name, namespace) from error

    async def create(self, name: str, place: Place, values: Mapping[str, bytes]) -> secret.Described:
        """See `port.Secrets.create`."""
        secret.check(name, values)
        namespace = place.namespace
        await namespaces.ensure(self.store, namespace, labels=place.labels)
        now, salt = timestamp.emit(time.time()), secrets.token_hex()
        note = secret.noted(secret.Note(salt=salt, created_at=now), values, now)
        item = core.Secret(
            metadata=meta.ObjectMeta(name=name, namespace=namespace, annotations=_noted(name, note)),
            data=self.seal.sealed(values, name, namespace),
        )
        try:
            return _described(await self.store.create_checked(item, lambda seen: _check_quota(seen, name, namespace)))
        except errors.Conflict as error:
            raise secret.exists(name, namespace) from error

    async def replace(self, name: str, namespace: str, values: Mapping[str, bytes]) -> secret.Described:
        """See `port.Secrets.replace`."""
        secret.check(name, values)
        sealed, now = self.seal.sealed(values, name, namespace), timestamp.emit(time.time())

        def changed(item: core.Secret) -> core.Secret:
            note = secret.noted(_described(item).note, values, now)
            about = msgspec.structs.replace(item.metadata, annotations=_noted(name, note))
            return msgspec.structs.replace(item, metadata=about, data=sealed)

        try:
            return _described(await retry.change(self.store, core.Secret, name, changed, namespace=namespace))
        except errors.NotFound as error:
            raise secret.not_found(name, namespace) from error

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Secrets.remove`."""
        try:
            await self.store.delete(core.Secret, name, namespace)
        except errors.NotFound as error:
            raise secret.not_found(name, namespace) from error


def _noted(name: str, note: secret.Note) -> dict[str, str]:
    return {secret.NOTES: secret.emit_notes({name: note})}


def _described(item: core.Secret) -> secret.Described:
    about = item.metadata
    notes = secret.read_notes(about.annotations.get(secret.NOTES, ""))
    note = notes.get(about.name) or secret.Note(digests=dict.fromkeys(sorted(item.data), ""), salt="")
    return secret.Described(name=about.name, namespace=about.namespace, note=note)


def _check_quota(seen: Reader, name: str, namespace: str) -> None:
    present = seen.list(core.Secret, namespace)
    if all(one.metadata.name != name for one in present):
        secret.check_quota(name, seen.list(core.ResourceQuota, namespace), len(present))

"""Keeps the Secrets of tenancies on a cluster: Kubernetes' own, in the tenancy's namespace, and only ever written.

The API's account may create, change and delete Secrets and read none, so what is shown of them (names of keys, digests,
times) is noted on the Tenancy. Each is changed and deleted by its uid: one that others made there is left alone.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.tenancy import baseline, secret
from fairlead.serve.backend.place import Place
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.text import timestamp

_MANAGER: Final = "fairlead-secrets"
_LABELS: Final = {"app.kubernetes.io/managed-by": "fairlead"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecrets:
    """A `port.Secrets` over an API server."""

    store: Store

    async def list_secrets(self, namespace: str | None) -> tuple[secret.Described, ...]:
        """See `port.Secrets.list_secrets`; of tenancies alone."""
        found = []
        for item in (await self.store.list(Tenancy)).items:
            place = baseline.namespace_name(item)
            if place and namespace in {None, place}:
                notes = _notes(item).items()
                found += [secret.Described(name=name, namespace=place, note=note) for name, note in notes]
        return tuple(sorted(found, key=lambda one: (one.namespace, one.name)))

    async def find(self, name: str, namespace: str) -> secret.Described:
        """See `port.Secrets.find`. Raises: as there; Invalid (`NotTenancys`)."""
        note = _notes(await self._tenancy(namespace)).get(name)
        if note is None:
            raise secret.not_found(name, namespace)
        return secret.Described(name=name, namespace=namespace, note=note)

    async def create(self, name: str, place: Place, values: Mapping[str, bytes]) -> secret.Described:
        """See `port.Secrets.create`. Raises: as there; Invalid (`NotTenancys`)."""
        secret.check(name, values)
        namespace = place.namespace
        item = await self._tenancy(namespace)
        present = _notes(item)
        if name in present:
            raise secret.exists(name, namespace)
        secret.check_quota(name, (), len(present))
        about = meta.ObjectMeta(name=name, namespace=namespace, labels=_LABELS)
        try:
            made = await self.store.create(core.Secret(metadata=about))
        except errors.Conflict as error:
            message = f'the namespace "{namespace}" has a Secret "{name}" that `fairlead secrets` did not make'
            hint = f"choose another name; or, where nothing needs it: `kubectl -n {namespace} delete secret {name}`"
            raise errors.Conflict(message, reason="SecretForeign", hint=hint) from error
        await self._write(name, namespace, values, made.metadata.uid)
        now, salt = timestamp.emit(time.time()), secrets.token_hex()
        note = secret.noted(secret.Note(salt=salt, created_at=now, uid=made.metadata.uid), values, now)
        await self._note(item, lambda notes: {**notes, name: note})
        return secret.Described(name=name, namespace=namespace, note=note)

    async def replace(self, name: str, namespace: str, values: Mapping[str, bytes]) -> secret.Described:
        """See `port.Secrets.replace`. Raises: as there; Conflict: it was deleted by others meanwhile."""
        secret.check(name, values)
        old = (await self.find(name, namespace)).note
        await self._write(name, namespace, values, old.uid)
        note = secret.noted(old, values, timestamp.emit(time.time()))
        await self._note(await self._tenancy(namespace), lambda notes: {**notes, name: note})
        return secret.Described(name=name, namespace=namespace, note=note)

    async def _write(self, name: str, namespace: str, values: Mapping[str, bytes], uid: str) -> None:
        """Apply all values: a server drops the keys that this manager gave before, and need not be read for that."""
        about = meta.ObjectMeta(name=name, namespace=namespace, labels=_LABELS, uid=uid)
        data = {key: base64.b64encode(value).decode() for key, value in values.items()}
        await self.store.apply(core.Secret(metadata=about, data=data), manager=_MANAGER)

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Secrets.remove`."""
        found = await self.find(name, namespace)
        # It was deleted on the cluster, or another has its name, which is not ours.
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.store.delete(core.Secret, name, namespace, uid=found.note.uid)
        item = await self._tenancy(namespace)
        await self._note(item, lambda notes: {one: note for one, note in notes.items() if one != name})

    async def _note(self, item: Tenancy, change: Callable[[dict[str, secret.Note]], dict[str, secret.Note]]) -> None:
        def noted(fresh: Tenancy) -> Tenancy:
            notes = secret.emit_notes(change(_notes(fresh)))
            about = msgspec.structs.replace(
                fresh.metadata, annotations={**fresh.metadata.annotations, secret.NOTES: notes}
            )
            return msgspec.structs.replace(fresh, metadata=about)

        await retry.change(self.store, Tenancy, item.metadata.name, noted)

    async def _tenancy(self, namespace: str) -> Tenancy:
        for item in (await self.store.list(Tenancy)).items:
            if baseline.namespace_name(item) == namespace:
                return item
        message = f'namespace "{namespace}" is not a tenancy\'s, and on a cluster secrets are kept for tenancies'
        hint = "name one: -T NAME; elsewhere: `kubectl create secret`, and `secretKeyRef` in a manifest"
        raise errors.Invalid(message, reason="NotTenancys", hint=hint)


def _notes(item: Tenancy) -> dict[str, secret.Note]:
    return secret.read_notes(item.metadata.annotations.get(secret.NOTES, ""))

"""Keeps tenancies' registry credentials on a cluster: a pull secret in the namespace of each.

The account of the tenancy's pods names it while `spec.registries` is not empty. It is written with the caller's rights;
neither the controller nor a node's agent may read secrets. A Secret of that name that was not written here is left
alone: its type cannot be changed, and what is in it may be nowhere else.
"""

from __future__ import annotations

import base64
import contextlib
from typing import Final

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.oci import registryauth
from fairlead.wire.oci.registryauth import Login

_KEY: Final = ".dockerconfigjson"
_TYPE: Final = "kubernetes.io/dockerconfigjson"


class ClusterCredentials:
    """`serve.backend.port.RegistryCredentials` in Secrets."""

    def __init__(self, store: Store) -> None:
        """Take the store."""
        self._store = store

    async def add(self, item: Tenancy, registry: str, login: Login) -> tuple[str, ...]:
        """See `serve.backend.port.RegistryCredentials.add`."""
        registryauth.check(registry, login)
        return await self._write(item, {**await self._read(item), registry: login})

    async def drop(self, item: Tenancy, registry: str) -> tuple[str, ...]:
        """See `serve.backend.port.RegistryCredentials.drop`."""
        left = {name: one for name, one in (await self._read(item)).items() if name != registry}
        return await self._write(item, left)

    async def _read(self, item: Tenancy) -> dict[str, Login]:
        try:
            found = await self._store.get(core.Secret, baseline.PULLS, baseline.namespace_name(item))
        except errors.NotFound:
            return {}
        return _logins(found)

    async def _write(self, item: Tenancy, logins: dict[str, Login]) -> tuple[str, ...]:
        space = baseline.namespace_name(item)
        if not logins:
            with contextlib.suppress(errors.NotFound):
                await self._store.delete(core.Secret, baseline.PULLS, space)
            return ()
        about = meta.ObjectMeta(name=baseline.PULLS, namespace=space)
        data = {_KEY: base64.b64encode(registryauth.emit(logins)).decode()}
        await self._store.apply(core.Secret(metadata=about, type=_TYPE, data=data), manager="fairlead-tenancy-login")
        return tuple(sorted(logins))


def _logins(found: core.Secret) -> dict[str, Login]:
    """Return what Fairlead's pull secret holds. Raises: Conflict (`SecretForeign`)."""
    if found.type != _TYPE:
        raise _foreign(found, f"its type is {found.type}, not {_TYPE}")
    if found.immutable:
        raise _foreign(found, "it is immutable")
    try:
        logins = registryauth.parse(base64.b64decode(found.data.get(_KEY, "")))
    except (errors.ProtocolError, ValueError) as error:
        raise _foreign(found, f"its {_KEY} is not what `fairlead tenancy login` writes") from error
    if unnamed := sorted(registry for registry, login in logins.items() if not login.username):
        raise _foreign(found, f"its entry of {unnamed[0]} has no auth with a user name")
    return logins


def _foreign(found: core.Secret, why: str) -> errors.Conflict:
    name, space = found.metadata.name, found.metadata.namespace
    message = f"the Secret {space}/{name} is not the tenancy's registry credentials: {why}"
    hint = f"where nothing else needs it: `kubectl -n {space} delete secret {name}`, then log in again"
    return errors.Conflict(message, reason="SecretForeign", hint=hint)

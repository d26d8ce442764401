"""Keeps the objects that people configure and multiply pods by, as `kubectl apply` does, on one machine.

What is written replaces what stands there, so that a field that is taken out of a manifest is gone; identity, keepers
and status stay. A pod template is judged as its pods will be, in the caller's place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.plan.pod.values import configmap
from fairlead.serve.backend.place import ASK_ROOT, Place
from fairlead.serve.backend.port import Workload
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store.port import AdmittingStore

CREATED, CONFIGURED, UNCHANGED = "created", "configured", "unchanged"
_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorkloads:
    """A `port.Workloads` in the machine's store."""

    store: AdmittingStore

    async def judge(self, item: Workload, place: Place, written: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See `port.Workloads.judge`."""
        _check(_placed(item, place), place)

    async def keep(self, item: Workload, place: Place, written: Mapping[str, Any]) -> str:
        """See `port.Workloads.keep`."""
        await self.judge(item, place, written)
        wanted = _placed(item, place)
        await namespaces.ensure(self.store, place.namespace, labels=place.labels)
        for left in reversed(range(_ROUNDS)):
            try:
                return await self._write(wanted)
            except errors.Conflict:  # another request for it was faster
                if not left:
                    raise
        raise AssertionError("the last round returns or raises")

    async def _write(self, wanted: Workload) -> str:
        name, namespace = wanted.metadata.name, wanted.metadata.namespace
        old: Workload | None = None
        with contextlib.suppress(errors.NotFound):
            old = await self.store.get(type(wanted), name, namespace)
        if old is None:
            await self.store.create(wanted)
            return CREATED
        if old.immutable and (old.data, old.binary_data) != (wanted.data, wanted.binary_data):
            message = f'ConfigMap "{name}" is invalid: data: Forbidden: field is immutable when `immutable` is set'
            raise errors.Invalid(message, reason="ConfigMapInvalid", hint="delete it, then make it anew")
        about = msgspec.structs.replace(
            old.metadata,
            labels={**old.metadata.labels, **wanted.metadata.labels},
            annotations={**old.metadata.annotations, **wanted.metadata.annotations},
        )
        new = msgspec.structs.replace(wanted, metadata=about)
        if new == old:
            return UNCHANGED
        await self.store.update(new)
        return CONFIGURED

    async def remove(self, kind: type[Workload], name: str, namespace: str) -> None:
        """See `port.Workloads.remove`."""
        try:
            await self.store.delete(kind, name, namespace)
        except errors.NotFound as error:
            message = f'{kind.PLURAL} "{errors.readable(name)}" not found'
            raise errors.NotFound(message, reason="NotFound") from error


def _placed(item: Workload, place: Place) -> Workload:
    about = msgspec.structs.replace(item.metadata, namespace=place.namespace)
    return msgspec.structs.replace(item, metadata=about)


def _check(item: Workload, place: Place) -> None:
    """Refuse what cannot be stored, or is not the caller's to make. Raises: Invalid, Denied."""
    admission.refuse_own_names(item)
    if place.is_tenants and (item.metadata.finalizers or item.metadata.owner_references):
        message = f'{item.KIND} "{item.metadata.name}" has finalizers or ownerReferences, which would keep it for ever'
        raise errors.Denied(message, reason="UserPodForbidden", hint=f"leave them out, or {ASK_ROOT}")
    configmap.check(item)

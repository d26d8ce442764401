"""Keeps the objects of resource.k8s.io that people make on one machine, by the rules of an API server.

Claims and their templates lie in their maker's own place; classes, slices and taint rules concern every tenant and are
the administrator's. What is there already stays, and changes where its kind may change.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.plan.claim import expression
from fairlead.plan.claim.life import claimquota, lifecycle
from fairlead.plan.claim.validate import door
from fairlead.plan.pod import admission
from fairlead.serve.backend.place import ASK_ROOT, Place
from fairlead.serve.backend.port import DeviceObject
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store.port import AdmittingStore, Reader
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

T = TypeVar("T", bound=Object)
OWN: Final = (ResourceClaim, ResourceClaimTemplate)
"""Kinds that every caller may make in their own place."""
_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDeviceClaims:
    """A `port.DeviceClaims` in the machine's store."""

    store: AdmittingStore
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)

    async def judge(self, item: DeviceObject, place: Place) -> tuple[str, ...]:
        """See `port.DeviceClaims.judge`."""
        admitted, dropped, _ = await self._admit(_placed(item, place), place)
        return _said(admitted, dropped)

    async def keep(self, item: DeviceObject, place: Place) -> tuple[str, ...]:
        """See `port.DeviceClaims.keep`."""
        wanted = _placed(item, place)
        if isinstance(wanted, OWN):
            await namespaces.ensure(self.store, place.namespace, labels=place.labels)
        for left in reversed(range(_ROUNDS)):
            admitted, dropped, old = await self._admit(wanted, place)
            telemetry.crash_point("claim.before-keep")
            try:
                await self._write(admitted, old, place)
            except errors.Conflict:  # another request for it was faster
                if not left:
                    raise
                continue
            return _said(admitted, dropped)
        raise AssertionError("the last round returns or raises")

    async def remove(
        self, name: str, place: Place, kind: type[ResourceClaim | ResourceClaimTemplate] = ResourceClaim
    ) -> None:
        """See `port.DeviceClaims.remove`."""
        await self.store.delete(kind, name, place.namespace)

    async def share(self, spec: ResourceClaimSpec, place: Place) -> str:
        """See `port.DeviceClaims.share`."""
        await namespaces.ensure(self.store, place.namespace, labels=place.labels)
        for attempt in range(_ROUNDS):
            wanted = lifecycle.shared_template(spec, place.namespace, attempt)
            made = door.admit_template(wanted, _RULES, namespace_labels={}).item
            with contextlib.suppress(errors.Conflict):
                await self.store.create(made)
                return made.metadata.name
            with contextlib.suppress(errors.NotFound):
                there = await self.store.get(ResourceClaimTemplate, made.metadata.name, place.namespace)
                # One that is on its way out is kept for the pods that name it already.
                if there.spec == made.spec and there.metadata.deletion_timestamp is None:
                    return there.metadata.name
        message = f'no template can be made in namespace "{place.namespace}" for what is asked'
        raise errors.Conflict(message, reason="AlreadyExists", hint="try again")

    async def _write(self, item: DeviceObject, old: DeviceObject | None, place: Place) -> None:
        if old is None:
            await self.store.create_checked(item, lambda seen: _check_quota(seen, item, place))
        elif item != old:
            await self.store.update(item)

    async def _admit(
        self, item: DeviceObject, place: Place
    ) -> tuple[DeviceObject, tuple[str, ...], DeviceObject | None]:
        """Return an object as it is to be stored, what is left out, and as it is now; None: it is not there."""
        _refuse(item, place)
        name, namespace = item.metadata.name, item.metadata.namespace
        old: DeviceObject | None = None
        if name:
            try:
                old = await self.store.get(type(item), name, namespace)
            except errors.NotFound:
                old = None
        if old is not None:
            item = _over(old, item)
        labels = await self._labels(namespace, place)
        return *_DOORS[type(item)](item, old, labels, self.now().strftime("%Y-%m-%dT%H:%M:%SZ")), old

    async def _labels(self, namespace: str, place: Place) -> Mapping[str, str]:
        """Return the labels of a namespace as they count for admin access."""
        if not namespace:
            return {}
        try:
            labels = (await self.store.get(core.Namespace, namespace)).metadata.labels
        except errors.NotFound:
            labels = place.labels
        return labels if place.is_tenants else lifecycle.admin_labels(labels)


def _placed(item: DeviceObject, place: Place) -> DeviceObject:
    namespace = place.namespace if item.NAMESPACED else ""
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, namespace=namespace))


def _over(old: T, item: T) -> T:
    """Return an object in the place of one that is there: its identity and its keepers stay."""
    had, new = old.metadata, item.metadata
    about = msgspec.structs.replace(
        had, labels={**had.labels, **new.labels}, annotations={**had.annotations, **new.annotations}
    )
    changed: T = msgspec.structs.replace(item, metadata=about)  # type: ignore[type-var] # every kind is a struct
    return changed


def _refuse(item: DeviceObject, place: Place) -> None:
    """Refuse what is not the caller's to make. Raises: Denied."""
    admission.refuse_own_names(item)
    if not place.is_tenants:
        return
    if not isinstance(item, OWN):
        raise errors.Denied(f"objects of kind {item.KIND} are root's", reason="RootOnly", hint=ASK_ROOT)
    if problems := tuple(_beyond(item)):
        name = item.metadata.name or item.metadata.generate_name
        message = f'{item.KIND} "{name}" asks for what only root may: {"; ".join(problems)}'
        raise errors.Denied(message, reason="UserClaimForbidden", hint=f"leave it out, or {ASK_ROOT}")


def _beyond(item: ResourceClaim | ResourceClaimTemplate) -> Iterator[str]:
    """Yield what a tenant's claim may not ask for."""
    if item.metadata.finalizers:
        yield "metadata.finalizers would keep it for ever"
    if item.metadata.owner_references:
        yield "metadata.ownerReferences names other objects"
    path, spec = ("spec", item.spec) if isinstance(item, ResourceClaim) else ("spec.spec", item.spec.spec)
    for at, one in enumerate(spec.devices.requests or ()):
        if one.exactly is not None and one.exactly.admin_access:
            yield f"{path}.devices.requests[{at}].exactly.adminAccess sees the devices of other tenants"


def _check_quota(seen: Reader, item: DeviceObject, place: Place) -> None:
    if isinstance(item, ResourceClaim):
        claimquota.check_seen(item, seen, most_devices=place.most_devices)


def _said(item: DeviceObject, dropped: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is to be said of fields that are left out."""
    name = item.metadata.name or item.metadata.generate_name
    return tuple(f"{item.KIND} {name}: {path} is left out: its feature is off" for path in dropped)


_RULES: Final = expression.rules()
_Door = Callable[[Any, Any, Mapping[str, str], str], tuple[DeviceObject, tuple[str, ...]]]
_DOORS: Final[Mapping[type[meta.Object], _Door]] = {
    ResourceClaim: lambda item, old, labels, _now: _both(
        door.admit_claim(item, _RULES, namespace_labels=labels, old=old)
    ),
    ResourceClaimTemplate: lambda item, old, labels, _now: _both(
        door.admit_template(item, _RULES, namespace_labels=labels, old=old)
    ),
    DeviceClass: lambda item, old, _labels, _now: _both(door.admit_class(item, _RULES, old=old)),
    ResourceSlice: lambda item, old, _labels, now: _both(door.admit_slice(item, _RULES.gates, now, old=old)),
    DeviceTaintRule: lambda item, old, _labels, now: (door.admit_taint_rule(item, now, old=old), ()),
}


def _both(admitted: door.Admitted[Any]) -> tuple[DeviceObject, tuple[str, ...]]:
    return admitted.item, admitted.dropped

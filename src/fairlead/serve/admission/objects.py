"""Brings the objects of a manifest to what is written, and takes them away, as kubectl does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import admission
from fairlead.plan.pod.running import resize
from fairlead.serve.admission import manifest
from fairlead.serve.admission.context import Context
from fairlead.serve.admission.manifest import Asked, Beside
from fairlead.serve.backend import workloads
from fairlead.serve.backend.port import Workload, require
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.coordination import PriorityClass
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate

DELETED, NOT_FOUND, IN_USE = "deleted", "not found", "in use"
_COMPARED: Final = ("containers", "init_containers", "volumes", "restart_policy", "host_network")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome for one object."""

    item: meta.Object
    action: str
    before: meta.Object | None = None
    """As it stood."""


async def apply(context: Context, asked: Asked, *, is_dry: bool) -> tuple[list[Applied], tuple[str, ...]]:
    """Bring every object to what is written; return the outcome for each, and what is left out.

    Raises: as `manifest.store` and `manifest.keep`: what came before is done already, as with kubectl.
    """
    done, said = list[Applied](), list[str]()
    if is_dry:
        said += (await manifest.judge(context, _without_pods(asked)))[1]
    for item, written in asked.beside:
        found = await _find(context, item, asked.namespace)
        if is_dry:
            done.append(Applied(item=_shown(item, found), action=_foretold(item, found), before=found))
            continue
        action, left = await manifest.keep(context, item, written, namespace=asked.namespace)
        said += left
        done.append(Applied(item=_placed(context, item, asked.namespace), action=action, before=found))
    for pod, written in asked.pods:
        done.append(await _apply_pod(context, pod, written, is_dry=is_dry))
    return done, tuple(said)


def _without_pods(asked: Asked) -> Asked:
    """Return what a manifest holds beside its Pods."""
    return Asked(pods=(), beside=asked.beside, namespace=asked.namespace, warnings=asked.warnings)


async def _apply_pod(context: Context, pod: core.Pod, written: Mapping[str, Any], *, is_dry: bool) -> Applied:
    found = await _find(context, pod, pod.metadata.namespace)
    if found is None:
        if not is_dry:
            pod = await manifest.store(context, pod, written, None)
        return Applied(item=pod, action=workloads.CREATED)
    assert isinstance(found, core.Pod)  # noqa: S101 asked for by its kind
    wanted = admission.admit(msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata))).spec
    sizes = {item.name: item.resources for item in resize.items(wanted)}
    known = {item.name for item in resize.items(found.spec)}
    alike = resize.with_amounts(found, {name: one for name, one in sizes.items() if name in known}).spec
    changed = [name for name in _COMPARED if getattr(alike, name) != getattr(wanted, name)]
    if not changed and found.spec != alike:
        changes = require(context.backend.changes)

        def wanted_sizes(_: core.Pod) -> resize.Amounts:
            return sizes

        after = await (changes.judge_resize(found, wanted_sizes) if is_dry else changes.resize(found, wanted_sizes))
        action = workloads.UNCHANGED if after.spec == found.spec else workloads.CONFIGURED
        return Applied(item=after, action=action, before=found)
    if changed:
        shown = ", ".join(f"spec.{name}" for name in changed)
        message = f'Pod "{pod.metadata.name}" is invalid: {shown}: Forbidden: only cpu and memory of it change'
        hint = f"`fairlead delete pod {pod.metadata.name}`, then apply it again"
        raise errors.Invalid(message, reason="PodInvalid", hint=hint)
    return Applied(item=found, action=workloads.UNCHANGED, before=found)


async def delete(context: Context, found: Sequence[tuple[type[meta.Object], str, str]]) -> list[Applied]:
    """Take objects away, the last one first; what is not there, or a volume that is in use still, is said.

    Args: found: kind, name and namespace.
    """
    done = []
    for kind, name, namespace in reversed(found):
        place = context.backend.places.new(namespace or "default") if kind.NAMESPACED else None
        where = place.namespace if place is not None else ""
        about = meta.ObjectMeta(name=name, namespace=where)
        try:
            if kind is not core.Secret:
                about = (await context.store.get(kind, name, where)).metadata
            await _remove(context, kind, name, where)
        except errors.NotFound:
            done.append(Applied(item=kind(metadata=about), action=NOT_FOUND))  # type: ignore[call-arg]  # every kind
            continue
        except errors.Conflict as error:
            if error.reason != "VolumeInUse":
                raise
            done.append(Applied(item=kind(metadata=about), action=IN_USE))  # type: ignore[call-arg]  # has metadata
            continue
        done.append(Applied(item=kind(metadata=about), action=DELETED))  # type: ignore[call-arg]  # has metadata
    return done


async def _remove(context: Context, kind: type[meta.Object], name: str, namespace: str) -> None:
    backend = context.backend
    if kind is core.Pod:
        await backend.lifecycle.remove(name, namespace, grace_s=None)
    elif kind is core.Secret:
        await backend.secrets.remove(name, namespace)
    elif kind is core.PersistentVolumeClaim:
        await backend.volumes.remove(name, namespace)
    elif kind is ResourceClaim:
        await require(backend.claims).remove(name, backend.places.new(namespace))
    elif kind is ResourceClaimTemplate:
        await require(backend.claims).remove(name, backend.places.new(namespace), kind=ResourceClaimTemplate)
    elif kind is PriorityClass:
        context.refuse_writing(PriorityClass)
        await context.store.delete(PriorityClass, name)
    elif issubclass(kind, Workload):
        await require(backend.workloads).remove(kind, name, namespace)
    else:
        message = f"objects of kind {kind.KIND} are not removed here"
        raise errors.RequestError(message, reason="KindUnknown", hint="they go with what made them")


def _placed(context: Context, item: Beside, namespace: str) -> meta.Object:
    if not item.NAMESPACED:
        return item
    where = context.backend.places.new(item.metadata.namespace or namespace).namespace
    placed: meta.Object = msgspec.structs.replace(
        item, metadata=msgspec.structs.replace(item.metadata, namespace=where)
    )
    return placed


async def _find(context: Context, item: meta.Object, namespace: str) -> meta.Object | None:
    where = ""
    if item.NAMESPACED:
        where = context.backend.places.new(item.metadata.namespace or namespace).namespace
    if isinstance(item, core.Secret):
        return None  # nothing shows its values: what would change is not known beforehand
    try:
        return await context.store.get(type(item), item.metadata.name, where)
    except errors.NotFound:
        return None


def _foretold(item: Beside, found: meta.Object | None) -> str:
    if found is None:
        return workloads.CREATED
    return workloads.UNCHANGED if _shown(item, found) == found else workloads.CONFIGURED


def _shown(item: Beside, found: meta.Object | None) -> meta.Object:
    """Return an object as it would stand in the place of one that is there."""
    if found is None or not isinstance(item, Workload):
        return item if found is None else found
    shown: meta.Object = workloads.over(found, item)
    return shown

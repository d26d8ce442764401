"""Takes a Kubernetes manifest to the store: its Pods, with what they need beside: volumes, priorities, claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from fairlead import errors
from fairlead.plan.pod import admission, priority, volume
from fairlead.serve.admission import budget, request
from fairlead.serve.admission.context import Context
from fairlead.serve.backend import idempotency
from fairlead.serve.backend.port import DeviceObject, ManifestLifecycle, require
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core, manifest
from fairlead.wire.kubernetes.coordination import PriorityClass

Beside = core.PersistentVolumeClaim | PriorityClass | DeviceObject
_MANAGER: Final = "fairlead-api"
_MOST: Final = 500
"""Objects of one manifest: each is stored on its own, and quotas are counted each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a manifest holds."""

    pods: tuple[tuple[core.Pod, Mapping[str, Any]], ...]
    """In their order, each as it was written too."""
    beside: tuple[Beside, ...]
    """Made before the Pods."""
    namespace: str
    """Of what names none."""
    warnings: tuple[str, ...]
    """What is left out."""


def parse(context: Context, body: bytes) -> tuple[manifest.Manifest, ...]:
    """Return the objects of a manifest.

    Raises: RequestError: it is none, has other kinds, or no manifests are taken here; Invalid: too many objects, a
            field of the wrong type, a name that is ours.
    """
    require(context.backend.manifests)
    wanted = manifest.parse(body, kinds=(core.Pod, core.PersistentVolumeClaim, PriorityClass, *get_args(DeviceObject)))
    if len(wanted) > _MOST:
        message = f"the manifest holds {len(wanted)} objects, at most {_MOST} are taken at once; nothing was made"
        raise errors.Invalid(message, reason="ManifestTooLong", hint="send it in parts")
    for found in wanted:
        admission.refuse_own_names(found.item)
    return wanted


def complete(context: Context, wanted: tuple[manifest.Manifest, ...], *, namespace: str) -> Asked:
    """Return what the objects of a manifest stand for, with what they do not say.

    Args:    namespace: asked for beside the manifest; empty: `default`.
    Raises:  RequestError: a field that is not carried out may not be left out here; Invalid (`NamespaceMismatch`).
    """
    warnings = _lifecycle(context).leave_out(manifest.check_carried_out(wanted))
    pods = tuple(
        (request.from_manifest(found.item, context.scheduler_name, namespace=namespace), found.document)
        for found in wanted
        if isinstance(found.item, core.Pod)
    )
    beside = tuple(found.item for found in wanted if isinstance(found.item, Beside))
    return Asked(pods=pods, beside=beside, namespace=namespace or "default", warnings=warnings)


async def judge(context: Context, asked: Asked) -> tuple[tuple[core.Pod, ...], tuple[str, ...]]:
    """Return the Pods as they would be stored, each if it were the only one, and what would be left out beside them.

    Raises: as `store` and `make_beside`.
    """
    said = [text for item in asked.beside for text in await _judge_beside(context, item, asked.namespace)]
    claims = [item.metadata.name for item in asked.beside if isinstance(item, core.PersistentVolumeClaim)]
    for where in dict.fromkeys(pod.metadata.namespace for pod, _ in asked.pods):
        await budget.check(context, where)
    places = context.backend.places
    each = [places.new(pod.metadata.namespace).submission(pod, document) for pod, document in asked.pods]
    return await _lifecycle(context).judge(each, claims=claims), tuple(said)


async def make_beside(context: Context, asked: Asked) -> tuple[str, ...]:
    """Make what a manifest has beside its Pods; a volume that is there stays as it is. Returns what is left out."""
    said = list[str]()
    for item in asked.beside:
        if isinstance(item, PriorityClass):
            priority.check(item)
            await context.store.apply(item, manager=_MANAGER)
            continue
        about = item.metadata
        place = context.backend.places.new(about.namespace or asked.namespace)
        if isinstance(item, core.PersistentVolumeClaim):
            await context.backend.volumes.create(about.name, place, labels=about.labels, size="")
        else:
            said += await require(context.backend.claims).keep(item, place)
    return tuple(said)


async def store(
    context: Context, pod: core.Pod, document: Mapping[str, Any], once: idempotency.Once | None
) -> core.Pod:
    """Store one Pod of a manifest. Raises: Denied (`BudgetExceeded`); as `port.Lifecycle.submit`."""
    await budget.check(context, pod.metadata.namespace)
    place = context.backend.places.new(pod.metadata.namespace)
    return await _lifecycle(context).submit(place.submission(pod, document), once=once)


def _lifecycle(context: Context) -> ManifestLifecycle:
    return require(context.backend.manifests)


async def _judge_beside(context: Context, item: Beside, namespace: str) -> tuple[str, ...]:
    """Refuse what a manifest has beside its Pods as `make_beside` would; returns what would be left out."""
    if isinstance(item, core.PersistentVolumeClaim):
        volume.check_name(item.metadata.name)
        where = item.metadata.namespace or namespace
        await context.store.list(core.PersistentVolumeClaim, Selector(namespace=where))
    elif isinstance(item, PriorityClass):
        priority.check(item)
        context.refuse_writing(PriorityClass)
    else:
        place = context.backend.places.new(item.metadata.namespace or namespace)
        return await require(context.backend.claims).judge(item, place)
    return ()

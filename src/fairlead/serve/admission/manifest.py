"""Takes a Kubernetes manifest to the store: its Pods, with what they need beside: volumes, priorities, claims."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from fairlead import errors
from fairlead.plan.pod import admission, priority, volume
from fairlead.plan.pod.values import secretvalues
from fairlead.plan.tenancy import secret
from fairlead.plan.workload import templated
from fairlead.serve.admission import budget, request
from fairlead.serve.admission.context import Context
from fairlead.serve.backend import idempotency, workloads
from fairlead.serve.backend.place import Place
from fairlead.serve.backend.port import DeviceObject, ManifestLifecycle, Workload, require
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core, manifest
from fairlead.wire.kubernetes.coordination import PriorityClass

Beside = core.PersistentVolumeClaim | core.Secret | PriorityClass | Workload | DeviceObject
KINDS: Final = (core.Pod, *get_args(Beside))
_MANAGER: Final = "fairlead-api"
_MOST: Final = 500
"""Objects of one manifest: each is stored on its own, and quotas are counted each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a manifest holds."""

    pods: tuple[tuple[core.Pod, Mapping[str, Any]], ...]
    """In their order, each as it was written too."""
    beside: tuple[tuple[Beside, Mapping[str, Any]], ...]
    """Made before the Pods, each as it was written too."""
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
    wanted = manifest.parse(body, kinds=KINDS)
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
    beside = tuple(
        (_completed(found.item, context.scheduler_name), found.document)
        for found in wanted
        if isinstance(found.item, Beside)
    )
    return Asked(pods=pods, beside=beside, namespace=namespace or "default", warnings=warnings)


def _completed(item: Beside, scheduler_name: str) -> Beside:
    """Return an object whose template has what a Pod's manifest is given: a scheduler, a file for its last word."""
    if isinstance(item, core.ConfigMap) or not isinstance(item, Workload):
        return item

    def completed(pod: core.Pod) -> core.Pod:
        return request.from_manifest(pod, scheduler_name, namespace=pod.metadata.namespace)

    changed: Beside = templated.with_template(item, completed)
    return changed


async def judge(context: Context, asked: Asked) -> tuple[tuple[core.Pod, ...], tuple[str, ...]]:
    """Return the Pods as they would be stored, each if it were the only one, and what would be left out beside them.

    Raises: as `store` and `make_beside`.
    """
    said = [text for item, raw in asked.beside for text in await _judge_beside(context, item, raw, asked.namespace)]
    claims = [item.metadata.name for item, _ in asked.beside if isinstance(item, core.PersistentVolumeClaim)]
    for where in dict.fromkeys(pod.metadata.namespace for pod, _ in asked.pods):
        await budget.check(context, where)
    places = context.backend.places
    each = [places.new(pod.metadata.namespace).submission(pod, document) for pod, document in asked.pods]
    return await _lifecycle(context).judge(each, claims=claims), tuple(said)


async def make_beside(context: Context, asked: Asked) -> tuple[str, ...]:
    """Make what a manifest has beside its Pods; a volume that is there stays as it is. Returns what is left out."""
    said = list[str]()
    for item, written in asked.beside:
        said += (await keep(context, item, written, namespace=asked.namespace))[1]
    return tuple(said)


async def keep(
    context: Context, item: Beside, written: Mapping[str, Any], *, namespace: str
) -> tuple[str, tuple[str, ...]]:
    """Create one object other than a Pod, or update the one of its name.

    Args:    namespace: of what names none.
    Returns: what was done, in kubectl's word, and what is left out.
    """
    about = item.metadata
    if isinstance(item, PriorityClass):
        priority.check(item)
        return await _keep_priority(context, item), ()
    place = context.backend.places.new(about.namespace or namespace)
    if isinstance(item, core.PersistentVolumeClaim):
        is_there = await _is_there(context, core.PersistentVolumeClaim, about.name, place.namespace)
        await context.backend.volumes.create(about.name, place, labels=about.labels, size="")
        return workloads.UNCHANGED if is_there else workloads.CREATED, ()
    if isinstance(item, core.Secret):
        return await _keep_secret(context, item, place), ()
    if isinstance(item, Workload):
        return await require(context.backend.workloads).keep(item, place, written), ()
    return workloads.CONFIGURED, await require(context.backend.claims).keep(item, place)


async def _keep_priority(context: Context, item: PriorityClass) -> str:
    before: PriorityClass | None = None
    with contextlib.suppress(errors.NotFound):
        before = await context.store.get(PriorityClass, item.metadata.name)
    after = await context.store.apply(item, manager=_MANAGER)
    if before is None:
        return workloads.CREATED
    is_same = before.metadata.resource_version == after.metadata.resource_version
    return workloads.UNCHANGED if is_same else workloads.CONFIGURED


async def _is_there(context: Context, kind: type[core.PersistentVolumeClaim], name: str, namespace: str) -> bool:
    try:
        await context.store.get(kind, name, namespace)
    except errors.NotFound:
        return False
    return True


async def _keep_secret(context: Context, item: core.Secret, place: Place) -> str:
    """Keep a Secret's values, encrypted; what was there goes."""
    values, kept = secretvalues.of_manifest(item), context.backend.secrets
    try:
        await kept.create(item.metadata.name, place, values)
    except errors.Conflict as error:
        if error.reason != "AlreadyExists":
            raise
        old = await kept.find(item.metadata.name, place.namespace)
        if secret.digests(values, old.note.salt) == dict(old.note.digests):
            return workloads.UNCHANGED
        await kept.replace(item.metadata.name, place.namespace, values)
        return workloads.CONFIGURED
    return workloads.CREATED


async def store(
    context: Context, pod: core.Pod, document: Mapping[str, Any], once: idempotency.Once | None
) -> core.Pod:
    """Store one Pod of a manifest. Raises: Denied (`BudgetExceeded`); as `port.Lifecycle.submit`."""
    await budget.check(context, pod.metadata.namespace)
    place = context.backend.places.new(pod.metadata.namespace)
    return await _lifecycle(context).submit(place.submission(pod, document), once=once)


def _lifecycle(context: Context) -> ManifestLifecycle:
    return require(context.backend.manifests)


async def _judge_beside(context: Context, item: Beside, written: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    """Refuse what a manifest has beside its Pods as `make_beside` would; returns what would be left out."""
    if isinstance(item, core.PersistentVolumeClaim):
        volume.check_name(item.metadata.name)
        where = item.metadata.namespace or namespace
        await context.store.list(core.PersistentVolumeClaim, Selector(namespace=where))
    elif isinstance(item, PriorityClass):
        priority.check(item)
        context.refuse_writing(PriorityClass)
    elif isinstance(item, core.Secret):
        secret.check(item.metadata.name, secretvalues.of_manifest(item))
        context.backend.places.new(item.metadata.namespace or namespace)
    elif isinstance(item, Workload):
        place = context.backend.places.new(item.metadata.namespace or namespace)
        await require(context.backend.workloads).judge(item, place, written)
    else:
        place = context.backend.places.new(item.metadata.namespace or namespace)
        return await require(context.backend.claims).judge(item, place)
    return ()

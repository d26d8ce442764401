"""Serves the routes of kubectl's verbs: manifests applied and taken away, objects listed, scaled and restarted."""

from __future__ import annotations

from typing import Annotated, Any, Final

import litestar
from litestar import params

from fairlead import errors
from fairlead.serve.admission import manifest, objects
from fairlead.serve.admission.objects import Applied
from fairlead.serve.api.change import DryRun
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import Workload, require
from fairlead.serve.v1.containers import pods, refusal
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.objects import view
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes import manifest as manifests
from fairlead.wire.kubernetes.workloads import kinds

Kind = Annotated[str, params.PathParameter(description="`deployments`, `deployment.apps`, `deploy`")]
Name = Annotated[str, params.PathParameter(description="name of the object")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the object")]
Where = Annotated[str | None, params.QueryParameter(description="empty: all namespaces")]
Beside = Annotated[str, params.QueryParameter(description="of the objects that name none; empty: default")]
_OK: Final = 200


@litestar.post(
    "/v1/apply",
    summary="Apply a manifest",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def apply_objects(
    services: Dependencies, body: params.RawBody, namespace: Beside = "", dry_run: DryRun = False
) -> view.ObjectChanges:
    """Bring the objects of a Kubernetes manifest to what is written, in their order; Pods come last.

    What stands there is changed, unless a field that never changes does. With `dry_run` nothing is, and the answer has
    each object before and after.
    """
    with refusal.spoken():
        context = services.admission
        wanted = manifest.parse(context, body)
        services.owe(len(wanted) - 1)
        asked = manifest.complete(context, wanted, namespace=namespace)
        done, said = await objects.apply(context, asked, is_dry=dry_run)
    return view.ObjectChanges(
        items=tuple(_change(one, is_dry=dry_run) for one in done), warnings=(*asked.warnings, *said)
    )


@litestar.post(
    "/v1/delete",
    summary="Remove the objects of a manifest",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def delete_objects(services: Dependencies, body: params.RawBody, namespace: Beside = "") -> view.ObjectChanges:
    """Take the objects of a Kubernetes manifest away, the last one first, with what they made."""
    context = services.admission
    wanted = manifests.parse(body, kinds=manifest.KINDS)
    services.owe(len(wanted) - 1)
    named = [(type(one.item), one.item.metadata) for one in wanted]
    found = [(kind, about.name, about.namespace or namespace) for kind, about in named]
    done = await objects.delete(context, found)
    return view.ObjectChanges(items=tuple(_change(one) for one in done))


@litestar.get("/v1/objects/{kind:str}", summary="List objects", responses=documented(400, 404), tags=["object"])
async def list_objects(
    services: Dependencies,
    kind: Kind,
    namespace: Where = None,
    name: Annotated[str, params.QueryParameter(description="only the one of this name")] = "",
    label: Annotated[list[str] | None, params.QueryParameter(description="`KEY=VALUE`, only those with it")] = None,
) -> view.ObjectList:
    """Return the objects of a kind as Kubernetes writes them, in the order of namespace and name."""
    wanted, labels = kinds.find(kind), pods.read_labels(label or ())
    if wanted is core.Secret:
        secrets = () if labels else await services.backend.secrets.list_secrets(namespace)  # they carry no labels
        return view.ObjectList(items=tuple(view.secret_document(one) for one in secrets if name in {"", one.name}))
    found = (await services.store.list(wanted, Selector(namespace=namespace, labels=labels))).items
    kept = tuple(view.document(one) for one in found if not name or one.metadata.name == name)
    return view.ObjectList(items=kept)


@litestar.delete(
    "/v1/objects/{kind:str}/{name:str}",
    summary="Remove an object",
    responses=documented(400, 403, 404, 409),
    status_code=_OK,
    tags=["object"],
)
async def delete_object(
    services: Dependencies, kind: Kind, name: Name, namespace: Namespace = "default"
) -> view.ObjectChange:
    """Take one object away, with what it made."""
    (done,) = await objects.delete(services.admission, [(kinds.find(kind), name, namespace)])
    return _change(done)


@litestar.post(
    "/v1/objects/{kind:str}/{name:str}/:scale",
    summary="Scale a workload",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def scale_object(
    services: Dependencies,
    kind: Kind,
    name: Name,
    replicas: Annotated[int, params.QueryParameter(description="how many pods it is to have")],
    namespace: Namespace = "default",
) -> view.ObjectChange:
    """Set how many pods a Deployment or a StatefulSet has."""
    place = services.backend.places.new(namespace)
    found = await require(services.backend.workloads).scale(_workload(kind), name, place.namespace, replicas)
    return view.change(found, "scaled")


@litestar.post(
    "/v1/objects/{kind:str}/{name:str}/:restart",
    summary="Restart a workload",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def restart_object(
    services: Dependencies, kind: Kind, name: Name, namespace: Namespace = "default"
) -> view.ObjectChange:
    """Replace the pods of a Deployment or a StatefulSet a few at a time."""
    place = services.backend.places.new(namespace)
    found = await require(services.backend.workloads).restart(_workload(kind), name, place.namespace)
    return view.change(found, "restarted")


@litestar.post(
    "/v1/objects/{kind:str}/{name:str}/:undo",
    summary="Roll a workload back",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def undo_object(
    services: Dependencies,
    kind: Kind,
    name: Name,
    namespace: Namespace = "default",
    to_revision: Annotated[
        int, params.QueryParameter(description="0: the one before the present one", ge=0, le=2**31)
    ] = 0,
) -> view.ObjectChange:
    """Give a Deployment the template of an earlier revision again."""
    place = services.backend.places.new(namespace)
    workloads = require(services.backend.workloads)
    return view.change(await workloads.undo(_workload(kind), name, place.namespace, to_revision), "rolled back")


@litestar.post(
    "/v1/objects/{kind:str}/{name:str}/:pause",
    summary="Pause a workload",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def pause_object(
    services: Dependencies, kind: Kind, name: Name, namespace: Namespace = "default"
) -> view.ObjectChange:
    """Keep a Deployment from replacing its pods when its template changes."""
    return await _pause(services, kind, name, namespace, is_paused=True)


@litestar.post(
    "/v1/objects/{kind:str}/{name:str}/:resume",
    summary="Resume a workload",
    responses=documented(400, 403, 404, 409, 422),
    status_code=_OK,
    tags=["object"],
)
async def resume_object(
    services: Dependencies, kind: Kind, name: Name, namespace: Namespace = "default"
) -> view.ObjectChange:
    """Have a paused Deployment go on."""
    return await _pause(services, kind, name, namespace, is_paused=False)


async def _pause(services: Dependencies, kind: str, name: str, namespace: str, *, is_paused: bool) -> view.ObjectChange:
    place = services.backend.places.new(namespace)
    workloads = require(services.backend.workloads)
    found = await workloads.pause(_workload(kind), name, place.namespace, is_paused=is_paused)
    return view.change(found, "paused" if is_paused else "resumed")


def _workload(word: str) -> type[Workload]:
    kind = kinds.find(word)
    if not issubclass(kind, Workload):
        message = f"a {kind.KIND} is neither scaled, restarted nor rolled back"
        raise errors.Invalid(message, reason="WorkloadInvalid", hint="deployments and statefulsets are")
    return kind


def _change(one: Applied, *, is_dry: bool = False) -> view.ObjectChange:
    more: dict[str, Any] = {}
    if is_dry:
        more = {
            "before": None if one.before is None else view.document(one.before),
            "after": view.document(one.item),
        }
    return view.change(one.item, one.action, **more)


ROUTES: Final = (
    apply_objects,
    delete_objects,
    list_objects,
    delete_object,
    scale_object,
    restart_object,
    undo_object,
    pause_object,
    resume_object,
)

"""Serves the submit form: what it will send is shown as JSON, as curl and as the verb before it is sent.

A template of sessions fills it in as `fairlead notebook` does. Whether it would wait, for what and behind whom is asked
of the API when the person asks: each question is a request that is judged, and a row of the audit log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.admission.sessiontemplate import LABEL
from fairlead.serve.backend.hardware import ImageList
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import gpumap, request, sessionform
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.containers.view import ContainerList, ContainerView
from fairlead.serve.v1.nodes.view import CapacityList, CapacityView
from fairlead.serve.v1.status.view import Status

_OWN: Final = "localhost/fairlead/"
"""Images that Fairlead made for itself."""
_MOST: Final = 200
_MOST_SESSIONS: Final = 8
_CHOSEN: Final = frozenset({"action", "csrf"})
_BEGIN: Final = {"gpus": "1", "restart": "Never"}


@litestar.get("/console/run", include_in_schema=False)
async def empty(visit: Visitor) -> litestar.Response[bytes]:
    """Show the form; `?template=notebook` and `?image=…&gpus=…` fill it in."""
    found = sessionform.named(await visit.templates()).get(visit.query.get("template", ""))
    begin = _BEGIN if found is None else sessionform.filled(found, visit.query.get("name", "")[:63])
    return await _form(visit, {**begin, **{name: text for name, text in visit.query.items() if name not in _CHOSEN}})


@litestar.post("/console/run", include_in_schema=False)
async def send(visit: Visitor, body: params.RawBody) -> litestar.Response[Any]:
    """Show what would be sent, or send it."""
    fields = visits.form(body)
    if fields.get("action") == "check":
        judged = await visits.tried(_made(visit, fields, dry_run=True))
        if isinstance(judged, errors.FairleadError):
            return await _form(visit, fields, error=judged)
        return await _form(visit, fields, judged=judged)
    if fields.get("action") != "run":
        return await _form(visit, fields)
    made = await visits.tried(_made(visit, fields))
    if isinstance(made, errors.FairleadError):
        return await _form(visit, fields, error=made)
    return response.Redirect(f"{gpumap.container_address(made.namespace, made.name)}?done=run", status_code=303)


ROUTES: Final = (empty, send)


async def _made(visit: Visit, fields: Mapping[str, str], *, dry_run: bool = False) -> ContainerView:
    wanted, query = request.request_of(fields), {"dry_run": True} if dry_run else {}
    answer = await visit.api.ask("POST", "/v1/containers", query, body=wanted, csrf=fields.get("csrf", ""))
    return answer.value(ContainerView)


async def _sessions(visit: Visit, template: str) -> tuple[ContainerView, ...]:
    """Return the caller's sessions of a template, which are opened again rather than made twice."""
    if not template:
        return ()
    asked = visit.api.get(ContainerList, "/v1/containers", all=True, label=f"{LABEL}={template}")
    found = await visits.tried(asked)
    return () if isinstance(found, errors.FairleadError) else found.items[:_MOST_SESSIONS]


async def _form(
    visit: Visit,
    fields: Mapping[str, str],
    *,
    error: errors.FairleadError | None = None,
    judged: ContainerView | None = None,
) -> litestar.Response[bytes]:
    code = errors.row_of(error).http if error else 200  # what is not sent yet is shown as it stands
    try:
        wanted = request.request_of(fields)
    except errors.Invalid as problem:
        wanted, error = {"image": fields.get("image", "")}, error or problem
    status = await visit.api.get(Status, "/v1/status")
    capacity = (await visit.api.get(CapacityList, "/v1/capacity")).items
    address = status.address if visit.has_login else ""
    templates = await visit.templates()
    return visit.page(
        "run",
        code=code,
        fields=fields,
        error=error,
        resources=[status.resource, *sorted({one.resource for one in capacity} - {status.resource})],
        free=_free(capacity, status.resource),
        images=await _images(visit),
        whole=status.resource,
        tenancies=await visit.tenancies(Action.CONTAINER_RUN),
        body=json.dumps(wanted, indent=2, ensure_ascii=False),
        curl=request.curl(wanted, address=address, socket=status.socket),
        command=request.command(wanted),
        is_ready=bool(wanted["image"]),
        judged=judged,
        problems=_at_field(error),
        templates=templates,
        chosen=sessionform.named(templates).get(fields.get("template", "")),
        sessions=await _sessions(visit, fields.get("template", "")),
        address=gpumap.container_address,
    )


def _at_field(error: errors.FairleadError | None) -> dict[str, str]:
    """Return what an error says of one field, where it begins with the field's name."""
    field, colon, words = error.message.partition(": ") if error is not None else ("", "", "")
    return {field: words} if colon and field in request.FIELDS else {}


def _free(capacity: Iterable[CapacityView], whole: str) -> str:
    """Return what is free of whole GPUs, model by model; empty: nothing is known of them."""
    own = [one for one in capacity if one.resource == whole]
    return "; ".join(f"{one.free} of {one.offered} free{f' ({one.model})' if one.model else ''}" for one in own)


async def _images(visit: Visit) -> list[str]:
    """Return names of images that are on the machine; none where the caller may not look."""
    found = await visits.tried(visit.api.get(ImageList, "/v1/images"))
    if isinstance(found, errors.FairleadError):
        return []
    names = {name for one in found.items for name in one.names if not name.startswith(_OWN)}
    return sorted(names)[:_MOST]

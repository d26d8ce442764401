"""Shows queues: what each team is due, what it has; makes, changes and removes them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import amounts, queueform
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.queues.view import QueueList, QueueView
from fairlead.settings.control import POLICIES

Name = Annotated[str, params.PathParameter()]
_ALL: Final = "/console/queues"


@litestar.get(_ALL, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List queues."""
    return await _page(visit, {"weight": "1"})


@litestar.post(_ALL, include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Make a queue."""
    fields = visits.form(body)
    asked = await _read(visit, fields)
    name = fields.get("name", "").strip()
    problems = {**({} if name else {"name": "a queue needs a name"}), **asked.problems}
    if problems:
        return await _page(visit, fields, problems=problems)
    answer = await visits.tried(_put(visit, name, asked.body, fields, create=True))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields, error=answer)
    return response.Redirect(address(name), status_code=303)


@litestar.get("/console/queues/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, name: Name) -> litestar.Response[bytes]:
    """Show one queue."""
    one = await _found(visit, name)
    return await _one(visit, one, queueform.filled(one.spec, await visit.resource(), await visit.space_names()))


@litestar.post("/console/queues/{name:str}", include_in_schema=False)
async def change(visit: Visitor, body: params.RawBody, name: Name) -> litestar.Response[bytes] | response.Redirect:
    """Change one queue; containers that run go on."""
    fields, one = visits.form(body), await _found(visit, name)
    asked = await _read(visit, fields)
    if asked.problems:
        return await _one(visit, one, fields, problems=asked.problems)
    answer = await visits.tried(_put(visit, one.name, asked.body, fields, create=False))
    if isinstance(answer, errors.FairleadError):
        return await _one(visit, one, fields, error=answer)
    return response.Redirect(address(one.name), status_code=303)


@litestar.post("/console/queues/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, name: Name) -> litestar.Response[bytes] | response.Redirect:
    """Remove one queue; its containers go on in the default one."""
    csrf = visits.form(body).get("csrf", "")
    answer = await visits.tried(visit.api.ask("DELETE", f"/v1/queues/{client.part(name)}", csrf=csrf))
    if isinstance(answer, errors.Conflict):  # queues below it
        one = await _found(visit, name)
        filled = queueform.filled(one.spec, await visit.resource(), await visit.space_names())
        return await _one(visit, one, filled, error=answer)
    if isinstance(answer, errors.FairleadError):
        raise answer
    return response.Redirect(_ALL, status_code=303)


ROUTES: Final = (listing, make, detail, change, remove)


def address(name: str) -> str:
    """Return the address of a queue's page."""
    return f"{_ALL}/{urllib.parse.quote(name, safe='')}"


async def _put(visit: Visit, name: str, body: Mapping[str, Any], fields: Mapping[str, str], *, create: bool) -> None:
    path = f"/v1/queues/{client.part(name)}"
    await visit.api.ask("PUT", path, {"create": create}, body=body, csrf=fields.get("csrf", ""))


async def _read(visit: Visit, fields: Mapping[str, str]) -> queueform.Read:
    return queueform.read(fields, await visit.resource(), await visit.space_names())


async def _found(visit: Visit, name: str) -> QueueView:
    return await visit.api.get(QueueView, f"/v1/queues/{client.part(name)}")


async def _page(
    visit: Visit,
    fields: Mapping[str, str],
    *,
    problems: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    found = (await visit.api.get(QueueList, "/v1/queues")).items
    return visit.page(
        "queues",
        items=[(one, _meters(one)) for one in found],
        **await _form(visit, found, fields, problems, error),
    )


async def _one(
    visit: Visit,
    one: QueueView,
    fields: Mapping[str, str],
    *,
    problems: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    found = (await visit.api.get(QueueList, "/v1/queues")).items
    others = [each for each in found if each.name != one.name]
    return visit.page(
        "queueone",
        one=one,
        meters=_meters(one),
        due=amounts.meters(one.status.share, one.status.allocated),
        below=[each for each in others if each.spec.parent == one.name],
        here=address(one.name),
        **await _form(visit, others, fields, problems, error),
    )


async def _form(
    visit: Visit,
    others: Sequence[QueueView],
    fields: Mapping[str, str],
    problems: Mapping[str, str] | None,
    error: errors.FairleadError | None,
) -> dict[str, Any]:
    return {
        "parents": [one.name for one in others],
        "parts": queueform.PARTS,
        "policies": POLICIES,
        "spaces": await visit.space_names(),
        "may_write": visit.may(Action.MACHINE_WRITE),
        "fields": fields,
        "problems": problems or {},
        "error": error,
        "code": 422 if problems else None,
        "address": address,
    }


def _meters(one: QueueView) -> tuple[amounts.Meter, ...]:
    """Return what a queue has of what it may have: of its limit, else of its own share."""
    return amounts.meters(one.spec.limit or one.spec.deserved or one.spec.guarantee, one.status.allocated)

"""Shows containers: all of them with a filter, and one with its output, terminal, GPUs, events and details."""

from __future__ import annotations

import urllib.parse
from collections import Counter
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.admission.sessiontemplate import LABEL
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import claimfacts, gpumap, headline, sessionform, tone, tracepicture, waterfall, words
from fairlead.serve.console.pages import metrics, opening
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.containers.traceview import TraceView
from fairlead.serve.v1.containers.view import ENDED, ContainerList, ContainerView, Explanation
from fairlead.serve.v1.events.view import EventList

_MOST: Final = 500
"""Rows of the list; a filter finds the others."""
_LINES: Final = 200
"""Lines of output that a page begins with."""
_STATES: Final = ("pending", "creating", "running", "crashed", "stopping", "succeeded", "failed", "stopped")
_TABS: Final[tuple[tuple[str, str], ...]] = (
    ("output", "Output"),
    ("metrics", "Metrics"),
    ("terminal-tab", "Terminal"),
    ("gpus", "GPUs"),
    ("events", "Events"),
    ("details", "Details"),
)
_WORDS: Final = {
    "stop": "is being stopped",
    "remove": "is being removed",
    "restart": "is being started again",
    "run": "was submitted",
}

Namespace = Annotated[str, params.PathParameter()]
Name = Annotated[str, params.PathParameter()]


@litestar.get("/console/containers", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List containers."""
    state, sought = visit.query.get("state", ""), visit.query.get("q", "")[:200]
    namespace = visit.query.get("namespace", "")[:253]
    found = (await visit.api.get(ContainerList, "/v1/containers", all=True)).items
    counts = Counter(_group(one) for one in found)
    shown = [one for one in found if _is_wanted(one, state, sought, namespace)]
    return visit.page(
        "containers",
        items=shown[:_MOST],
        left_out=max(0, len(shown) - _MOST),
        total=len(found),
        counts=counts,
        state=state,
        words=sought,
        namespace=namespace,
        namespaces=sorted({one.namespace for one in found}),
        spaces=await visit.space_names(),
        tone=tone,
        address=gpumap.container_address,
    )


def _group(one: ContainerView) -> str:
    return "ended" if one.state in ENDED else "waiting" if one.state == "pending" else "running"


def _is_wanted(one: ContainerView, state: str, sought: str, namespace: str) -> bool:
    if (state and state not in {one.state, _group(one)}) or (namespace and one.namespace != namespace):
        return False
    text = " ".join((one.name, one.image, one.node, one.namespace, *(f"{k}={v}" for k, v in one.labels.items())))
    return all(word in text.lower() for word in sought.lower().split())


@litestar.get("/console/containers/{namespace:str}/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, namespace: Namespace, name: Name) -> litestar.Response[bytes]:
    """Show one container."""
    path = f"/v1/containers/{client.part(name)}"
    one = await visit.api.get(ContainerView, path, namespace=namespace)
    trace = await visit.api.get(TraceView, f"{path}/trace", namespace=namespace)
    explanation = await visit.api.get(Explanation, f"{path}/explain", namespace=namespace)
    events = (await visit.api.get(EventList, f"{path}/events", namespace=namespace)).items
    spaces = await visit.space_names()
    may_enter = visit.may(Action.CONTAINER_ENTER) and one.state not in ENDED
    templates = await visit.templates() if LABEL in one.labels else ()
    return visit.page(
        "container",
        one=one,
        explanation=explanation,
        headline=headline.headline(one),
        why=headline.why(one, explanation),
        asked=headline.devices(one.resources, one.gpus),
        form_address=headline.form_address(one, spaces.get(namespace, "")),
        space=spaces.get(namespace, "" if namespace == "default" else namespace),
        spaces=spaces,
        tabs=[tab for tab in _TABS if may_enter or tab[0] != "terminal-tab"],
        trace=trace,
        picture=tracepicture.picture(trace, one.devices, sees_node=visit.is_root or not visit.has_login),
        waterfall=None if one.state == "pending" else waterfall.waterfall(trace),
        events=events,
        metrics=await metrics.of_container(visit, path, one, explanation, events),
        output=await _output(visit, path, namespace, one),
        lines=_LINES,
        is_over=one.state in ENDED,
        said=_said(visit, name),
        may_run=visit.may(Action.CONTAINER_RUN),
        may_enter=may_enter,
        ports=opening.ports_of(one, templates) if may_enter else (),
        here=gpumap.container_address(namespace, name),
        entry=sessionform.entry(one, templates, host=visit.host, space=spaces.get(namespace, "")),
        claim_address=claimfacts.address,
        query=urllib.parse.urlencode({"namespace": namespace}),
        api_path=f"/v1/containers/{urllib.parse.quote(name, safe='')}",
        tone=tone,
    )


def _said(visit: Visit, name: str) -> str:
    done = visit.query.get("done", "")
    return f"{name} {_WORDS[done]}." if done in _WORDS else ""


async def _output(visit: Visit, path: str, namespace: str, one: ContainerView) -> str:
    """Return the last lines of a container's output; empty: it has none yet, or it cannot be read."""
    if not one.node:
        return ""
    try:
        answer = await visit.api.ask("GET", f"{path}/logs", {"namespace": namespace, "tail": _LINES})
    except errors.FairleadError:
        return ""
    return words.output(answer.body.decode("utf-8", "replace"))


async def _change(visit: Visit, body: bytes, namespace: str, name: str, what: str) -> response.Redirect:
    fields = visits.form(body)
    path, asked = f"/v1/containers/{client.part(name)}", {"namespace": namespace}
    csrf = fields.get("csrf", "")
    if what == "remove":
        await visit.api.ask("DELETE", path, asked, csrf=csrf)
        return response.Redirect(f"/console/containers?{urllib.parse.urlencode({'done': name})}", status_code=303)
    await visit.api.ask("POST", f"{path}:{what}", asked, csrf=csrf)
    return response.Redirect(f"{gpumap.container_address(namespace, name)}?done={what}", status_code=303)


@litestar.post("/console/containers/{namespace:str}/{name:str}/stop", include_in_schema=False)
async def stop(visit: Visitor, body: params.RawBody, namespace: Namespace, name: Name) -> response.Redirect:
    """Stop it and keep its record."""
    return await _change(visit, body, namespace, name, "stop")


@litestar.post("/console/containers/{namespace:str}/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, namespace: Namespace, name: Name) -> response.Redirect:
    """Stop and remove it."""
    return await _change(visit, body, namespace, name, "remove")


@litestar.post("/console/containers/{namespace:str}/{name:str}/restart", include_in_schema=False)
async def restart(visit: Visitor, body: params.RawBody, namespace: Namespace, name: Name) -> response.Redirect:
    """Start it again."""
    return await _change(visit, body, namespace, name, "restart")


ROUTES: Final = (listing, detail, stop, remove, restart)

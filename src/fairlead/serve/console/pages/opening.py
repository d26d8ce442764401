"""Opens a container's port in a tab of its own: the API makes the address, and this page leads the tab there.

A form's answer cannot lead to another origin: the console's policy lets forms go to itself alone, and browsers hold a
redirect to the same. So the tab is shown a page that says where it goes, and goes there by itself (Refresh).
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable
from typing import Annotated, Final

import litestar
from litestar import params

from fairlead.serve.admission.sessiontemplate import LABEL, Template
from fairlead.serve.console import client, render
from fairlead.serve.console import visit as visits
from fairlead.serve.console.visit import HTML, Visitor
from fairlead.serve.v1.containers.access.view import DoorView
from fairlead.serve.v1.containers.view import ContainerView

_MOST: Final = 12
"""Buttons of one container."""


def ports_of(one: ContainerView, templates: Iterable[Template]) -> tuple[int, ...]:
    """Return the ports that a container offers: its session's first, then those that it publishes."""
    named = one.labels.get(LABEL, "")
    found = [item.port for item in templates if named and item.name == named and item.port]
    for text in one.ports:
        number, _, protocol = text.partition("->")[2].partition("/")
        if protocol == "tcp" and number.isdecimal():
            found.append(int(number))
    return tuple(dict.fromkeys(found))[:_MOST]


@litestar.post("/console/containers/{namespace:str}/{name:str}/open", include_in_schema=False, status_code=200)
async def lead(
    visit: Visitor,
    body: params.RawBody,
    namespace: Annotated[str, params.PathParameter()],
    name: Annotated[str, params.PathParameter()],
) -> litestar.Response[bytes]:
    """Have a port opened, and lead the tab there."""
    fields = visits.form(body)
    port = fields.get("port", "")
    path = f"/v1/containers/{client.part(name)}/ports/{client.part(port)}/door"
    answer = await visit.api.ask("POST", path, {"namespace": namespace}, body={}, csrf=fields.get("csrf", ""))
    found = answer.value(DoorView)
    host = urllib.parse.urlsplit(found.origin).netloc
    text = render.page("opening", container=name, port=port, address=found.address, host=host)
    headers = {"refresh": f"0; url={found.address}", "cache-control": "no-store", "referrer-policy": "no-referrer"}
    return litestar.Response(text.encode("utf-8", "replace"), media_type=HTML, headers=headers)


ROUTES: Final = (lead,)

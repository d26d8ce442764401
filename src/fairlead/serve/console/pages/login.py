"""Logs browsers in and out: a key becomes a browser's session, which the API begins and ends."""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import Any, Final

import litestar
from litestar import di, params, response

from fairlead import errors
from fairlead.serve.console import render
from fairlead.serve.console import visit as visits
from fairlead.serve.console.client import API, Answer
from fairlead.serve.console.visit import HTML, Visitor

_LOGIN: Final = "/console/login"
Asked = di.NamedDependency[params.SkipValidation[API]]


def redirect(request: litestar.Request[Any, Any, Any]) -> litestar.Response[Any]:
    """Lead to the login, and back to the page afterwards; a page that refreshes itself is left as a whole."""
    asked = request.scope["path"] + (f"?{query}" if (query := request.scope["query_string"].decode("latin-1")) else "")
    back = visits.within(asked) if request.method == "GET" else "/console/"
    place = f"{_LOGIN}?{urllib.parse.urlencode({'next': back})}"
    if request.headers.get("hx-request") == "true":
        return litestar.Response(b"", status_code=200, headers={"hx-redirect": place})
    return response.Redirect(place, status_code=303)


@litestar.get(_LOGIN, include_in_schema=False)
async def show(request: litestar.Request[Any, Any, Any]) -> litestar.Response[bytes]:
    """Ask for a key."""
    return _page(visits.within(request.query_params.get("next", "")))


@litestar.post(_LOGIN, include_in_schema=False)
async def enter(api: Asked, body: params.RawBody) -> litestar.Response[Any]:
    """Begin a session with a key, and go where the browser was going."""
    fields = visits.form(body)
    following = visits.within(fields.get("next", ""))
    try:
        answer = await api.ask("POST", "/v1/session", body={"key": fields.get("key", "").strip()})
    except errors.FairleadError as error:
        status = 401 if isinstance(error, errors.Unauthenticated | errors.RequestError) else 503
        return _page(following, error=error, status=status)
    return _with_cookies(answer, following)


@litestar.post("/console/logout", include_in_schema=False)
async def leave(visit: Visitor) -> litestar.Response[Any]:
    """End the session."""
    with contextlib.suppress(errors.Unauthenticated):
        answer = await visit.api.ask("DELETE", "/v1/session", csrf=visit.csrf)
        return _with_cookies(answer, _LOGIN)
    return response.Redirect(_LOGIN, status_code=303)


ROUTES: Final = (show, enter, leave)


def _with_cookies(answer: Answer, place: str) -> litestar.Response[Any]:
    (cookie,) = answer.cookies()
    return response.Redirect(place, status_code=303, headers={"set-cookie": cookie})


def _page(following: str, *, error: errors.FairleadError | None = None, status: int = 200) -> litestar.Response[bytes]:
    text = render.page("login", following=following, error=error)
    return litestar.Response(text.encode(), status_code=status, media_type=HTML)

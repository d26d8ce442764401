"""Logs browsers in and out: a key becomes a browser's session, which the API begins and ends."""

from __future__ import annotations

import contextlib
import urllib.parse
from http import HTTPStatus
from typing import Any, Final

import litestar
import msgspec
from litestar import di, params, response

from fairlead import errors
from fairlead.serve.accounts import sessions
from fairlead.serve.accounts.sessions import SessionView
from fairlead.serve.console import guard, render
from fairlead.serve.console import visit as visits
from fairlead.serve.console.client import API, Answer
from fairlead.serve.console.visit import HTML, Visitor
from fairlead.wire.fairlead import problem

_LOGIN: Final = "/console/login"
Asked = di.NamedDependency[params.SkipValidation[API]]
Provider = di.NamedDependency[str]
"""Host of the identity provider; empty: there is none."""


def redirect(request: litestar.Request[Any, Any, Any]) -> litestar.Response[Any]:
    """Lead to the login, and back to the page afterwards; a page that refreshes itself is left as a whole."""
    asked = request.scope["path"] + (f"?{query}" if (query := request.scope["query_string"].decode("latin-1")) else "")
    back = visits.within(asked) if request.method == "GET" else "/console/"
    place = f"{_LOGIN}?{urllib.parse.urlencode({'next': back})}"
    if request.headers.get("hx-request") == "true":
        return litestar.Response(b"", status_code=200, headers={"hx-redirect": place})
    return response.Redirect(place, status_code=303)


@litestar.get(_LOGIN, include_in_schema=False)
async def show(request: litestar.Request[Any, Any, Any], provider: Provider) -> litestar.Response[bytes]:
    """Ask for a key, or offer the identity provider."""
    return _page(visits.within(request.query_params.get("next", "")), provider)


@litestar.post(_LOGIN, include_in_schema=False)
async def enter(api: Asked, body: params.RawBody, provider: Provider) -> litestar.Response[Any]:
    """Begin a session with a key, and go where the browser was going."""
    fields = visits.form(body)
    following = visits.within(fields.get("next", ""))
    try:
        answer = await api.ask("POST", "/v1/session", body={"key": fields.get("key", "").strip()})
    except errors.FairleadError as error:
        is_keys = isinstance(error, errors.Unauthenticated | errors.RequestError)
        status = HTTPStatus.UNAUTHORIZED if is_keys else errors.row_of(error).http
        return _page(following, provider, error=error, status=status)
    return _with_cookies(answer, sessions.with_token(following, answer.value(SessionView).csrf_token))


@litestar.post("/console/logout", include_in_schema=False)
async def leave(visit: Visitor, body: params.RawBody) -> litestar.Response[Any]:
    """End the session."""
    with contextlib.suppress(errors.Unauthenticated):
        answer = await visit.api.ask("DELETE", "/v1/session", csrf=visits.form(body).get("csrf", ""))
        return _with_cookies(answer, _LOGIN)
    return response.Redirect(_LOGIN, status_code=303)


ROUTES: Final = (show, enter, leave)


def explained(send: Any, provider: str) -> Any:
    """Send the login page with what was wrong in place of a problem document, to a browser at the provider's door."""
    began: Any = None
    pieces: list[bytes] = []

    async def sent(message: Any) -> None:
        nonlocal began
        if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
            began = message
            return
        if began is None or message["type"] != "http.response.body":
            await send(message)
            return
        pieces.append(bytes(message.get("body", b"")))
        if message.get("more_body"):
            return
        error = problem.error_of(msgspec.json.decode(b"".join(pieces), type=problem.Problem))
        text = _text("/console/", provider, error).encode("utf-8", "replace")
        kept = [one for one in began["headers"] if one[0].lower() not in {b"content-type", b"content-length"}]
        told = {**guard.HEADERS, "cache-control": "no-store", "content-type": f"{HTML}; charset=utf-8"}
        told["content-length"] = str(len(text))
        added = [(name.encode(), value.encode()) for name, value in told.items()]
        await send({**began, "headers": [*kept, *added]})
        await send({"type": "http.response.body", "body": text, "more_body": False})

    return sent


def _with_cookies(answer: Answer, place: str) -> litestar.Response[Any]:
    (cookie,) = answer.cookies()
    return response.Redirect(place, status_code=303, headers={"set-cookie": cookie})


def _page(
    following: str, provider: str, *, error: errors.FairleadError | None = None, status: int = 200
) -> litestar.Response[bytes]:
    text = _text(following, provider, error)
    wait_s = None if error is None else error.context.get("retry_after_s")
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return litestar.Response(text.encode("utf-8", "replace"), status_code=status, media_type=HTML, headers=headers)


def _text(following: str, provider: str, error: errors.FairleadError | None) -> str:
    begin = f"/v1/oidc/login?{urllib.parse.urlencode({'back': following})}"
    return render.page("login", following=following, provider=provider, begin=begin, error=error)

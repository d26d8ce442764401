"""Answers every request to an opened port's host, before anything else of the service sees it.

A host below one of the grants' domains is a container's or nobody's: no request to it reaches console or API, and no
request to another host reaches a container. Each request is judged by itself, also on a connection that carried others:
its host, its cookie, where it comes from and what its caller may do now.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.serve import peer
from fairlead.serve.accounts import sessions
from fairlead.serve.limits import address
from fairlead.serve.opened import grants as kept
from fairlead.serve.opened import heads, hosts, pages, racing
from fairlead.serve.opened.grants import Grant, Grants
from fairlead.serve.opened.socketway import Carriage, Held
from fairlead.serve.opened.upstream import Exchange, Patience, Receive, Request, Send
from fairlead.store.subresource import Connection

App = Callable[[Any, Any, Any], Awaitable[None]]
_NOT_CARRIED: Final = frozenset({"CONNECT", "TRACE"})


def create_app(inner: App, *, grants: Grants, patience: Patience | None = None) -> App:
    """Return an application that answers hosts of opened ports, and hands all others on to `inner`."""
    door = _Door(grants=grants, patience=patience or Patience())

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        host = heads.value_of(scope["headers"], b"host") if scope["type"] in {"http", "websocket"} else None
        label = None if host is None else hosts.label_of(host, grants.domains)
        if host is None or label is None:
            await inner(scope, receive, send)
            return
        await door.answer(_Visit(scope=scope, receive=receive, send=send, host=host.lower()), label)

    return app


@dataclass(frozen=True, slots=True)
class _Visit:
    """One request to an opened port's host."""

    scope: Any
    receive: Receive
    send: Send
    host: str

    @property
    def is_socket(self) -> bool:
        return bool(self.scope["type"] == "websocket")

    @property
    def method(self) -> str:
        return "GET" if self.is_socket else str(self.scope["method"])

    @property
    def origin(self) -> str:
        """The host's own; a browser leaves HTTPS' port out of both Host and Origin."""
        return f"https://{self.host}"

    @property
    def target(self) -> bytes:
        """Path and query as they came."""
        path = bytes(self.scope.get("raw_path") or b"")
        query = bytes(self.scope.get("query_string") or b"")
        return path + b"?" + query if query else path

    @property
    def is_plain(self) -> bool:
        """Whether the target is a path: not another host's address, and without what would end a request's line."""
        target = self.target
        return target.startswith(b"/") and all(0x20 < one < 0x7F for one in target)

    @property
    def cookie(self) -> str:
        values = [value.decode("latin-1") for name, value in self.scope["headers"] if name.lower() == b"cookie"]
        return sessions.of_cookies(values, kept.COOKIE)

    async def show(self, page: pages.Page, *headers: tuple[bytes, bytes]) -> None:
        """Answer with a page of the service."""
        accepted = heads.value_of(self.scope["headers"], b"accept") or ""
        own, body = pages.draw(page, is_html="text/html" in accepted)
        kind = "websocket.http.response" if self.is_socket else "http.response"
        await self.send({"type": f"{kind}.start", "status": page.status, "headers": [*own, *headers]})
        await self.send({"type": f"{kind}.body", "body": body})

    async def cut(self) -> None:
        """End an answer that has begun, so that the browser sees that it is not whole."""
        hang_up = (self.scope.get("state") or {}).get(peer.HANG_UP)
        if hang_up is not None:
            hang_up()
            while (await self.receive())["type"] != "http.disconnect":
                pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Door:
    grants: Grants
    patience: Patience
    held: Held = field(default_factory=Held)

    async def answer(self, visit: _Visit, label: str) -> None:
        """Answer a request to one of the service's hosts."""
        grant = self.grants.find(label)
        if grant is None:
            await visit.show(pages.UNKNOWN)
        elif not visit.is_plain:
            await visit.show(pages.MALFORMED)
        elif visit.method in _NOT_CARRIED:
            await visit.show(pages.METHOD)
        elif visit.scope["path"] == kept.ENTRANCE:
            await self._enter(visit, grant)
        elif (refused := self._refusal(visit, grant)) is not None:
            await visit.show(refused)
        elif self.grants.connections.of(grant.wish.caller) >= self.grants.limits.connections:
            await visit.show(pages.BUSY)
        else:
            place = self.grants.connections.take(grant.wish.caller)
            try:
                await self._carry(visit, grant)
            finally:
                place.give_back()

    def _refusal(self, visit: _Visit, grant: Grant) -> pages.Page | None:
        """Return why a request is not carried; None: it is."""
        if not self.grants.holds(grant, visit.cookie):
            return pages.LOCKED
        if _is_elsewhere(visit, grant):
            return pages.ELSEWHERE
        headers = visit.scope["headers"]
        is_own = heads.is_own_page(headers, method=visit.method, origin=visit.origin, is_socket=visit.is_socket)
        return None if is_own else pages.FOREIGN

    async def _enter(self, visit: _Visit, grant: Grant) -> None:
        """Take a ticket and give the cookie for it, and lead to the page that it is for."""
        if visit.is_socket or visit.method != "GET":
            await visit.show(pages.METHOD)
            return
        if heads.value_of(visit.scope["headers"], b"sec-fetch-dest") not in {None, "document"}:
            await visit.show(pages.FOREIGN)  # a frame of another page
            return
        if _is_elsewhere(visit, grant):
            await visit.show(pages.ELSEWHERE)
            return
        shown = visit.scope["query_string"].decode("latin-1").removeprefix("ticket=")
        taken = self.grants.redeem(grant, shown)
        if taken is None:
            # A page that is loaded again, or gone back to: who has the cookie needs no ticket.
            taken = ("", "/") if self.grants.holds(grant, visit.cookie) else None
        if taken is None:
            await visit.show(pages.USED)
            return
        cookie, path = taken
        headers = [
            (b"location", path.encode("ascii", "replace")),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
            (b"content-length", b"0"),
            *([(b"set-cookie", kept.cookie_header(cookie))] if cookie else []),
        ]
        await visit.send({"type": "http.response.start", "status": 303, "headers": headers})
        await visit.send({"type": "http.response.body", "body": b""})

    async def _carry(self, visit: _Visit, grant: Grant) -> None:
        try:
            connection = await grant.wish.way.connect()
        except errors.FairleadError as error:
            if isinstance(error, kept.ENDING):
                self.grants.end(grant)
            await visit.show(pages.of_error(error, grant.wish.port))
            return
        try:
            await self._carried(visit, grant, connection)
        finally:
            await connection.close()

    async def _carried(self, visit: _Visit, grant: Grant, connection: Connection) -> None:
        client = str((visit.scope.get("client") or ("",))[0])
        headers = heads.request(visit.scope["headers"], heads.Came(host=visit.host, client=client))
        ended = functools.partial(self.grants.watch, grant)
        if visit.is_socket:
            await self._carry_socket(visit, grant, connection, headers, ended)
        else:
            await self._carry_request(visit, grant, connection, headers, ended)

    async def _carry_request(
        self,
        visit: _Visit,
        grant: Grant,
        connection: Connection,
        headers: list[heads.Header],
        ended: racing.Step,
    ) -> None:
        if (patient := (visit.scope.get("state") or {}).get(peer.TAKES_LONG)) is not None:
            patient()  # the body goes to the container piece by piece: `patience` bounds it
        asked = Request(method=visit.method, target=visit.target, headers=headers, host=visit.host)
        one = Exchange(connection, asked, visit.receive, visit.send, self.patience)
        page = pages.LOCKED
        try:
            await one.carry(ended)
        except (errors.FairleadError, TimeoutError) as error:
            page = _page_of(error, grant.wish.port)
        if one.has_begun or one.has_left:
            if not one.is_whole:
                await visit.cut()
        else:
            await visit.show(page)

    async def _carry_socket(
        self,
        visit: _Visit,
        grant: Grant,
        connection: Connection,
        headers: list[heads.Header],
        ended: racing.Step,
    ) -> None:
        framing = {b"content-length", b"transfer-encoding"}
        asked = Request(
            method="GET",
            target=visit.target,
            headers=[one for one in headers if one[0] not in framing],
            host=visit.host,
        )
        offered = [one for one in visit.scope.get("subprotocols") or () if one]
        one = Carriage(
            connection=connection,
            asked=asked,
            offered=offered,
            receive=visit.receive,
            send=visit.send,
            patience=self.patience,
            held=self.held,
            caller=grant.wish.caller,
        )
        await visit.receive()  # websocket.connect
        try:
            await one.carry(ended)
        except (errors.FairleadError, TimeoutError) as error:
            if not one.has_begun:
                await visit.show(_page_of(error, grant.wish.port))
        except OSError as error:
            telemetry.log.debug("browser left", error=type(error).__name__)


def _is_elsewhere(visit: _Visit, grant: Grant) -> bool:
    """Return whether a browser comes from another network than the session that opened the port."""
    return bool(grant.wish.network) and address.of_scope(visit.scope) != grant.wish.network


def _page_of(error: Exception, port: int) -> pages.Page:
    """Return the page of what went wrong on the container's side."""
    if isinstance(error, TimeoutError):
        return pages.SILENT
    if isinstance(error, errors.ProtocolError):
        return pages.UNREADABLE
    if isinstance(error, errors.FairleadError) and error.reason == "PortRefused":
        return pages.waiting(port)
    return pages.BROKEN

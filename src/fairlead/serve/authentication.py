"""Authenticates requests to the API on TLS, by an API key or a browser's session, and passes on whose each is.

Keys and sessions are taken out of the headers before anything else sees them, so that none ends in a log line or a
handler. The requests of `permissions.OPEN` pass without one, and their sender may do nothing else. A client that asks
too often is refused here (`limits.gate`). A refusal is answered here, with the same problem documents as everywhere; a
WebSocket that is refused, here or by a route's guard, is answered with one as well, in place of its upgrade. How each
request ends is written into the audit log (`accounts.audit`) before its answer leaves; the answer names the request as
X-Request-Id.
Source: ASGI specification, "Websocket Denial Response" (`websocket.http.response`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fairlead import errors
from fairlead.serve.accounts import keys, roles, sessions, sshkeys
from fairlead.serve.accounts.audit import Place
from fairlead.serve.accounts.port import Accounts
from fairlead.serve.accounts.recording import Recording, Refusals
from fairlead.serve.api import failure
from fairlead.serve.limits import address as addresses
from fairlead.serve.limits import gate as limits
from fairlead.serve.v1 import permissions
from fairlead.wire.fairlead import problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="fairlead"')


Admit = Callable[[Any, Accounts, limits.Gate, Recording], Awaitable[tuple[roles.Principal, limits.Standing]]]


def create_app(inner: App, accounts: Accounts, *, gate: limits.Gate, refusals: Refusals) -> App:
    """Return the API as it is served on TLS.

    Args: gate: who may ask how often.   refusals: decides which refusals have a row of their own in the audit log.
    """
    return _create(inner, accounts, gate, refusals, _admitted)


def create_ssh_app(inner: App, accounts: Accounts, *, gate: limits.Gate, refusals: Refusals) -> App:
    """Return the API as the SSH door asks it: each request is of the account whose key stands in its scope's state.

    Never to be served on a socket: who may set that state may be any account.
    """
    return _create(inner, accounts, gate, refusals, _vouched)


def _create(inner: App, accounts: Accounts, gate: limits.Gate, refusals: Refusals, admit: Admit) -> App:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        recording = Recording(accounts.audit, refusals, scope=scope)
        scope["state"] = {**(scope.get("state") or {}), permissions.RECORDING: recording}
        told = _recorded(scope, recording, send)
        try:
            principal, standing = await admit(scope, accounts, gate, recording)
        except errors.FairleadError as error:
            await refuse(scope, told, error)
            return
        if len(principal.memberships) == 1 and not principal.is_administrator:
            (home,) = principal.memberships
            recording.home = Place(tenancy=home.tenancy, uid=home.uid)
        scope["state"][permissions.PRINCIPAL] = principal
        told = _accepted(scope, _headed(standing.headers, told))
        with contextlib.ExitStack() as counted:
            try:
                if principal is not roles.ANONYMOUS:
                    counted.enter_context(gate.under_way(principal.account))
            except errors.FairleadError as error:
                await refuse(scope, told, error)
                return
            await inner(scope, receive, _denying(scope, told) if scope["type"] == "websocket" else told)

    return app


def _recorded(scope: Any, recording: Recording, send: Send) -> Send:
    """Write how a request ends before its answer begins, and name it in the answer."""

    async def sent(message: Message) -> None:
        if (status := _status(message)) is not None:
            await recording.end(status, scope["state"].get(failure.REASON, ""))
        if "headers" in message:
            message["headers"] = [*message["headers"], (b"x-request-id", recording.entry.request.encode())]
        await send(message)

    return sent


def _status(message: Message) -> int | None:
    """Return the status that a message of ASGI begins an answer with; None: it begins none."""
    match message["type"]:
        case "http.response.start" | "websocket.http.response.start":
            return int(message["status"])
        case "websocket.accept":
            return 101
        case "websocket.close":
            return 403  # a close before accept is answered with 403; an accepted socket was recorded with 101
        case _:
            return None


async def _admitted(
    scope: Any, accounts: Accounts, gate: limits.Gate, recording: Recording
) -> tuple[roles.Principal, limits.Standing]:
    """Return who sends a request, and how near a limit it is.

    Raises: Unauthenticated; Denied; Throttled; what the database raises.
    """
    address = str((scope.get("client") or ("",))[0])
    try:
        token, is_key = _credential(scope)
    except (errors.Unauthenticated, errors.Denied):
        gate.check_address(address)
        gate.refused(address)
        raise
    if is_key and token is not None:
        recording.tell(key=token.id)
    id_, digest = (token.id, token.digest) if token else ("", "")
    gate.check_address(address, id_, digest)
    shown, confirming = _shown(scope), _taken(scope, sessions.CONFIRM_HEADER.encode())
    try:
        principal = await _identify(accounts, token, is_key=is_key, is_open=permissions.is_open(scope))
        principal = await _bound(accounts, principal, scope, shown, confirming)
    except errors.Unauthenticated:
        gate.refused(address, id_, digest)
        raise
    recording.tell(account=principal.account, key=principal.key)
    if principal is roles.ANONYMOUS:
        return principal, gate.refused(address)
    scope["state"][permissions.OWE] = functools.partial(gate.owe, principal.account, id_)
    if token is not None:
        holders = accounts.keys if is_key else accounts.sessions
        scope["state"][permissions.RENEW] = functools.partial(holders.authenticate, token)
    return principal, gate.admit(principal.account, id_, digest)


async def _vouched(
    scope: Any, accounts: Accounts, gate: limits.Gate, recording: Recording
) -> tuple[roles.Principal, limits.Standing]:
    """Return whose SSH key a request came by, asked again: it may have been removed. Raises: as `_admitted`."""
    fingerprint = str(scope["state"][sshkeys.FINGERPRINT])
    recording.tell(method="SSH")
    principal = await accounts.ssh_keys.authenticate(fingerprint)
    recording.tell(account=principal.account, key=principal.key)
    scope["state"][permissions.OWE] = functools.partial(gate.owe, principal.account, principal.key)
    return principal, gate.admit(principal.account, principal.key, fingerprint)


def _credential(scope: Any) -> tuple[keys.Key | None, bool]:
    """Take key or session out of a request; return it, and whether it is a key. Raises: Unauthenticated; Denied."""
    bearer, cookies = _taken(scope, b"authorization"), _taken(scope, b"cookie")
    if others := sessions.without(cookies):
        scope["headers"].append((b"cookie", others.encode("latin-1")))
    if bearer:
        return keys.of_header(bearer), True
    is_open = permissions.is_open(scope)
    token = sessions.parse(sessions.of_cookies(cookies))
    if token is None and not is_open:
        raise keys.required()
    is_socket, host = scope["type"] == "websocket", (_values(scope, b"host") or ("",))[0]
    origin = _values(scope, b"origin")
    sessions.check_origin(origin[0] if origin else None, host, is_required=is_socket)
    return token, False


def _shown(scope: Any) -> str | None:
    """Take the token of a session's pages out of a request; None: it shows none."""
    if scope["type"] != "websocket":
        return next(iter(_taken(scope, sessions.CSRF_HEADER.encode())), None)
    offered = list(scope.get("subprotocols") or ())
    scope["subprotocols"] = [one for one in offered if one == sessions.SUBPROTOCOL]
    _taken(scope, b"sec-websocket-protocol")
    return sessions.shown_by(offered)


async def _bound(
    accounts: Accounts, principal: roles.Principal, scope: Any, shown: str | None, confirming: tuple[str, ...]
) -> roles.Principal:
    """Hold a session to its browser; return it with the key beside it. Raises: Unauthenticated; Denied."""
    if (one := principal.session) is None:
        return principal
    if permissions.is_open(scope):
        return principal if one.address == addresses.of_scope(scope) else roles.ANONYMOUS
    sessions.check_address(one, addresses.of_scope(scope))
    if sessions.changes(scope["type"], scope.get("method", "")):
        sessions.check_page(one, shown)
    if not confirming:
        return principal
    key = keys.parse(confirming[0].strip())
    if key is None:
        message = f"{sessions.CONFIRM_HEADER} is not an API key"
        raise errors.Unauthenticated(message, reason="KeyMalformed", hint="one begins with flk_")
    return sessions.confirmed(principal, await accounts.keys.authenticate(key))


def _accepted(scope: Any, send: Send) -> Send:
    """Choose the subprotocol that a browser offered beside its token: without a choice it would hang up."""
    if scope["type"] != "websocket" or sessions.SUBPROTOCOL not in (scope.get("subprotocols") or ()):
        return send

    async def sent(message: Message) -> None:
        if message["type"] == "websocket.accept":
            message["subprotocol"] = sessions.SUBPROTOCOL
        await send(message)

    return sent


async def _identify(accounts: Accounts, token: keys.Key | None, *, is_key: bool, is_open: bool) -> roles.Principal:
    """Return whose a key or a session is. Raises: Unauthenticated."""
    if token is None:
        return roles.ANONYMOUS
    if is_key:
        return await accounts.keys.authenticate(token)
    try:
        return await accounts.sessions.authenticate(token)
    except errors.Unauthenticated:
        if is_open:
            return roles.ANONYMOUS
        raise


def _headed(headers: limits.Headers, send: Send) -> Send:
    """Add headers to an answer's."""

    async def sent(message: Message) -> None:
        if "headers" in message:
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return sent


def _values(scope: Any, wanted: bytes) -> tuple[str, ...]:
    return tuple(value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted)


def _taken(scope: Any, wanted: bytes) -> tuple[str, ...]:
    """Take the headers of a name out of a request and return their values."""
    found = _values(scope, wanted)
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name.lower() != wanted]
    return found


def _denying(scope: Any, send: Send) -> Send:
    """Answer with the guard's refusal where the application closes a WebSocket that it has not accepted."""
    is_open = False

    async def sent(message: Message) -> None:
        nonlocal is_open
        refusal = scope["state"].get(permissions.REFUSAL)
        if message["type"] == "websocket.close" and not is_open and refusal is not None:
            await refuse(scope, send, refusal)
            return
        is_open = is_open or message["type"] == "websocket.accept"
        await send(message)

    return sent


async def refuse(scope: Any, send: Send, error: errors.FairleadError) -> None:
    """Answer a request, or a WebSocket's upgrade, with a problem."""
    answer = problem.problem_of(error)
    scope["state"][failure.REASON] = answer.reason
    headers = (
        *((_CHALLENGE,) if isinstance(error, errors.Unauthenticated) else ()),
        *(error.headers if isinstance(error, limits.Refused) else ()),
    )
    await failure.refuse(scope, send, answer, headers)

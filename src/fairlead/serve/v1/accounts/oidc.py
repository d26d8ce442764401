"""Serves people's logins by an identity provider: in a browser, and for a command line on another machine."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.accounts import roles, sessions
from fairlead.serve.accounts.oidc.port import Logins, Person
from fairlead.serve.accounts.port import Accounts, KeySpec
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.accounts import session
from fairlead.serve.v1.accounts.oidcview import DeviceHandle, DeviceResult, DeviceView
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.wire.fairlead.tenancy import Tenancy

_COOKIE: Final = "__Host-fairlead-login"
_CALLBACK: Final = "/v1/oidc/callback"
_LOGIN_S: Final = 600
_Optional = Annotated[str | None, params.QueryParameter(description="as the provider answers, or not")]
_Answer = Annotated[str, params.QueryParameter(description="as the provider answers")]


@litestar.get(
    "/v1/oidc/login",
    summary="Log in by the identity provider",
    responses=documented(400, 404, 502, 503),
    status_code=status_codes.HTTP_302_FOUND,
    tags=["account"],
)
async def begin_login(
    services: Dependencies,
    back: Annotated[str, params.QueryParameter(description="path of this service to end at")] = "/",
) -> litestar.Response[None]:
    """Send a browser to the identity provider."""
    logins = _logins(services)
    started = await logins.provider.start(_redirect(services, logins), back)
    kept = f"{_COOKIE}={started.sealed}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={_LOGIN_S}"
    headers = {"location": started.url, "set-cookie": kept, "cache-control": "no-store"}
    return litestar.Response(None, status_code=status_codes.HTTP_302_FOUND, headers=headers)


@litestar.get(
    _CALLBACK,
    summary="End a login by the identity provider",
    responses=documented(400, 401, 403, 404, 502, 503),
    status_code=status_codes.HTTP_303_SEE_OTHER,
    tags=["account"],
)
async def finish_login(
    request: litestar.Request[Any, Any, Any],
    services: Dependencies,
    code: _Answer = "",
    shown: Annotated[str, params.QueryParameter(name="state", description="as the provider answers")] = "",
    iss: _Optional = None,
    error: _Optional = None,
    error_description: _Answer = "",
) -> litestar.Response[None]:
    """Begin the session of who comes back from the identity provider, and send the browser on."""
    logins = _logins(services)
    said = {"code": code, "state": shown, "error_description": error_description}
    said |= {name: value for name, value in (("iss", iss), ("error", error)) if value is not None}
    sealed = sessions.of_cookies(request.headers.getall("cookie", []), _COOKIE)
    person = await logins.provider.finish(_redirect(services, logins), sealed, said)
    opened = await session.begin(services, await _settled(services, logins, person), request.scope)
    answer = litestar.Response(None, status_code=status_codes.HTTP_303_SEE_OTHER)
    answer.headers.update(
        {"location": sessions.with_token(person.back, opened.view.csrf_token), "cache-control": "no-store"}
    )
    answer.set_cookie(key=_COOKIE, value="", max_age=0, path="/", secure=True, httponly=True, samesite="lax")
    answer.set_cookie(key=sessions.COOKIE, value=opened.text, path="/", secure=True, httponly=True, samesite="lax")
    return answer


@litestar.post(
    "/v1/oidc/device",
    summary="Log in on a machine without a browser",
    responses=documented(404, 502, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["account"],
)
async def begin_device(services: Dependencies) -> DeviceView:
    """Begin a login that is confirmed in a browser elsewhere."""
    found = await _logins(services).provider.start_device()
    return DeviceView(
        handle=found.sealed,
        user_code=found.user_code,
        verification_uri=found.url,
        verification_uri_complete=found.whole_url,
        lifetime_s=found.expires_s,
        interval_s=found.interval_s,
    )


@litestar.post(
    "/v1/oidc/device/:finish",
    summary="End a login on a machine without a browser",
    responses=documented(400, 401, 403, 404, 502, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["account"],
)
async def finish_device(services: Dependencies, data: params.JSONBody[DeviceHandle]) -> DeviceResult:
    """Return a key as soon as the login is confirmed; it lives for `oidc.key_hours`."""
    logins = _logins(services)
    person = await logins.provider.poll_device(data.handle)
    if person is None:
        return DeviceResult(is_pending=True)
    who = await _settled(services, logins, person)
    await session.note(services, who)
    spec = KeySpec(account=who.account, scopes=tuple(Scope), lifetime_s=logins.key_s, note="login by OIDC")
    made = await require(services.accounts).keys.create(spec)
    return DeviceResult(is_pending=False, account=who.account, key=made.key)


ROUTES: Final = (begin_login, finish_login, begin_device, finish_device)


def _logins(services: Services) -> Logins:
    found = services.accounts
    if isinstance(found, Accounts) and found.logins is not None:
        return found.logins
    message = "no identity provider is set here"
    hint = "log in with an API key, or set oidc.issuer and oidc.client_id on the machine"
    raise errors.NotFound(message, reason="OIDCOff", hint=hint)


def _redirect(services: Services, logins: Logins) -> str:
    return logins.redirect or f"{services.info.door()[0]}{_CALLBACK}"


async def _settled(services: Services, logins: Logins, person: Person) -> roles.Principal:
    """Return whose login it is, with the roles that the table says given. Raises: Denied."""
    every = (await services.census.list(Tenancy)).items
    uids = {item.metadata.name: item.metadata.uid for item in every}
    mapped = logins.provider.decide(person)
    account = await logins.identities.settle(person, mapped, uids, may_create=logins.may_create)
    return dataclasses.replace(roles.ANONYMOUS, account=account)

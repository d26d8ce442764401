"""Declares who looks at a page, what they may do, and how a page is drawn for them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import litestar
from litestar import di, params

from fairlead import errors
from fairlead.serve.accounts import roles
from fairlead.serve.accounts.roles import Action, Membership, Principal
from fairlead.serve.admission.sessiontemplate import Template, TemplateList
from fairlead.serve.console import guard, render
from fairlead.serve.console.client import API
from fairlead.serve.v1.accounts.view import Self
from fairlead.serve.v1.status.view import Status
from fairlead.serve.v1.tenancies.view import TenancyList, TenancyView

T = TypeVar("T")

HTML: Final = "text/html"
COOKIE: Final = "__Host-fairlead"
_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of a browser."""

    api: API
    principal: Principal
    """As the API describes the caller: decides what is offered on a page. What is allowed, the API judges."""
    has_login: bool
    """Whether the caller has logged in, and may log out; False on the unix socket."""
    path: str
    query: Mapping[str, str]

    def may(self, action: Action) -> bool:
        """Return whether the caller may do something anywhere."""
        return any(self.principal.may(action, one) for one in (None, *(m.role for m in self.principal.memberships)))

    @property
    def is_root(self) -> bool:
        """Whether the caller has the whole machine."""
        return self.principal.is_administrator

    @property
    def needs_key(self) -> bool:
        """Whether a key is asked for where one is made: the session was begun by one."""
        return self.has_login and bool(self.principal.key)

    @property
    def needs_provider(self) -> bool:
        """Whether a login by the identity provider must be fresh where a key is made."""
        return self.has_login and not self.principal.key

    @property
    def here(self) -> str:
        """The address of this page, with its query."""
        asked = urllib.parse.urlencode({name: value for name, value in self.query.items() if name != "done"})
        return f"{self.path}?{asked}" if asked else self.path

    @property
    def host(self) -> str:
        """The name by which the browser reaches this service, without a port; brackets around an IPv6 address."""
        text = guard.header(self.api.scope["headers"], "host") or "localhost"
        return text if text.endswith("]") else text.rpartition(":")[0] or text

    async def spaces(self) -> list[tuple[str, str]]:
        """Return namespaces in which the caller may make things, and what people call them."""
        own = {m.uid for m in self.principal.memberships}
        named = [(item.namespace, item.name) for item in await self._seen() if self.is_root or item.uid in own]
        return [("default", "none"), *named] if self.is_root else named

    async def space_names(self) -> dict[str, str]:
        """Return what people call namespaces: the name of the tenancy that each belongs to."""
        return {item.namespace: item.name for item in await self._seen()}

    async def templates(self) -> tuple[Template, ...]:
        """Return the templates of sessions; none where the API refuses them."""
        found = await tried(self.api.get(TemplateList, "/v1/templates"))
        return () if isinstance(found, errors.FairleadError) else found.items

    async def resource(self) -> str:
        """Return the resource of whole GPUs."""
        return (await self.api.get(Status, "/v1/status")).resource

    async def tenancies(self, action: Action) -> list[str]:
        """Return names of the tenancies in which the caller may do something."""
        one = self.principal
        if not one.is_administrator:
            return sorted(m.tenancy for m in one.memberships if m.tenancy and one.may(action, m.role))
        return [item.name for item in await self._seen()]

    async def _seen(self) -> tuple[TenancyView, ...]:
        """Return the tenancies that the caller sees; none where they may not be read."""
        found = await tried(self.api.get(TenancyList, "/v1/tenancies"))
        return () if isinstance(found, errors.FairleadError) else found.items

    def page(
        self, template: str, *, error: errors.FairleadError | None = None, code: int | None = None, **facts: Any
    ) -> litestar.Response[bytes]:
        """Draw a page.

        Args: error: what its form was refused for; it is said there.   code: None: 200, or the error's.
        """
        text = render.page(template, visit=self, Action=Action, error=error, **facts)
        code = code or (errors.row_of(error).http if error else 200)
        return litestar.Response(text.encode("utf-8", "replace"), status_code=code, media_type=HTML)


async def of_request(api: API, *, has_login: bool) -> Visit:
    """Return a request's visit. Raises: Unauthenticated: the browser has no session, or it is over."""
    scope = api.scope
    if has_login:
        cookies = guard.header(scope["headers"], "cookie") or ""
        if f"{COOKIE}=" not in cookies:
            # Not asked for: each refusal is a row of the audit log, and this is not an attempt.
            raise errors.Unauthenticated("the browser has no session", reason="LoginRequired", hint="log in")
    found = await api.get(Self, "/v1/self")
    principal = Principal(
        account=found.account,
        is_administrator=found.is_administrator,
        memberships=tuple(Membership(tenancy=m.tenancy, uid=m.uid, role=m.role) for m in found.memberships),
        key=found.key,
        scopes=frozenset(found.scopes),
    )
    pairs = urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"))
    query = {name: "".join(one for one in value if one.isprintable() or one == "\n") for name, value in pairs}
    return Visit(
        api=api,
        principal=_named(principal),
        has_login=has_login,
        path=scope["path"].rstrip("/") or "/",
        query=query,
    )


def _named(one: Principal) -> Principal:
    """Return a caller whom the table of roles can judge: users of the socket have no account, and are let in there."""
    return (
        one
        if one.account
        else roles.Principal(
            account="root" if one.is_administrator else "user",
            is_administrator=one.is_administrator,
            memberships=one.memberships or (Membership(tenancy="", uid="", role=roles.Role.DEVELOPER),),
            key="",
            scopes=one.scopes,
        )
    )


async def tried(asked: Awaitable[T]) -> T | errors.FairleadError:
    """Return what the API answers, or its refusal, for a page to say. Raises: Unauthenticated: log in first."""
    try:
        return await asked
    except errors.Unauthenticated:
        raise
    except errors.FairleadError as error:
        return error


def form(body: bytes) -> dict[str, str]:
    """Return the fields of a form; of several with one name, the last. Raises: Invalid: it is not UTF-8, or huge."""
    try:
        pairs = urllib.parse.parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=200)
    except ValueError as error:
        message = "the form cannot be read"
        raise errors.Invalid(message, reason="FormUnreadable", hint="send it from the page") from error
    return dict(pairs)


def within(text: str, default: str = "/console/") -> str:
    """Return an address to go to next, if it is one of the console's."""
    plain = text.isprintable() and "\\" not in text and "//" not in text and len(text) < _LONGEST
    return text if plain and text.startswith("/console/") else default


Visitor = di.NamedDependency[params.SkipValidation[Visit]]
"""How a page asks who looks (parameter `visit`)."""

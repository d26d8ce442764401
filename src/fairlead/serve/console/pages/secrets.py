"""Shows Secrets: their keys, and what changed, never a value; forms that make, replace and delete one.

A value goes from the form to the API and nowhere else. A form that was refused comes back without its values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import gpumap
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.secrets.view import SecretList

_HERE: Final = "/console/secrets"
_VALUE: Final = "value-"
"""Beginning of a field's name, before the key."""


@litestar.get(_HERE, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List secrets."""
    return await _page(visit)


@litestar.post(_HERE, include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Make a secret of one value, or of lines KEY=VALUE."""
    fields = visits.form(body)
    return await _sent(visit, fields, _make(visit, fields))


@litestar.post(f"{_HERE}/replace", include_in_schema=False)
async def replace(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Put other values in place of all that a secret has."""
    fields = visits.form(body)
    values = {name.removeprefix(_VALUE): _text(text) for name, text in fields.items() if name.startswith(_VALUE)}
    return await _sent(visit, fields, _ask(visit, "PUT", fields, {"values": values}))


@litestar.post(f"{_HERE}/delete", include_in_schema=False)
async def delete(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Delete a secret; what runs keeps what it was given."""
    await _ask(visit, "DELETE", visits.form(body))
    return response.Redirect(_HERE, status_code=303)


ROUTES: Final = (listing, make, replace, delete)


async def _make(visit: Visit, fields: Mapping[str, str]) -> None:
    values = dict(map(_pair, filter(None, _text(fields.get("pairs", "")).split("\n"))))
    if value := fields.get("value", ""):
        values[fields.get("key", "").strip() or "value"] = _text(value)
    wanted = {"name": fields.get("name", "").strip(), "namespace": fields.get("namespace", ""), "values": values}
    await visit.api.ask("POST", "/v1/secrets", body=wanted, csrf=fields.get("csrf", ""))


async def _ask(visit: Visit, method: str, fields: Mapping[str, str], body: object = None) -> None:
    path, asked = f"/v1/secrets/{client.part(fields.get('name', ''))}", {"namespace": fields.get("namespace", "")}
    await visit.api.ask(method, path, asked, body=body, csrf=fields.get("csrf", ""))


def _text(value: str) -> str:
    """Return what was typed: a form sends each line break as two characters."""
    return value.replace("\r\n", "\n")


def _pair(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals:  # nothing of it is repeated: it may be a value
        message, hint = "a line of several values is not of the form KEY=VALUE", "one a line, for example user=ann"
        raise errors.Invalid(message, reason="PairInvalid", hint=hint)
    return key.strip(), value


async def _sent(
    visit: Visit, fields: Mapping[str, str], asked: Awaitable[None]
) -> litestar.Response[bytes] | response.Redirect:
    answer = await visits.tried(asked)
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields=fields, error=answer)
    return response.Redirect(_HERE, status_code=303)


async def _page(
    visit: Visit, *, fields: Mapping[str, str] | None = None, error: errors.FairleadError | None = None
) -> litestar.Response[bytes]:
    kept = {name: text for name, text in (fields or {}).items() if name in {"name", "namespace", "key"}}
    return visit.page(
        "secrets",
        items=(await visit.api.get(SecretList, "/v1/secrets")).items,
        error=error,
        fields=kept,
        spaces=await visit.spaces(),
        names=await visit.space_names(),
        may_write=visit.may(Action.SECRET_WRITE),
        address=gpumap.container_address,
    )

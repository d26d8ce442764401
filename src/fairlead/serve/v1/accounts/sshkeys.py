"""Serves the routes of SSH keys: an account adds and removes its own, an administrator those of every account."""

from __future__ import annotations

import time
from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.accounts import sshkeys
from fairlead.serve.accounts.roles import Scope
from fairlead.serve.accounts.sshkeys import SSHKeyView
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.accounts.keys import account_of, end_of, own_of
from fairlead.serve.v1.accounts.sshkeyview import SSHDoorView, SSHKeyList, SSHKeyRequest
from fairlead.serve.v1.dependencies import Dependencies, Services

Id = Annotated[str, params.PathParameter(description="id of the key, as the list has it")]


@litestar.post(
    "/v1/sshkeys", summary="Add an SSH key", responses=documented(400, 403, 404, 409, 422, 503), tags=["account"]
)
async def add_ssh_key(services: Dependencies, data: params.JSONBody[SSHKeyRequest]) -> SSHKeyView:
    """Add a public key by which an account enters containers over SSH. It ends no later than the key that adds it."""
    kept = require(services.accounts).ssh_keys
    account = account_of(services, data.account)
    if services.principal is not None and Scope.RUN not in services.principal.scopes:
        message = "an SSH key enters containers, and the key that asks has not the scope run"
        raise errors.Denied(message, reason="ScopeMissing", hint="use another key of yours")
    key, now, end = sshkeys.parse(data.public_key), time.time(), end_of(services)
    ends = [one for one in (end, None if data.lifetime_s is None else now + data.lifetime_s) if one is not None]
    note = data.note or "".join(one for one in key.comment if one.isprintable())[:200]
    return await kept.add(account, key, note=note, expires_at=min(ends, default=None))


@litestar.get(
    "/v1/sshkeys", dependencies=pages.PAGE, summary="List SSH keys", responses=documented(403, 503), tags=["account"]
)
async def list_ssh_keys(
    services: Dependencies,
    page: pages.Paged,
    account: Annotated[str, params.QueryParameter(description="whose; empty: all that may be seen")] = "",
) -> SSHKeyList:
    """Return public keys in the order of their making."""
    found = await require(services.accounts).ssh_keys.list(own_of(services) or account or None)
    items, following = page.cut(found, lambda one: (one.created_at, one.id))
    return SSHKeyList(items=items, next=following)


@litestar.get(
    "/v1/sshkeys/{name:str}", summary="Show an SSH key", responses=documented(403, 404, 503), tags=["account"]
)
async def show_ssh_key(services: Dependencies, name: Id) -> SSHKeyView:
    """Return a public key."""
    for one in await require(services.accounts).ssh_keys.list(own_of(services)):
        if one.id == name:
            return one
    message = f'there is no SSH key "{errors.readable(name)}"'
    raise errors.NotFound(message, reason="SSHKeyUnknown", hint="`fairlead ssh-key list` lists them")


@litestar.delete(
    "/v1/sshkeys/{name:str}",
    summary="Remove an SSH key",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["account"],
)
async def remove_ssh_key(services: Dependencies, name: Id) -> SSHKeyView:
    """Remove a key: nothing more is opened with it, also over a connection that is there."""
    return await require(services.accounts).ssh_keys.remove(name, own_of(services))


@litestar.get("/v1/ssh", summary="Show the SSH door", responses=documented(403), tags=["status"])
async def show_ssh_door(services: Dependencies) -> SSHDoorView:
    """Return where the SSH door listens and its public key; no host: it is off."""
    return door_view(services)


def door_view(services: Services) -> SSHDoorView:
    """Return what is said of the door."""
    found = services.info.ssh_door()
    if found is None:
        return SSHDoorView(host="", port=0, host_key="", fingerprint="")
    host, port, line = found
    return SSHDoorView(host=host, port=port, host_key=line, fingerprint=sshkeys.parse(line).fingerprint)


ROUTES: Final = (add_ssh_key, list_ssh_keys, show_ssh_key, remove_ssh_key, show_ssh_door)

"""Serves the audit log: the machine's administrators read all of it, a tenancy's owners and admins their part."""

from __future__ import annotations

import re
from typing import Annotated, Final

import litestar
from litestar import params

from fairlead import errors
from fairlead.serve.accounts.audit import AuditList, Query
from fairlead.serve.api import moment
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import require
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.wire.fairlead.tenancy import Tenancy

_CURSOR: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


@litestar.get("/v1/audit", summary="Read the audit log", responses=documented(400, 403, 503), tags=["account"])
async def list_audit(
    services: Dependencies,
    since: Annotated[str, params.QueryParameter(description="begin, RFC 3339; empty: the first entry")] = "",
    until: Annotated[str, params.QueryParameter(description="end, RFC 3339, exclusive; empty: now")] = "",
    account: Annotated[str, params.QueryParameter(description="whose requests; empty: everybody's")] = "",
    limit: Annotated[int, params.QueryParameter(ge=1, le=1000, description="entries of a page")] = 100,
    cursor: Annotated[str, params.QueryParameter(description="`next` of the page before")] = "",
) -> AuditList:
    """Return what was changed and what was refused by TLS, newest first; reads that were allowed are not kept."""
    log, principal = require(services.accounts).audit, services.principal
    if cursor and not _CURSOR.fullmatch(cursor):
        message = "the cursor is not one of a page of this list"
        raise errors.RequestError(message, reason="CursorInvalid", hint="send `next` of the page before as it was")
    uids = None
    if principal is not None and not principal.is_administrator:
        uids = tuple(item.metadata.uid for item in (await services.store.list(Tenancy)).items)
    query = Query(
        since=moment.read("since", since) if since else None,
        until=moment.read("until", until) if until else None,
        account=account,
        uids=uids,
        before=int(cursor) if cursor else None,
        limit=limit,
    )
    items, following = await log.list(query)
    return AuditList(items=items, next="" if following is None else str(following))


ROUTES: Final = (list_audit,)

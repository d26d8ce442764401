"""Shows the audit log: who changed what by TLS, and who was refused, newest first."""

from __future__ import annotations

import urllib.parse
from typing import Final

import litestar

from fairlead import errors
from fairlead.serve.accounts.audit import AuditList
from fairlead.serve.console.draw import tone
from fairlead.serve.console.visit import Visitor

_PAGE: Final = 50


@litestar.get("/console/audit", include_in_schema=False)
async def audit(visit: Visitor) -> litestar.Response[bytes]:
    """Show a page of the log."""
    account, cursor = visit.query.get("account", "")[:253], visit.query.get("cursor", "")
    try:
        found = await visit.api.get(AuditList, "/v1/audit", account=account, cursor=cursor, limit=_PAGE)
    except errors.Unavailable as error:
        return visit.page("audit", problem=error, items=(), older="", account=account, tone=tone, is_first=True)
    older = urllib.parse.urlencode({"account": account, "cursor": found.next}) if found.next else ""
    return visit.page(
        "audit", problem=None, items=found.items, older=older, account=account, tone=tone, is_first=not cursor
    )


ROUTES: Final = (audit,)

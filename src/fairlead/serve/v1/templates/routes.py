"""Serves the templates of sessions."""

from __future__ import annotations

from typing import Final

import litestar

from fairlead.serve.admission.sessiontemplate import TemplateList
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies


@litestar.get(
    "/v1/templates",
    dependencies=pages.PAGE,
    summary="List templates of sessions",
    responses=documented(403),
    tags=["container"],
)
async def list_templates(services: Dependencies, page: pages.Paged) -> TemplateList:
    """Return the templates that `fairlead notebook` and `fairlead shell` make containers from, by name."""
    items, following = page.cut(services.info.templates, lambda one: (one.name,))
    return TemplateList(items=items, next=following)


ROUTES: Final = (list_templates,)

"""Composes the API's first version: every route there is, over the given services."""

from __future__ import annotations

from typing import Any, Final

import litestar
from litestar import types

from fairlead.serve.api import app
from fairlead.serve.v1 import dependencies, permissions
from fairlead.serve.v1.accounts import audit, members, oidc, session, sshkeys, users
from fairlead.serve.v1.accounts import keys as account_keys
from fairlead.serve.v1.budgets import routes as budgets
from fairlead.serve.v1.claims import routes as claims
from fairlead.serve.v1.containers import create, restart, routes
from fairlead.serve.v1.containers.access import devices, opening, ports
from fairlead.serve.v1.containers.access import exec as container_exec
from fairlead.serve.v1.containers.access import routes as access
from fairlead.serve.v1.containers.debug import routes as debug
from fairlead.serve.v1.dependencies import Services
from fairlead.serve.v1.events import routes as events
from fairlead.serve.v1.gpus import routes as gpus
from fairlead.serve.v1.images import routes as images
from fairlead.serve.v1.leases import routes as leases
from fairlead.serve.v1.metrics import routes as metrics
from fairlead.serve.v1.nodes import routes as nodes
from fairlead.serve.v1.objects import routes as object_routes
from fairlead.serve.v1.queues import routes as queues
from fairlead.serve.v1.quotas import routes as quotas
from fairlead.serve.v1.reservations import routes as reservations
from fairlead.serve.v1.secrets import routes as secrets
from fairlead.serve.v1.status import routes as status
from fairlead.serve.v1.templates import routes as templates
from fairlead.serve.v1.tenancies import routes as tenancies
from fairlead.serve.v1.usage import routes as usage
from fairlead.serve.v1.volumes import routes as volume_routes
from fairlead.serve.v1.webhooks import notices
from fairlead.serve.v1.webhooks import routes as webhooks

ROUTES: Final = (
    *create.ROUTES,
    *routes.ROUTES,
    *devices.ROUTES,
    *access.ROUTES,
    *restart.ROUTES,
    *container_exec.ROUTES,
    *ports.ROUTES,
    *opening.ROUTES,
    *debug.ROUTES,
    *gpus.ROUTES,
    *metrics.ROUTES,
    *nodes.ROUTES,
    *events.ROUTES,
    *images.ROUTES,
    *quotas.ROUTES,
    *volume_routes.ROUTES,
    *claims.ROUTES,
    *secrets.ROUTES,
    *object_routes.ROUTES,
    *queues.ROUTES,
    *reservations.ROUTES,
    *tenancies.ROUTES,
    *users.ROUTES,
    *members.ROUTES,
    *account_keys.ROUTES,
    *sshkeys.ROUTES,
    *templates.ROUTES,
    *audit.ROUTES,
    *session.ROUTES,
    *oidc.ROUTES,
    *usage.ROUTES,
    *budgets.ROUTES,
    *leases.ROUTES,
    *webhooks.ROUTES,
    *notices.ROUTES,
    *status.ROUTES,
)


def create_app(services: Services) -> litestar.Litestar:
    """Return the application over the given services."""

    async def given(scope: types.Scope) -> Any:
        return await dependencies.for_request(services, scope)

    return app.create_app(ROUTES, given, guard=permissions.judge)

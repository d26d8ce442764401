"""Serves the routes of quotas: Kubernetes' `ResourceQuota`, by namespace.

What is used is counted from the pods when asked; nothing is kept that could go stale.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Final

import litestar
import msgspec
from litestar import params, status_codes

from fairlead.plan.pod import admission, quota, tenantrule
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.tenancy import namespaces
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.quotas.view import QuotaList, QuotaView
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core, manifest, quantity

_MANAGER: Final = "fairlead-api"
Name = Annotated[str, params.PathParameter(description="name of the quota")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the quota")]


@litestar.put("/v1/quotas", summary="Set quotas", responses=documented(400, 422), tags=["quota"])
async def apply_quotas(services: Dependencies, body: params.RawBody) -> QuotaList:
    """Make or change the ResourceQuotas of a manifest; pods that run already are left alone.

    A namespace that is not there is made, and is a tenant's: who is held to a quota is held to the rules for tenants.
    """
    made = []
    for found in manifest.parse(body, kinds=(core.ResourceQuota,)):
        assert isinstance(found.item, core.ResourceQuota)  # noqa: S101 the only kind asked for
        admission.refuse_own_names(found.item)
        item = _with_namespace(found.item)
        quota.check_limits(item)
        namespace = item.metadata.namespace
        await namespaces.ensure(services.store, namespace, labels={tenantrule.TENANCY: namespace})
        made.append(await services.store.apply(item, manager=_MANAGER))
    return QuotaList(items=tuple([await view(services.store, item) for item in made]))


@litestar.get("/v1/quotas", dependencies=pages.PAGE, summary="List quotas", responses=documented(404), tags=["quota"])
async def list_quotas(
    services: Dependencies,
    page: pages.Paged,
    namespace: Annotated[str | None, params.QueryParameter(description="empty: all namespaces")] = None,
) -> QuotaList:
    """Return quotas in the order of namespace and name."""
    found = await services.store.list(core.ResourceQuota, Selector(namespace=namespace))
    items, following = page.cut(found.items, lambda one: (one.metadata.namespace, one.metadata.name))
    return QuotaList(items=tuple([await view(services.store, item) for item in items]), next=following)


@litestar.get("/v1/quotas/{name:str}", summary="Show a quota", responses=documented(404), tags=["quota"])
async def show_quota(services: Dependencies, name: Name, namespace: Namespace = "default") -> QuotaView:
    """Return one quota, with what is used of it."""
    return await view(services.store, await services.store.get(core.ResourceQuota, name, namespace))


@litestar.delete(
    "/v1/quotas/{name:str}",
    summary="Remove a quota",
    responses=documented(404),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["quota"],
)
async def delete_quota(services: Dependencies, name: Name, namespace: Namespace = "default") -> None:
    """Remove one quota."""
    await services.store.delete(core.ResourceQuota, name, namespace)


ROUTES: Final = (apply_quotas, list_quotas, show_quota, delete_quota)


def _with_namespace(item: core.ResourceQuota) -> core.ResourceQuota:
    about = msgspec.structs.replace(item.metadata, namespace=item.metadata.namespace or "default")
    return msgspec.structs.replace(item, metadata=about, status=core.ResourceQuotaStatus())


async def view(store: Store, item: core.ResourceQuota) -> QuotaView:
    """Return a quota with what is used of it, counted now."""
    beside = await store.list(core.Pod, Selector(namespace=item.metadata.namespace))
    claims = await store.list(core.PersistentVolumeClaim, Selector(namespace=item.metadata.namespace))
    count = Fraction(len(claims.items))
    used = {**quota.used(item, beside.items), **dict.fromkeys(quota.limits_of_claims(item), count)}
    hard = {name: quantity.parse(text) for name, text in item.spec.hard.items()}
    return QuotaView(
        name=item.metadata.name,
        namespace=item.metadata.namespace,
        hard={name: str(limit) for name, limit in hard.items()},
        scopes=_scopes(item.spec),
        used={name: quantity.emit_quantity(value, hard[name].form) for name, value in used.items()},
    )


def _scopes(spec: core.ResourceQuotaSpec) -> tuple[str, ...]:
    selector = spec.scope_selector
    chosen = () if selector is None else tuple(one.scope_name for one in selector.match_expressions)
    return tuple(dict.fromkeys((*spec.scopes, *chosen)))

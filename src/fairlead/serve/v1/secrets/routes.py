"""Serves the routes of Secrets: made, replaced, listed and deleted by namespace; no route gives a value back."""

from __future__ import annotations

from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead.plan.pod.values import secret as podsecret
from fairlead.plan.tenancy import secret
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.secrets import view
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core

Name = Annotated[str, params.PathParameter(description="name of the secret")]
Namespace = Annotated[str, params.QueryParameter(description="namespace of the secret")]
Where = Annotated[str | None, params.QueryParameter(description="empty: all namespaces")]


@litestar.get(
    "/v1/secrets", dependencies=pages.PAGE, summary="List secrets", responses=documented(404), tags=["secret"]
)
async def list_secrets(services: Dependencies, page: pages.Paged, namespace: Where = None) -> view.SecretList:
    """Return secrets in the order of namespace and name: their keys, and never a value."""
    found = await services.backend.secrets.list_secrets(namespace)
    items, following = page.cut(found, lambda one: (one.namespace, one.name))
    return view.SecretList(items=tuple([await _view(services, item) for item in items]), next=following)


@litestar.get("/v1/secrets/{name:str}", summary="Show a secret", responses=documented(404, 422), tags=["secret"])
async def show_secret(services: Dependencies, name: Name, namespace: Namespace = "default") -> view.SecretView:
    """Return the keys of one secret, a digest of each value, and the containers that name it."""
    return await _view(services, await services.backend.secrets.find(name, namespace))


@litestar.post("/v1/secrets", summary="Make a secret", responses=documented(400, 403, 404, 409, 422), tags=["secret"])
async def create_secret(services: Dependencies, data: params.JSONBody[view.SecretRequest]) -> view.SecretView:
    """Keep values that containers of its namespace may be given; one of that name is a conflict."""
    namespace, values = data.namespace or "default", view.values_of(data)
    services.noted(namespace)
    place = services.backend.places.new(namespace)
    return await _view(services, await services.backend.secrets.create(data.name, place, values))


@litestar.put(
    "/v1/secrets/{name:str}",
    summary="Replace a secret's values",
    responses=documented(403, 404, 409, 422),
    tags=["secret"],
)
async def replace_secret(
    services: Dependencies, name: Name, data: params.JSONBody[view.SecretValues], namespace: Namespace = "default"
) -> view.SecretView:
    """Keep these values in place of all that it has. Containers get them with their next start. Idempotent."""
    return await _view(services, await services.backend.secrets.replace(name, namespace, view.values_of(data)))


@litestar.delete(
    "/v1/secrets/{name:str}",
    summary="Delete a secret",
    responses=documented(403, 404, 409, 422),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["secret"],
)
async def delete_secret(services: Dependencies, name: Name, namespace: Namespace = "default") -> None:
    """Forget its values. Containers that run keep what they were given; the next start of one waits for it."""
    await services.backend.secrets.remove(name, namespace)


async def _view(services: Services, item: secret.Described) -> view.SecretView:
    pods = (await services.store.list(core.Pod, Selector(namespace=item.namespace))).items
    return view.secret_view(
        item, used_by=tuple(pod.metadata.name for pod in pods if item.name in podsecret.names(pod.spec))
    )


ROUTES: Final = (list_secrets, show_secret, create_secret, replace_secret, delete_secret)
